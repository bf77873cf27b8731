"""Drains the machine: saves every session within the notice, and names those it could not (R9).

core/reaper/drain.py decides the order. New sessions are refused from the beginning on, and no
evicted session comes back, until the drain is cancelled or the next host starts. People are warned
in their terminals. A save that does not end in time is stopped, and its session goes on: it comes
back without its memory if the machine ends.

`mover` moves a session to another machine, for `--to`; the engine sets it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.core.checkpoint.preflight import BASE_S, Preflight
from holdfast.core.contract.drain import DrainedSession
from holdfast.core.contract.message import ABSENT
from holdfast.core.reaper.drain import (
    CANCELLED,
    Cancelled,
    Candidate,
    Done,
    Drain,
    Event,
    Examined,
    Save,
    Tick,
)
from holdfast.host.checkpoints.save import examine
from holdfast.host.residency.eviction import Evictions
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.session.session import Session
from holdfast.model.errors import HoldfastError, Impossible, Refused
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.checkpoints.incarnations import Incarnations
    from holdfast.host.lifecycle.adoption import Adoptions
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.store import SessionRow

PARALLEL_MAX: Final = 4
PARALLEL_MIN: Final = 2
EXAMINED_AT_ONCE: Final = 4
EXAMINE_SHARE: Final = 0.25  # of the notice, for the preflights
LEFT: Final = (
    "it comes back without its memory: directory, variables and output (docs/reference/recovery.md)"
)
MOVING: Final = "it goes on there, or comes back here (docs/reference/moving.md)"
ON_DISK: Final = "it is on the disk of this machine, where a drain leaves it"
THEN_MOVE: Final = (
    "to take it along: `holdfast drain --cancel`, `holdfast restore {name}`, then "
    "`holdfast move {name} {to}`"
)
BUSY_S: Final = 0.1  # between two looks at a session that is being saved already
BEGAN: Final = "it began after the drain"
MACHINE: Final = ""  # the session of an event of the machine

Tell = Callable[[dict[str, Any]], None]
Mover = Callable[[Session, str], Awaitable[str]]


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def adoptions(self) -> Adoptions: ...

    @property
    def events(self) -> Events: ...

    @property
    def incarnations(self) -> Incarnations: ...

    @property
    def ended(self) -> Mapping[str, SessionRow]: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def unreachable(self) -> Mapping[str, str]: ...


class Draining:
    def __init__(self, engine: Engine, evictions: Evictions) -> None:
        self._engine, self._evictions = engine, evictions
        self.mover: Mover | None = None
        self.state = ""  # "draining", "drained" or empty
        self.by = ""
        self._running = False
        self._drain: Drain | None = None
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._saves: dict[str, asyncio.Task[None]] = {}
        self._found: dict[str, DrainedSession] = {}
        self._names: dict[str, str] = {}
        self._tasks = Tasks("the drain")

    def refuse(self, what: str) -> None:
        """Refuse what would bring a session to this machine."""
        if self.state:
            raise Refused(
                f"{what}: {self.by} drains this machine",
                "use another machine, or `holdfast drain --cancel` first",
                drain=self.state,
            )

    # ------------------------------------------------------------ begin and end

    def cancel(self, by: str) -> bool:
        """End the drain; saved sessions come back with the next attach. False: there is none."""
        if not self.state:
            return False
        self.state = ""
        self._events.put_nowait(Cancelled())
        self._tell("drain_over", operator=by)
        self._engine.events.note(MACHINE, "drain.cancelled", {"operator": by})
        return True

    async def run(
        self, by: str, notice_s: float, to: str, tell: Tell
    ) -> tuple[DrainedSession, ...]:
        if self.state == "draining":
            raise Refused(f"{self.by} drains this machine already", "wait until that is over")
        if self._running:  # it was cancelled
            raise Refused("the last drain is about to end", "try again in a moment")
        if to and self.mover is None:
            raise Impossible(
                "this release cannot move sessions",
                "drain without --to: the sessions are saved on this machine",
            )
        self._running = True
        self.state, self.by, self._found = "draining", by, {}
        self._events = asyncio.Queue()
        drain = self._drain = Drain(time.monotonic() + notice_s, _parallel())
        done = False
        try:
            await self._engine.adoptions.all()
            self._tell("draining", operator=by, within=notice_s)
            facts = {"operator": by, "notice": notice_s, "sessions": len(self._engine.sessions)}
            self._engine.events.note(MACHINE, "drain.began", facts)
            probe("host.drain.began")
            await self._examined(drain, notice_s * EXAMINE_SHARE)
            await self._work(drain, to, tell)
            for session in self._engine.sessions.values():
                new = session.id not in self._names and self.state
                if new and not session.ending:
                    self._result(session.id, session.name, BEGAN)
            if to:
                self._left_on_disk(to)
            found = tuple(sorted(self._found.values(), key=lambda one: one.name))
            done = True
        finally:
            self._running = False
            for task in self._saves.values():
                task.cancel()
            self._saves.clear()
            if self.state == "draining":
                self.state = "drained" if done else ""
        saved = sum(one.saved for one in found)
        self._engine.events.note(
            MACHINE,
            "drain.ended",
            {"operator": by, "saved": saved, "left": [o.name for o in found if not o.saved]},
        )
        return found

    # ------------------------------------------------------------ the work

    async def _examined(self, drain: Drain, most_s: float) -> None:
        """Run the preflights, several at a time."""
        slots = asyncio.Semaphore(EXAMINED_AT_ONCE)
        store = self._engine.incarnations.checkpoints

        async def one(session: Session) -> Preflight:
            async with slots:
                return await examine(store, session)

        sessions = [one for one in self._engine.sessions.values() if not one.ending]
        self._names = {one.id: one.name for one in sessions}
        tasks = {self._tasks.spawn(one(session)): session for session in sessions}
        if tasks:
            await asyncio.wait(tasks, timeout=most_s)
        candidates = list[Candidate]()
        for task, session in tasks.items():
            if not task.done():  # the save examines it again
                task.cancel()
                candidates.append(Candidate(session.id, 0, BASE_S))
            elif (error := task.exception()) is not None:
                why = error.message if isinstance(error, HoldfastError) else "it cannot be examined"
                self._result(session.id, session.name, why)
            elif (found := task.result()).possible:
                candidates.append(Candidate(session.id, found.bytes, found.seconds))
            else:
                self._result(session.id, session.name, "; ".join(found.blockers))
        for id, why in self._engine.unreachable.items():
            self._found[id] = DrainedSession(id=id, name=id, saved=False, why=why)
        self._events.put_nowait(Examined(tuple(candidates), await self._free()))

    async def _free(self) -> int:
        return await asyncio.to_thread(self._engine.incarnations.checkpoints.free)

    async def _work(self, drain: Drain, to: str, tell: Tell) -> None:
        while True:
            left = max(0.0, drain.until - time.monotonic())
            event: Event = Tick()
            try:
                async with asyncio.timeout(left if drain.saving or not drain.results else 0.0):
                    event = await self._events.get()
            except TimeoutError:
                if drain.saving and left <= 0:
                    await self._stop(drain)
            for effect in drain.handle(event, time.monotonic()):
                session = self._engine.sessions.get(effect.session)
                if isinstance(effect, Save):
                    self._saves[effect.session] = self._tasks.spawn(
                        self._save(effect.session, session, to, tell)
                    )
                elif (task := self._saves.get(effect.session)) is not None:
                    task.cancel()
            for id, why in drain.results.items():
                if id not in self._found and why:  # else it ended
                    self._result(id, self._names[id], why)
            if drain.finished and not isinstance(event, Tick):
                return

    async def _stop(self, drain: Drain) -> None:
        """Wait until the stopped saves have let their sessions go on."""
        for effect in drain.handle(Tick(), time.monotonic()):
            if (task := self._saves.get(effect.session)) is not None:
                task.cancel()
        if stopping := [self._saves[id] for id in drain.saving if id in self._saves]:
            await asyncio.wait(stopping)

    async def _save(self, id: str, session: Session | None, to: str, tell: Tell) -> None:
        began, why, moving = time.monotonic(), "", False
        busy = self._engine.incarnations.checkpoints.busy
        try:
            while session is not None and id in busy and not session.ending:
                await asyncio.sleep(BUSY_S)  # another save, such as an eviction, is under way
            if session is None or session.ending:
                self._found.pop(id, None)
            elif to and self.mover is not None:
                moving = True
                place = await self.mover(session, to)
                took = time.monotonic() - began
                self._found[id] = DrainedSession(
                    id=id, name=session.name, saved=True, machine=place, took_s=round(took, 3)
                )
            else:
                await self._to_disk(session, began, tell)
        except HoldfastError as e:
            why = e.message
        except TimeoutError:
            why = "it takes too long"
        except Exception as e:
            why = f"{type(e).__name__}: {e}"
            raise
        except asyncio.CancelledError:
            why = CANCELLED
            late = session is not None and (session.ending or session.end_of.saved_as)
            if session is not None and moving and late:  # the move goes on
                self._found[id] = DrainedSession(
                    id=id, name=session.name, saved=False, why=f"on its way to {to}", then=MOVING
                )
            elif session is not None and session.end_of.saved_as:  # it was too late to stop
                why = ""
                self._found[id] = DrainedSession(
                    id=id, name=session.name, saved=True, checkpoint=session.end_of.saved_as
                )
        finally:
            self._events.put_nowait(Done(id, why, await self._free()))
            self._saves.pop(id, None)

    async def _to_disk(self, session: Session, began: float, tell: Tell) -> None:
        def step(name: str, done: int) -> None:
            tell({**self._progress(), "session": session.id, "name": session.name,
                  "step": name, "bytes": done})  # fmt: skip

        made = await self._evictions.evict(session, f"{self.by} drains", step)
        self._found[session.id] = DrainedSession(
            id=session.id,
            name=session.name,
            saved=True,
            checkpoint=made.id,
            bytes=made.bytes,
            took_s=round(time.monotonic() - began, 3),
            losses=made.losses or ABSENT,
        )
        step("done", made.bytes)

    def _progress(self) -> dict[str, Any]:
        drain = self._drain
        left = 0 if drain is None else len(drain.waiting) + len(drain.saving)
        saved = sum(one.saved for one in self._found.values())
        until = 0.0 if drain is None else max(0.0, drain.until - time.monotonic())
        return {"saved": saved, "left": left, "within": round(until, 1)}

    def _result(self, id: str, name: str, why: str) -> None:
        self._found[id] = DrainedSession(id=id, name=name, saved=False, why=why, then=LEFT)

    def _left_on_disk(self, to: str) -> None:
        """Name the sessions that were saved before: the machine may not come back."""
        for row in self._engine.ended.values():
            if row.state == "checkpointed" and row.id not in self._found:
                then = THEN_MOVE.format(name=row.name, to=to)
                self._found[row.id] = DrainedSession(
                    id=row.id, name=row.name, saved=False, why=ON_DISK, then=then
                )

    def _tell(self, name: str, **facts: Any) -> None:
        for session in self._engine.sessions.values():
            session.viewers.tell(name, **facts)


def _parallel() -> int:
    return max(PARALLEL_MIN, min(PARALLEL_MAX, len(os.sched_getaffinity(0))))
