"""Ended sessions that can be restored: their files, and the steps of a restore."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.checkpoint import preflight
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.session import lifecycle
from holdfast.home import Home, keys
from holdfast.host.checkpoints import finishing, halts, restore, unfinished
from holdfast.host.checkpoints.packing import Done
from holdfast.host.checkpoints.past import Past
from holdfast.host.checkpoints.restore import Prepared
from holdfast.host.checkpoints.store import Checkpoints, write_plan
from holdfast.host.checkpoints.unfinished import How, Unfinished
from holdfast.host.lifecycle import limits
from holdfast.host.lifecycle.beginning import Beginning, Complete
from holdfast.host.lifecycle.nursery import TreeChanged
from holdfast.host.lifecycle.prepare import KEEPER_SUFFIX, host_only_directory
from holdfast.host.runtime.notify import log_error
from holdfast.host.runtime.tasks import to_the_end
from holdfast.host.storage.store import SessionRow, body_of
from holdfast.model.errors import HoldfastError, Impossible, NotFound, Refused, Saved, Unavailable
from holdfast.model.probe import probe
from holdfast.transport import unix
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.home.settings import Settings
    from holdfast.host.leases.fences import Leases
    from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
    from holdfast.host.lifecycle.last_seen import Descriptions
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.keeper_link import KeeperLink
    from holdfast.host.session.session import Session
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.journal import Journal

VARIABLE: Final = "HOLDFAST_CRIU"
GONE_S: Final = 30.0  # for the keeper of the last incarnation to exit
LOOK_S: Final = 0.02
Take = Callable[[SessionRow], Awaitable[None]]


class Rediscovery(Protocol):
    """Adopts what listens at the socket of a session's keeper."""

    async def adopt_begun(self, record: SessionRow) -> Session | None: ...


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
    def journal(self) -> Journal: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def events(self) -> Events: ...

    @property
    def unreachable(self) -> Mapping[str, str]: ...

    @property
    def ended(self) -> Mapping[str, SessionRow]: ...

    @property
    def descriptions(self) -> Descriptions: ...

    async def revive(self, asked: Beginning) -> Session: ...

    async def keep_now(self, record: SessionRow) -> None: ...

    @property
    def rediscovery(self) -> Rediscovery: ...


class _Steps(NamedTuple):
    """Calls of a restore: with the bytes so far, for the next epoch, before processes start.

    `last`: the epoch of the last incarnation. `taken_over`: as of `Unfinished`.
    """

    done: Done
    take: Take
    begins: Callable[[], None]
    operator: str
    how: How
    last: int
    taken_over: dict[str, Any]


class Restored(NamedTuple):
    """`replaced`: files whose newer content gave way to the saved one, and is kept in `kept`.

    `connections`: facts of the connections that did not survive.
    """

    session: Session
    replaced: tuple[str, ...]
    kept: str
    connections: tuple[dict[str, Any], ...] = ()
    halted: bool = False
    files: tuple[dict[str, Any], ...] = ()  # of a session that was taken over
    past: Past = Past()


class Coming(NamedTuple):
    """A restore under way. `over`: set when it has succeeded or failed."""

    checkpoint: str
    operator: str
    over: asyncio.Event


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
        self.coming: dict[str, Coming] = {}  # restores under way, by session
        self.finishes = set[str]()  # sessions that a restore here adopts, and finishes itself
        self._burials: dict[str, asyncio.Task[None]] = {}
        # Raises if another machine has, or may have, the session (host/copies).
        self.may_restore: Callable[[str], None] = lambda session: None

    # ------------------------------------------------------------ for the engine

    def planned(self, complete: Complete) -> Complete:
        """Store how a session is made that can be saved, for later checkpoints."""

        async def kept(asked: wire.Spawn) -> wire.Spawn:
            spawn = await complete(asked)
            if spawn.containment is not None or os.geteuid() == 0:
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
        """The checkpoint with which this incarnation ended; empty if there is none.

        A session that printed more went on: its host died before the processes ended.
        """
        *_, found = (None, *self.checkpoints.headers(row.id))
        moment = (True, row.epoch, row.output_end)
        return found.id if found and (found.ended, found.epoch, found.head) == moment else ""

    def saved_session(self, session: str) -> bool:
        return self.checkpoints.keep(session)

    def refuse_if_saved(self, word: str) -> None:
        """Refuse a caller that needs a running session, if the session can be restored."""
        for row in self._engine.ended.values():
            if word not in (row.id, row.name) or not self.awaited(row):
                continue
            if row.state == "restoring" or row.id in self.coming:
                raise Saved(f"session {row.name} is being restored", "wait a moment")
            raise Saved(
                f"session {row.name} {'is on the disk' if _evicted(row) else 'was lost'}",
                f"`holdfast restore {row.name}` brings it back; `holdfast forget {row.name}` "
                "removes it",
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
        if row.state == "restoring" or row.id in self.coming:
            return True
        if row.reason.startswith("lost"):
            return self.saved_session(row.id) or self._engine.descriptions.has(row.id)
        return _evicted(row) and self.saved_session(row.id)

    def restorable(self, row: SessionRow) -> bool:
        """Whether a lost session waits for `restore` with a checkpoint."""
        return row.lost and self.saved_session(row.id)

    def returns(self, row: SessionRow) -> bool:
        """Whether a session that did not stop for a checkpoint comes back, or can."""
        return row.id in self.coming or self.restorable(row)

    @contextlib.contextmanager
    def restoring(self, row: SessionRow, checkpoint: str, operator: str) -> Iterator[None]:
        """Show the session as being restored, and announce that and a failure (S9).

        The store keeps the state before: a host that dies on the way leaves a session that can be
        restored again.
        """
        if row.id in self.coming:
            yield
            return
        events, before = self._engine.events, row.state
        after = lifecycle.step(before, "restore") if before in lifecycle.TABLE else "restoring"
        facts = {"operator": operator, "checkpoint": checkpoint}
        coming = self.coming[row.id] = Coming(checkpoint, operator, asyncio.Event())
        events.note(row.id, "session.restoring", {"before": before, "after": after, **facts})
        try:
            yield
        except BaseException as e:
            name = "given up" if isinstance(e, asyncio.CancelledError) else type(e).__name__
            why = e.message if isinstance(e, HoldfastError) else name
            failed = {"before": after, "after": before, **facts, "reason": why}
            events.note(row.id, "session.restore_failed", failed)
            raise
        finally:
            del self.coming[row.id]
            coming.over.set()

    def buried(self, session: str, burial: asyncio.Task[None]) -> None:
        self._burials[session] = burial
        burial.add_done_callback(lambda _: self._burials.pop(session, None))

    async def buried_by_now(self, session: str) -> None:
        """Wait until the last incarnation has left nothing behind."""
        if (burial := self._burials.get(session)) is not None:
            await asyncio.wait({burial})

    async def saved_by_now(self, session: str) -> None:
        """Wait until a checkpoint that is being made is stored, or has failed."""
        while session in self.checkpoints.saving:
            await asyncio.sleep(LOOK_S)

    async def keep_output(self, session: Session) -> None:
        """Store the output of a session that can be restored; called before the ring is gone."""
        ring = session.ring
        output = ring.copy(ring.start, ring.head) or b""
        await asyncio.to_thread(
            restore.keep_last_output, self.checkpoints, session.id, ring.head, output
        )

    async def forget(self, session: str) -> None:
        """Remove the checkpoints and the directories of a session that could come back."""
        while session in self.checkpoints.busy:
            await asyncio.sleep(LOOK_S)
        with self.checkpoints.using(session):
            await self.drop(session)

    async def drop(self, session: str) -> None:
        """The same, for a caller that is using the session's checkpoints."""
        if self.saved_session(session):
            await asyncio.to_thread(self.checkpoints.remove, session)
        await self._engine.own_directories.remove(session)

    async def remove(self, session: str, checkpoint: str) -> int:
        """Remove a checkpoint; return the bytes of stored files that are gone with it."""
        with self.checkpoints.using(session):
            await self.may_remove(session, checkpoint)
            return await asyncio.to_thread(self.checkpoints.remove_one, session, checkpoint)

    async def may_remove(self, session: str, checkpoint: str) -> None:
        """Refuse to remove the only checkpoint that can bring an ended session back."""
        if (row := self._engine.ended.get(session)) is None:
            return
        found = await self._engine.halter.in_thread(self.checkpoints.of, session)
        usable = {one.id for one in found}  # a lost session can also come back without memory
        if not usable - {checkpoint} and (checkpoint in usable or not row.lost):
            raise Refused(
                f"no other checkpoint of {row.name} could bring it back",
                f"`holdfast forget {row.name}` removes the session with it",
            )

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
        how: How = "restore",
        begins: Callable[[], None] = lambda: None,
        taken_over: dict[str, Any] | None = None,
    ) -> Restored:
        """Begin a new incarnation from a checkpoint, and tell of it.

        A failure before the processes run changes nothing. If they run, the session is here, even
        if its keeper does not answer for now: then the host asks the keeper again.

        `take`: takes the next epoch; without it the session must be this machine's. `how`: "move"
        if the checkpoint is of another machine; `taken_over`: facts of that, for the record. The
        caller can cancel it until `begins` is called: then the images are laid out, and the
        processes start.
        """
        begun = asyncio.Event()

        def starting() -> None:
            begun.set()
            begins()

        take = take or self._engine.leases.take_next
        steps = _Steps(done, take, starting, operator, how, row.epoch, taken_over or {})
        whole = self._restore(row, manifest, steps)
        return await to_the_end(whole, lambda: not begun.is_set())

    async def _restore(self, row: SessionRow, manifest: Manifest, steps: _Steps) -> Restored:
        await self.saved_by_now(row.id)  # a save goes on for a moment after the session's end
        with self.checkpoints.using(row.id, row.name):
            self.still_ended(row)
            with self.restoring(row, manifest.id, steps.operator):
                return await self._incarnate(row, manifest, steps)

    async def _incarnate(self, row: SessionRow, manifest: Manifest, steps: _Steps) -> Restored:
        if manifest.id not in self.checkpoints.ids(row.id):
            raise NotFound(
                f"{manifest.id} was removed meanwhile",
                "`holdfast checkpoint --list` lists the checkpoints",
            )
        try:
            return await self._next(row, manifest, steps)
        except BaseException:
            row.epoch = steps.last  # the epoch that was taken is used up; no incarnation had it
            await self._engine.leases.give_up(row.id)
            raise

    def running(self, session: str, name: str) -> Refused:
        """The refusal to restore a session that runs."""
        recover = f"`holdfast attach {name}` enters it"
        if self.saved_session(session):
            recover += f"; to go back to its checkpoint, `holdfast end {name}` first"
        return Refused(f"session {name} is running", recover)

    def still_ended(self, row: SessionRow) -> None:
        """Refuse a restore that was decided on facts of before: an approval takes time."""
        self.may_restore(row.id)
        if row.id in self._engine.sessions or row.id in self._engine.unreachable:
            raise self.running(row.id, row.name)
        now = self._engine.ended.get(row.id)
        if now is None or now.epoch > row.epoch:
            raise Refused(
                f"session {row.name} was {'forgotten' if now is None else 'restored'} meanwhile",
                "`holdfast ls --all` lists the sessions",
            )

    async def _next(self, row: SessionRow, manifest: Manifest, steps: _Steps) -> Restored:
        await self.buried_by_now(row.id)
        await self._gone(row)
        await steps.take(row)
        try:
            return await self._begun(row, manifest, steps)
        except TreeChanged:  # perhaps between the look at the machine and the keeper's
            try:
                return await self._begun(row, manifest, steps)
            except TreeChanged as e:
                raise Impossible(
                    f"{manifest.id} could not be restored: {e.what}",
                    "put it back as it was, then try again",
                ) from e

    async def _begun(self, row: SessionRow, manifest: Manifest, steps: _Steps) -> Restored:
        """Begin the incarnation of the epoch that was taken."""
        journal = self._engine.journal
        acts = await finishing.beside(journal, self.checkpoints, manifest, steps.last)
        made = await self._prepared(row, manifest, steps.done)
        steps.begins()
        halter, directory = self._engine.halter, host_only_directory(self._engine.home, row.id)
        note = _note(made, manifest, steps)

        async def claimed(link: KeeperLink) -> None:
            if note.taken_over:
                finishing.record_takeover(journal, row.id, note.epoch, note.taken_over)
            restore.show(made.screen, manifest, made.base, link.snapshot_fd)
            # Durable before any client can see output: no later incarnation uses its offsets.
            await self._engine.keep_now(made.row)

        given_up = False
        try:
            await asyncio.to_thread(unfinished.write, directory, note)
            session = await self._started(
                Beginning(
                    made.row,
                    made.label,
                    made.request,
                    lambda asked: limits.complete(halter, asked, made.label, made.limits),
                    steps.operator,
                    made.patience_s,
                    claimed,
                )
            )
            probe("host.restore.claimed")
            await finishing.use_numbers(session, journal)
            await halts.again(halter, session, manifest, steps.operator)
            replaced = await asyncio.to_thread(self.checkpoints.settle_replaced, made.kept)
        except asyncio.CancelledError:
            given_up = True
            raise
        except TreeChanged:
            made.kept.unlink()
            raise
        except Impossible as e:
            await asyncio.to_thread(self.checkpoints.settle_replaced, made.kept)
            raise self._failed(made, e) from e
        finally:
            # Else a host finishes what the keeper still does.
            if not given_up and row.id not in self._engine.unreachable:
                unfinished.remove(directory)
                await asyncio.to_thread(self.checkpoints.scratch.clear, made.place)
                if row.id not in self._engine.sessions:
                    await halter.in_thread(halter.groups.remove, row.id)
        self.checkpoints.drop_last_output(row.id)
        kept = str(made.kept) if replaced else ""
        lost = finishing.tell(session, journal, note, acts, manifest.connections)
        return Restored(session, replaced, kept, lost, halted=bool(manifest.halted), past=acts)

    async def _started(self, asked: Beginning) -> Session:
        """Begin the incarnation. A keeper counts although the host failed to claim it at first."""
        session = asked.record.id
        try:
            return await self._engine.revive(asked)
        except (TreeChanged, Impossible):  # the nursery made no keeper
            raise
        except Exception as e:
            if session in self._engine.sessions:
                raise
            self.finishes.add(session)
            try:
                found = await self._engine.rediscovery.adopt_begun(asked.record)
            finally:
                self.finishes.discard(session)
            if why := self._engine.unreachable.get(session):
                name = asked.record.name
                recover = f"wait, then look: `holdfast ls` shows {name} as unknown until then"
                raise Unavailable(f"{name} may be back, but {why}", recover) from e
            if found is None:
                raise
            if not isinstance(e, HoldfastError):
                log_error(f"the beginning of {session}", e)
            return found

    async def _prepared(self, row: SessionRow, manifest: Manifest, done: Done) -> Prepared:
        """The images, laid out. A caller that gives up leaves none of them."""
        stop = threading.Event()

        def counted(count: int) -> None:
            if stop.is_set():
                raise Impossible("the restore was given up", "")
            done(count)

        work = asyncio.to_thread(restore.prepare, self.checkpoints, manifest, row, counted)
        preparing = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(preparing)
        except asyncio.CancelledError:
            stop.set()
            if isinstance(
                made := (await asyncio.gather(preparing, return_exceptions=True))[0], Prepared
            ):
                made.kept.unlink(missing_ok=True)
                await asyncio.to_thread(self.checkpoints.scratch.clear, made.place)
            raise

    def _failed(self, made: Prepared, error: HoldfastError) -> Impossible:
        return Impossible(
            f"{made.manifest.id} could not be restored: {preflight.explain(error.message)}",
            "nothing was changed; an older checkpoint may do: `holdfast checkpoint --list`",
            criu=error.message[-1000:],
        )

    async def _gone(self, row: SessionRow) -> None:
        """Wait until the last keeper is gone, or adopt it: a restore only seemed to fail."""
        path = f"{self._engine.home.run}/{row.id}{KEEPER_SUFFIX}"
        loop = asyncio.get_running_loop()
        until = loop.time() + GONE_S
        while loop.time() < until:
            try:
                unix.connect(path, socket.SOCK_SEQPACKET, blocking=False).close()
            except OSError:
                return
            await asyncio.sleep(LOOK_S)
        if await self._engine.rediscovery.adopt_begun(row) is not None:
            raise self.running(row.id, row.name)
        why = self._engine.unreachable.get(row.id, "it has just gone")
        raise Refused(f"a keeper of {row.name} is still there: {why}", "try again in a moment")


def _note(made: Prepared, manifest: Manifest, steps: _Steps) -> Unfinished:
    checkpoint = manifest.id, manifest.at, manifest.halted, manifest.stops
    how = steps.last, steps.operator, steps.how
    return Unfinished(*checkpoint, made.base, *how, body_of(made.row), steps.taken_over)


def _evicted(row: SessionRow) -> bool:
    return row.state == "checkpointed"
