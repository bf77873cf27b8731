"""Moves a session to another machine. At every moment at most one incarnation can be attached.

    1  the other machine is asked whether the session could go on there; nothing has stopped
    2  a checkpoint while the session runs, and its files, travel: most bytes go in this step
    3  `move.json` says that a move has begun; the session is saved, and its processes end
    4  the last checkpoint travels: what has changed since step 2
    5  `move.json` says that the session is offered; from now on it is not restored here
    6  the lease is released; the other machine takes it, and begins the next incarnation
    7  the session is filed here as moved

If a step before 5 fails, the session is restored here. After step 5 the other machine decides: it
has taken the session, or it withdraws the copy and cannot take it any more. Until it answers, the
session runs at neither place. A host that dies at any step goes on from `move.json`.

The caller can give the move up until the last checkpoint of step 3 is stored: no process has ended.
From then on the move goes on without the caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.checkpoint import copies
from holdfast.host.checkpoints.save import examine, save
from holdfast.host.copies import errands
from holdfast.host.copies.sending import MOVE, Sending
from holdfast.host.runtime.progress import Progress, given_up
from holdfast.host.runtime.tasks import to_the_end
from holdfast.host.storage.store import SessionRow
from holdfast.model import signing
from holdfast.model.errors import (
    HoldfastError,
    Impossible,
    OutcomeUnknown,
    Refused,
    TimedOut,
    Unavailable,
)
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.home.machines import Machine
    from holdfast.host.copies.engine import Engine
    from holdfast.host.session.session import Session

Json = dict[str, Any]
TAKE_S: Final = 180.0  # for the other machine to restore the session
WITHDRAW_S: Final = 15.0
FILES_MAX: Final = 1000  # places that another machine names
RESTORES: Final = 8  # attempts to bring a session back


class Gone(Protocol):
    """Files a session as one that goes on at another machine."""

    async def gone(self, session_id: str, name: str, key: str, epoch: int) -> None: ...

    def trusted(self, word: str) -> Machine: ...


class Moved(NamedTuple):
    """`stood_ms`: from the stop here until the session ran there."""

    machine: str
    epoch: int
    bytes: int
    sent: int
    stood_ms: float
    took_ms: float
    files: tuple[Json, ...] = ()  # where they are there, in the words of that machine


class Target(NamedTuple):
    """The machine of a move under way.

    `over`: set when the move has succeeded or failed. `late`: set when it cannot be given up any
    more.
    """

    machine: str
    over: asyncio.Event
    late: asyncio.Event


class Moving:
    def __init__(self, engine: Engine, sending: Sending, files: Gone) -> None:
        self._engine, self._sending, self._files = engine, sending, files
        self._under_way = dict[str, Target]()
        engine.incarnations.may_restore = self._refuse

    def _refuse(self, session: str) -> None:
        """Refuse to restore a session that another machine has, or may have, taken over."""
        noted = self._sending.noted(session, MOVE)
        if noted is not None and (noted.get("offered") or noted.get("epoch")):
            raise Refused(
                f"the session went to {noted['machine']}, or is on its way",
                f"`holdfast restore` asks {noted['machine']} first",
            )

    # ------------------------------------------------------------ a move

    async def drain(self, session: Session, to: str) -> str:
        """Move a session off a machine that is drained; returns the machine's name.

        A caller that gives up does not wait for a move that goes on.
        """
        machine = self._files.trusted(to)
        work = self._engine.tasks.spawn(self.move(session, machine, "drain", Progress()))
        try:
            return (await asyncio.shield(work)).machine
        except asyncio.CancelledError:
            work.cancel()
            if (target := self._under_way.get(session.id)) is not None:
                passed = asyncio.ensure_future(target.late.wait())
                await asyncio.wait({work, passed}, return_when=asyncio.FIRST_COMPLETED)
                passed.cancel()
            raise

    async def move(
        self, session: Session, machine: Machine, operator: str, tell: Progress
    ) -> Moved:
        """The caller can cancel it until the last checkpoint is stored."""
        self.refuse_under_way(session.id, session.name)
        target = Target(machine.name, asyncio.Event(), asyncio.Event())
        self._under_way[session.id] = target
        try:
            work = self._beside(self._move(session, machine, operator, tell, target.late))
            return await to_the_end(work, lambda: not target.late.is_set())
        finally:
            del self._under_way[session.id]
            target.over.set()

    async def _beside(self, work: Coroutine[Any, Any, Moved]) -> Moved:
        """With the tasks of the engine, which end when the host does."""
        return await self._engine.tasks.spawn(work)

    def target(self, session: str) -> Target | None:
        """The machine that a session is being moved to."""
        return self._under_way.get(session)

    def refuse_under_way(self, session: str, name: str) -> None:
        """Refuse an act that would begin an incarnation beside the one that is being moved."""
        if session in self._under_way:
            raise Refused(f"{name} is being moved", "wait until that is over")

    async def _move(
        self,
        session: Session,
        machine: Machine,
        operator: str,
        tell: Progress,
        late: asyncio.Event,
    ) -> Moved:
        began, checkpoints = time.monotonic(), self._engine.incarnations.checkpoints
        found = await examine(checkpoints, session)
        if not found.possible:
            why = "; ".join(found.blockers)
            raise Impossible(f"{session.name} cannot be moved: {why}", "the session goes on here")
        tell.until(f"asks {machine.name}", 0, time.time() + errands.ASK_S)
        known = await self._sending.ask_whether(session, machine, found.bytes)
        await self._engine.leases.known(session.id)  # the store has to answer at the end too
        tell("examined", found.bytes)
        label, halter, journal = session.label, self._engine.halter, self._engine.journal

        def told(done: int, of: int, until: float) -> None:
            tell.until(f"{machine.name} does not answer" if until else "sent", done, until)

        made = await save(checkpoints, session, operator, False, tell, halter, journal)
        if given_up():
            raise asyncio.CancelledError
        tell("sent", 0)
        first = await self._sending.send(session.id, label, made, machine, known, told)
        probe("move.copied")
        note: Json = {"machine": machine.name, "key": signing.show(machine.key), "by": operator}
        self._sending.note(session.id, MOVE, note)
        stopped, saved_before = time.monotonic(), session.end_of.saved_as  # by an eviction
        session.end_of.bound_for = machine.name
        try:
            made = await save(checkpoints, session, operator, True, tell, halter, journal)
            late.set()
            tell.goes_on("stopped")
            await asyncio.shield(session.ended)
        except BaseException:
            session.end_of.bound_for = ""
            if session.end_of.saved_as == saved_before:  # else the next host brings it back
                self._sending.note(session.id, MOVE, None)
            raise
        probe("move.stopped")
        offered = {**note, "offered": True, "checkpoint": made.id}
        try:
            tell("sent", 0)
            sent = await self._sending.send(session.id, label, made, machine, known, told)
            self._sending.note(session.id, MOVE, offered)
            probe("move.offered")
            await self._engine.leases.let_go(session.id)
        except Exception as e:
            await self._back_here(session.id, note)
            raise _back(session.name, machine.name, e) from e
        tell.until(f"{machine.name} restores it", 0, time.time() + TAKE_S)
        epoch, files = await self._hand_over(session.id, session.name, machine, offered)
        return Moved(
            machine.name,
            epoch,
            sent.bytes,
            first.sent + sent.sent,
            round((time.monotonic() - stopped) * 1000, 1),
            round((time.monotonic() - began) * 1000, 1),
            files,
        )

    async def _hand_over(
        self, session: str, name: str, machine: Machine, offered: Json
    ) -> tuple[int, tuple[Json, ...]]:
        """Let the other machine take the session. It is offered: only that machine decides."""
        try:
            fields = {"id": session, "checkpoint": offered["checkpoint"]}
            said = await errands.act(machine, "copies.take", TAKE_S, **fields)
            epoch = errands.epoch_of(said)
        except (Unavailable, TimedOut, OutcomeUnknown) as e:
            self._engine.tasks.spawn(self.settle(session))
            raise OutcomeUnknown(
                f"{machine.name} was asked to take {name} over, and did not answer: {_why(e)}",
                f"it runs at neither place until {machine.name} answers, or after "
                f"`holdfast restore {name} --lost`",
            ) from e
        except HoldfastError as e:
            if await self._withdrawn(session, machine, offered):
                await self._back_here(session, offered)
                raise _back(name, machine.name, e) from e
            self._engine.tasks.spawn(self.settle(session))
            raise
        probe("move.taken")
        await self._files.gone(session, machine.name, signing.show(machine.key), epoch)
        return epoch, _files(said)

    async def _withdrawn(self, session: str, machine: Machine, note: Json) -> bool:
        """Whether the other machine cannot take the session over any more."""
        try:
            fields = {"id": session, "checkpoint": note["checkpoint"]}
            said = await errands.act(machine, "copies.withdraw", WITHDRAW_S, **fields)
            epoch = errands.epoch_of(said)
        except HoldfastError:
            return False
        offered = self._sending.away(session).get(note["key"], {})
        if epoch > offered.get("epoch", 0):  # else it came back since
            await self._files.gone(session, machine.name, note["key"], epoch)
            return False
        return True

    async def _back_here(self, session: str, note: Json) -> None:
        try:
            await self._bring_back(session, note)
        except Exception:
            self._engine.tasks.spawn(self.settle(session))
            raise

    async def _bring_back(self, session: str, note: Json) -> None:
        """Restore the session here, with the next epoch; Impossible if that fails for now."""
        self._sending.note(session, MOVE, {**note, "offered": False})
        row = self._engine.ended.get(session)
        try:
            if row is not None and session not in self._engine.sessions:
                await self._restore(row, str(note.get("by", "host")))
        except Exception as e:
            why = f"it could not be restored here after a move that failed: {_why(e)}"
            facts = {"machine": note["machine"], "checkpoint": "", "reason": why}
            self._engine.events.note(session, "session.copy_failed", facts)
            raise Impossible(
                why, f"the host tries again, and so does `holdfast restore {session}`"
            ) from e
        self._sending.note(session, MOVE, None)

    async def _restore(self, row: SessionRow, operator: str) -> None:
        checkpoints = self._engine.incarnations.checkpoints
        manifest = await self._engine.halter.in_thread(checkpoints.chosen, row.id, "")
        await self._engine.incarnations.restore(row, manifest, operator)

    # ------------------------------------------------------------ afterwards

    def unfinished(self) -> list[str]:
        """Sessions with a move that an earlier host has begun."""
        return [
            one
            for one in self._sending.sessions()
            if (found := self._sending.noted(one, MOVE)) is not None and not found.get("epoch")
        ]

    async def settle(self, session: str) -> None:
        """Finish a move, as soon as the other machine answers.

        A session that cannot be brought back in several attempts waits for an operator.
        """
        await self._engine.adoptions.all()
        failures = restores = 0
        while (note := self._sending.noted(session, MOVE)) is not None and not note.get("epoch"):
            try:
                if await self.settled(session, note):
                    return
            except Impossible:
                restores += 1
                if restores == RESTORES:
                    self._sending.note(session, MOVE, None)
            except (HoldfastError, OSError):
                pass  # the other machine, or this one's disk, may answer later
            await asyncio.sleep(copies.retry_s(failures))
            failures += 1

    async def settled(self, session: str, note: Json) -> bool:
        """One attempt: the session runs at one place, or the other machine did not answer."""
        running = self._engine.sessions.get(session)
        if session in self._engine.unreachable or (running is not None and running.ending):
            return False  # this host does not know yet whether it has ended
        row = self._engine.ended.get(session)
        finished = row is not None and row.state == "ended" and not row.lost
        if running is not None or row is None or (finished and not note.get("offered")):
            self._sending.note(session, MOVE, None)  # it was not stopped for the move
            return True
        if note.get("offered"):
            machine = self._files.trusted(note["key"])
            if not await self._withdrawn(session, machine, note):
                after = self._sending.noted(session, MOVE) or {}
                return bool(after.get("epoch"))
        await self._bring_back(session, note)
        return True


def _files(said: Json) -> tuple[Json, ...]:
    """Where the files are; the other machine may say anything."""
    found = said.get("files")
    return tuple(
        {"path": path, "place": place, "changed": changed if type(changed) is int else None}
        for path, place, changed in (
            (one.get("path"), one.get("place"), one.get("changed"))
            for one in (found if isinstance(found, list) else ())[:FILES_MAX]
            if isinstance(one, dict)
        )
        if isinstance(path, str) and isinstance(place, str)
    )


def _back(name: str, machine: str, error: Exception) -> Impossible:
    more = error.recover if isinstance(error, HoldfastError) else ""
    return Impossible(
        f"{name} could not be moved to {machine}: {_why(error)}",
        f"it was restored here and goes on; {more}".rstrip("; "),
    )


def _why(error: Exception) -> str:
    return error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
