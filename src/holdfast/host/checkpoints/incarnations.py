"""Ended sessions that can be restored: their files, and the steps of a restore."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tarfile
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from holdfast.core.checkpoint import preflight
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.home import Home, keys
from holdfast.host.checkpoints import halts, restore
from holdfast.host.checkpoints.packing import Done
from holdfast.host.checkpoints.store import Checkpoints, write_plan
from holdfast.host.lifecycle import limits
from holdfast.host.lifecycle.beginning import Beginning, Complete
from holdfast.host.lifecycle.prepare import KEEPER_SUFFIX, host_only_directory
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Impossible, NotFound, Refused, Saved
from holdfast.transport import unix
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.home.settings import Settings
    from holdfast.host.checkpoints.restore import Prepared
    from holdfast.host.leases.fences import Leases
    from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
    from holdfast.host.lifecycle.last_seen import Descriptions
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.session import Session

VARIABLE: Final = "HOLDFAST_CRIU"
GONE_S: Final = 30.0  # for the keeper of the last incarnation to exit
LOOK_S: Final = 0.02
Take = Callable[[SessionRow], Awaitable[None]]


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def home(self) -> Home: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def own_directories(self) -> OwnDirectories: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def unreachable(self) -> Mapping[str, str]: ...

    @property
    def ended(self) -> Mapping[str, SessionRow]: ...

    @property
    def descriptions(self) -> Descriptions: ...

    async def revive(self, asked: Beginning) -> Session: ...


class Restored(NamedTuple):
    """`replaced`: files whose newer content gave way to the saved one, and is kept in `kept`."""

    session: Session
    replaced: tuple[str, ...]
    kept: str


class Incarnations:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.checkpoints = Checkpoints(
            engine.home,
            engine.environment.get(VARIABLE, ""),
            keys.machine(engine.home, time.time()),
            engine.settings.checkpoint_keep,
            engine.settings.checkpoint_bytes,
        )
        self.checkpoints.scratch.sweep()
        self._burials: dict[str, asyncio.Task[None]] = {}
        # Raises if another machine has, or may have, the session (host/copies).
        self.may_restore: Callable[[str], None] = lambda session: None

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
        found = self.checkpoints.sessions()
        for one in found:
            if one not in known:
                asyncio.get_running_loop().run_in_executor(None, self.checkpoints.remove, one)
        return {one for one in found if one in known and self.saved_session(one)}

    def ended_with(self, row: SessionRow) -> str:
        """The checkpoint with which this incarnation ended; empty if there is none."""
        *_, found = (None, *self.checkpoints.headers(row.id))
        return found.id if found is not None and found.ended and found.epoch == row.epoch else ""

    def saved_session(self, session: str) -> bool:
        return self.checkpoints.keep(session)

    def refuse_if_saved(self, word: str) -> None:
        """Refuse a caller that needs a running session, if the session can be restored."""
        for row in self._engine.ended.values():
            if word not in (row.id, row.name) or not self.awaited(row):
                continue
            if row.state == "restoring":
                raise Saved(f"session {row.name} is being restored", "wait a moment")
            raise Saved(
                f"session {row.name} {'is on the disk' if _evicted(row) else 'was lost'}",
                f"`holdfast restore {row.name}` brings it back",
            )
        ended = [row for row in self._engine.ended.values() if word in (row.id, row.name)]
        newest = max(ended, key=lambda row: row.ended or 0.0, default=None)
        if newest is not None and self.saved_session(newest.id):
            raise NotFound(
                f"session {newest.name} has ended",
                f"`holdfast restore {newest.name}` brings it back from its checkpoint; "
                "`holdfast view` shows its last screen",
            )

    def awaited(self, row: SessionRow) -> bool:
        """Whether clients wait for the restore: the session did not end by itself."""
        if row.state == "restoring":
            return True
        if row.reason.startswith("lost"):
            return self.saved_session(row.id) or self._engine.descriptions.has(row.id)
        return _evicted(row) and self.saved_session(row.id)

    def restorable(self, row: SessionRow) -> bool:
        """Whether a lost session waits for `restore` with a checkpoint."""
        return row.lost and self.saved_session(row.id)

    def buried(self, session: str, burial: asyncio.Task[None]) -> None:
        self._burials[session] = burial
        burial.add_done_callback(lambda _: self._burials.pop(session, None))

    async def buried_by_now(self, session: str) -> None:
        """Wait until the last incarnation has left nothing behind."""
        if (burial := self._burials.get(session)) is not None:
            await asyncio.wait({burial})

    async def keep_output(self, session: Session) -> None:
        """Store the output of a session that can be restored; called before the ring is gone."""
        ring = session.ring
        output = ring.copy(ring.start, ring.head) or b""
        await asyncio.to_thread(
            restore.keep_last_output, self.checkpoints, session.id, ring.head, output
        )

    async def forget(self, session: str) -> None:
        """Remove the checkpoints and the directories of a session that could come back."""
        if self.saved_session(session):
            await asyncio.to_thread(self.checkpoints.remove, session)
        await self._engine.own_directories.remove(session)

    async def remove(self, session: str, checkpoint: str) -> int:
        """Remove a checkpoint; return the bytes of stored files that are gone with it."""
        store = self.checkpoints
        if session in store.busy:
            raise Refused("the session is being saved or restored", "wait until that is over")
        store.busy.add(session)
        try:
            return await asyncio.to_thread(store.remove_one, session, checkpoint)
        finally:
            store.busy.discard(session)

    # ------------------------------------------------------------ restore

    def row_of(self, word: str) -> SessionRow:
        """The ended session of that id or name that can come back; the newest, if several."""
        rows = [
            row
            for row in self._engine.ended.values()
            if word in (row.id, row.name)
            and (self.saved_session(row.id) or (row.lost and self._engine.descriptions.has(row.id)))
        ]
        if not rows:
            raise NotFound(
                f"{word[:80]} has no checkpoint to restore",
                "`holdfast checkpoint --list` lists the checkpoints",
            )
        return max(rows, key=lambda row: row.ended or 0.0)

    async def restore(
        self,
        row: SessionRow,
        manifest: Manifest,
        operator: str,
        done: Done = lambda count: None,
        take: Take | None = None,
    ) -> Restored:
        """Begin a new incarnation from a checkpoint. A failure changes nothing.

        `take`: takes the next epoch; without it the session must be this machine's.
        """
        self.may_restore(row.id)
        if row.id in self._engine.sessions or row.id in self._engine.unreachable:
            raise Refused(
                f"session {row.name} is running",
                f"`holdfast checkpoint {row.name} --stop` or `holdfast end {row.name}` first",
            )
        if row.id in self.checkpoints.busy:
            raise Refused(f"{row.name} is being saved or restored", "wait until that is over")
        self.checkpoints.busy.add(row.id)
        last = row.epoch
        try:
            return await self._restore(
                row, manifest, operator, done, take or self._engine.leases.take_next
            )
        except BaseException:
            row.epoch = last  # the epoch that was taken is used up, but no incarnation had it
            await self._engine.leases.give_up(row.id)
            raise
        finally:
            self.checkpoints.busy.discard(row.id)

    async def _restore(
        self, row: SessionRow, manifest: Manifest, operator: str, done: Done, take: Take
    ) -> Restored:
        await self.buried_by_now(row.id)
        await self._gone(f"{self._engine.home.run}/{row.id}{KEEPER_SUFFIX}")
        await take(row)
        made = await asyncio.to_thread(restore.prepare, self.checkpoints, manifest, row, done)
        halter = self._engine.halter
        kept = self.checkpoints.replaced(row.id, made.row.epoch)
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
                    lambda link: restore.show(made, link.snapshot_fd),
                )
            )
            await halts.again(halter, session, manifest, operator)
            replaced = await asyncio.to_thread(_members, made.place / "replaced.tar")
        except Impossible as e:
            raise self._failed(made, e) from e
        finally:
            await asyncio.to_thread(
                self.checkpoints.clear_thaw, made.place, kept if replaced else None
            )
            if row.id not in self._engine.sessions:
                await halter.in_thread(halter.groups.remove, row.id)
        self.checkpoints.drop_last_output(row.id)
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
