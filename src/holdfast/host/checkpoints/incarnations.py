"""Ended sessions that can be restored: their files, and the steps of a restore."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tarfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import preflight
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.home import Home
from holdfast.host.checkpoints import restore
from holdfast.host.checkpoints.store import Checkpoints, write_plan
from holdfast.host.lifecycle import limits
from holdfast.host.lifecycle.beginning import Beginning, Complete
from holdfast.host.lifecycle.prepare import KEEPER_SUFFIX, host_only_directory
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Impossible, NotFound, Refused, Saved
from holdfast.transport import unix
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.checkpoints.restore import Prepared
    from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.session import Session

VARIABLE: Final = "HOLDFAST_CRIU"
GONE_S: Final = 5.0  # for the keeper of the last incarnation to exit
LOOK_S: Final = 0.02


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def home(self) -> Home: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def own_directories(self) -> OwnDirectories: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def unreachable(self) -> Mapping[str, str]: ...

    @property
    def ended(self) -> Mapping[str, SessionRow]: ...

    async def revive(self, asked: Beginning) -> Session: ...


class Restored(NamedTuple):
    """`replaced`: files whose newer content gave way to the saved one, and is kept in `kept`."""

    session: Session
    replaced: tuple[str, ...]
    kept: str


class Incarnations:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.checkpoints = Checkpoints(engine.home, engine.environment.get(VARIABLE, ""))
        self.checkpoints.sweep()
        self._burials: dict[str, asyncio.Task[None]] = {}

    # ------------------------------------------------------------ for the engine

    def planned(self, complete: Complete) -> Complete:
        """Store how a contained session is made, for later checkpoints."""

        async def kept(asked: wire.Spawn) -> wire.Spawn:
            spawn = await complete(asked)
            if spawn.containment is not None:
                directory = host_only_directory(self._engine.home, spawn.session)
                await asyncio.to_thread(write_plan, directory, spawn)
            return spawn

        return kept

    def saved(self, known: Container[str]) -> set[str]:
        """Sessions with checkpoints, whose directories stay. Forgotten sessions lose the rest."""
        found = set[str]()
        with contextlib.suppress(OSError):
            found = {p.name for p in self.checkpoints.top.iterdir()}
        for one in found:
            if one not in known:
                asyncio.get_running_loop().run_in_executor(None, self.checkpoints.remove, one)
        return {one for one in found if one in known and self.saved_session(one)}

    def ended_with(self, row: SessionRow) -> str:
        """The checkpoint with which this incarnation ended; empty if there is none."""
        found = forms.newest(self.checkpoints.of(row.id))
        return found.id if found is not None and found.ended and found.epoch == row.epoch else ""

    def saved_session(self, session: str) -> bool:
        return self.checkpoints.keep(session)

    def refuse_if_saved(self, word: str) -> None:
        """Refuse a caller that needs a running session, if the session can be restored."""
        for row in self._engine.ended.values():
            if word not in (row.id, row.name) or not self.awaited(row):
                continue
            raise Saved(
                f"session {row.name} {'is on the disk' if _evicted(row) else 'was lost'}",
                f"`holdfast restore {row.name}` brings it back",
            )

    def awaited(self, row: SessionRow) -> bool:
        """Whether clients wait for the restore: the session did not end by itself."""
        return (_evicted(row) or row.reason.startswith("lost")) and self.saved_session(row.id)

    def buried(self, session: str, burial: asyncio.Task[None]) -> None:
        self._burials[session] = burial
        burial.add_done_callback(lambda _: self._burials.pop(session, None))

    async def keep_output(self, session: Session) -> None:
        """Store the output of a session that can be restored; called before the ring is gone."""
        ring = session.ring
        output = ring.copy(ring.start, ring.head) or b""
        await asyncio.to_thread(
            restore.keep_last_output, self.checkpoints, session.id, ring.head, output
        )

    async def forget(self, session: str) -> None:
        if self.saved_session(session):
            await asyncio.to_thread(self.checkpoints.remove, session)
            await self._engine.own_directories.remove(session)

    # ------------------------------------------------------------ restore

    def row_of(self, word: str) -> SessionRow:
        """The ended session of that id or name that has a checkpoint; the newest, if several."""
        rows = [
            row
            for row in self._engine.ended.values()
            if word in (row.id, row.name) and self.saved_session(row.id)
        ]
        if not rows:
            raise NotFound(
                f"{word[:80]} has no checkpoint to restore",
                "`holdfast checkpoint --list` lists the checkpoints",
            )
        return max(rows, key=lambda row: row.ended or 0.0)

    async def restore(self, row: SessionRow, manifest: Manifest, operator: str) -> Restored:
        """Begin a new incarnation from a checkpoint. A failure changes nothing."""
        if row.id in self._engine.sessions or row.id in self._engine.unreachable:
            raise Refused(
                f"session {row.name} is running",
                f"`holdfast checkpoint {row.name} --stop` or `holdfast end {row.name}` first",
            )
        if row.id in self.checkpoints.busy:
            raise Refused(f"{row.name} is being saved or restored", "wait until that is over")
        self.checkpoints.busy.add(row.id)
        try:
            return await self._restore(row, manifest, operator)
        finally:
            self.checkpoints.busy.discard(row.id)

    async def _restore(self, row: SessionRow, manifest: Manifest, operator: str) -> Restored:
        if (burial := self._burials.get(row.id)) is not None:
            await asyncio.wait({burial})
        await self._gone(f"{self._engine.home.run}/{row.id}{KEEPER_SUFFIX}")
        made = await asyncio.to_thread(restore.prepare, self.checkpoints, manifest, row)
        halter = self._engine.halter
        place = self.checkpoints.place(row.id, manifest.id)
        kept = place / f"replaced-{made.row.epoch}.tar"
        replaced: tuple[str, ...] = ()
        try:
            session = await self._engine.revive(
                Beginning(
                    made.row,
                    made.label,
                    made.request,
                    lambda asked: limits.complete(halter, asked, made.label, made.limits),
                    operator,
                    made.patience_s,
                    lambda link: restore.show(self.checkpoints, made, link.snapshot_fd),
                )
            )
            replaced = await asyncio.to_thread(_members, made.place / "replaced.tar")
        except Impossible as e:
            raise self._failed(made, e) from e
        finally:
            await asyncio.to_thread(
                self.checkpoints.clear_thaw, made.place, kept if replaced else None
            )
            if row.id not in self._engine.sessions:
                await halter.in_thread(halter.groups.remove, row.id)
        self.checkpoints.last_output(row.id).unlink(missing_ok=True)
        return Restored(session, replaced, str(kept) if replaced else "")

    def _failed(self, made: Prepared, error: HoldfastError) -> Impossible:
        return Impossible(
            f"{made.manifest.id} could not be restored: {preflight.explain(error.message)}",
            "nothing was changed; an older checkpoint may do: `holdfast checkpoint --list`",
            criu=error.message[-1000:],
        )

    async def _gone(self, path: str) -> None:
        """Wait until the keeper of the last incarnation is gone: it removes its socket."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GONE_S
        while loop.time() < until:
            try:
                unix.connect(path, socket.SOCK_SEQPACKET, blocking=False).close()
            except OSError:
                return
            await asyncio.sleep(LOOK_S)
        raise Refused("the keeper of the last incarnation is still there", "try again in a moment")


def _evicted(row: SessionRow) -> bool:
    return row.state == "checkpointed"


def _members(archive: Path) -> tuple[str, ...]:
    with contextlib.suppress(OSError, tarfile.TarError), tarfile.open(archive) as opened:
        return tuple(f"/{name}" for name in opened.getnames())
    return ()
