"""The reaper at work: looks at all sessions, asks core/reaper, and carries out its decisions (R8).

Off until the configuration has a limit. A look takes place at each LOOK_SHARE of the idle limit,
at most every LOOK_MAX_S; later if looks take long, because there are many sessions. Sessions are
evicted one after another: each eviction loads the disk.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.core.reaper.reaper import (
    DEFAULT,
    Cannot,
    Effect,
    End,
    Evict,
    Leave,
    Policy,
    Reaper,
    Resident,
    Used,
    Warn,
    Withdraw,
)
from holdfast.core.reaper.reaper import Looked as Seen
from holdfast.core.session import lifecycle
from holdfast.host.processes.halt import Halter, execution
from holdfast.host.residency.activity import Watch, tcp_bytes
from holdfast.host.residency.costs import Costs
from holdfast.host.residency.eviction import HOST, Evictions, final
from holdfast.host.runtime.notify import log_error, log_errors
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.session.session import Session
from holdfast.host.storage import store
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.host.acts.approvals import HeldActs
    from holdfast.host.storage.store import Store

LOOK_MAX_S: Final = 30.0
LOOK_MIN_S: Final = 0.2
LOOK_SHARE: Final = 1 / 20  # of the idle limit
WORK_SHARE: Final = 20  # of many sessions: looks use at most so small a part of the time
LATE_SHARE: Final = 1 / 4  # of the idle limit: the longest pause for that reason
CHOICE: Final = "reap"  # in the label of a session


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def halter(self) -> Halter: ...

    @property
    def held_acts(self) -> HeldActs: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def store(self) -> Store: ...


class Reaping:
    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        costs: Costs,
        evictions: Evictions,
        paused: Callable[[], bool],
    ) -> None:
        """`paused`: whether a drain saves the sessions."""
        self._engine, self.policy, self.paused = engine, policy, paused
        self._costs, self._evictions = costs, evictions
        self.reaper = Reaper(policy)
        self.seen: dict[str, Resident] = {}  # of the last look
        self._watches: dict[str, Watch] = {}
        self._took_s = 0.0  # the last look
        self._in_use: Callable[[Session], bool] = lambda session: False
        self._queue: asyncio.Queue[Effect] = asyncio.Queue()
        self._tasks = Tasks("the reaper")

    def begin(self, in_use: Callable[[Session], bool]) -> None:
        """`in_use`: whether a request needs the session, like an open forward."""
        self._in_use = in_use
        if self.policy.on:
            self._tasks.spawn(self._looking())
            self._tasks.spawn(self._acting())

    def close(self) -> None:
        self._tasks.cancel()

    def choose(self, session: Session, choice: str) -> None:
        """Keep an operator's choice; it is in the label, which the keeper holds."""
        session.label[CHOICE] = choice
        if choice == DEFAULT:
            del session.label[CHOICE]
        session.send_label()

    # ------------------------------------------------------------ looking

    @property
    def _pause_s(self) -> float:
        wanted = self.policy.idle_s * LOOK_SHARE or LOOK_MAX_S
        least = min(WORK_SHARE * self._took_s, self.policy.idle_s * LATE_SHARE or LOOK_MAX_S)
        return max(least, min(LOOK_MAX_S, max(LOOK_MIN_S, wanted)))

    async def _looking(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            if not self.paused():
                began = time.monotonic()
                with log_errors("the reaper"):
                    await self.look()
                self._took_s = time.monotonic() - began

    async def look(self) -> None:
        """Look at all sessions once."""
        costs = await self._costs.fresh() if self.policy.memory else {}
        tcp = await asyncio.to_thread(tcp_bytes)
        asked = {one.binding.session for one in self._engine.held_acts.waiting()}
        found = dict[str, Resident]()
        for session in [*self._engine.sessions.values()]:
            if session.ending or session.state not in ("live", "detached", "halted"):
                continue
            one = None
            with log_errors(f"the reaper's look at {session.id}"):  # the others are looked at
                one = await self._look_at(session, tcp, session.id in asked)
            if one is not None:
                memory = costs[one.id].memory if one.id in costs else 0
                found[one.id] = one._replace(memory=memory)
        self._watches = {id: one for id, one in self._watches.items() if id in found}
        self.seen = found
        self._do(self.reaper.handle(Seen(tuple(found.values())), time.time()))

    async def _look_at(self, session: Session, tcp: dict[int, int], asked: bool) -> Resident | None:
        watch = self._watches.get(session.id)
        if watch is None or watch.session is not session:
            watch = self._watches[session.id] = Watch(session)
            watch.used()
        watch.choice = str(session.label.get(CHOICE, DEFAULT))
        groups = self._engine.halter.groups
        return await watch.look(groups, tcp, self._attached(session), asked)

    def _attached(self, session: Session) -> bool:
        return bool(session.viewers or session.streams) or self._in_use(session)

    # ------------------------------------------------------------ acting

    def _do(self, effects: list[Effect]) -> None:
        for one in effects:
            session = self._engine.sessions.get(one.session)
            if session is None:
                continue
            if isinstance(one, Warn):
                self._note(session, "session.reap_warned", because=one.why, at=one.at)
            elif isinstance(one, Withdraw):
                self._note(session, "session.reap_withdrawn", because=one.why)
            elif isinstance(one, Leave):
                self._note(session, "session.reap_left", because=one.why, cannot=one.cannot)
            else:
                self._queue.put_nowait(one)

    def _note(self, session: Session, name: str, **facts: Any) -> None:
        session.event(name, **facts)
        session.viewers.tell(name.removeprefix("session."), **facts)

    async def _acting(self) -> None:
        while True:
            one = await self._queue.get()
            session = self._engine.sessions.get(one.session)
            if session is None:
                continue
            try:
                await self._act(one, session)
            except Exception as e:
                if not isinstance(e, HoldfastError | TimeoutError):
                    log_error(f"saving {session.id}, which is idle", e)
                why = "it takes too long" if isinstance(e, TimeoutError) else f"{e}"
                ends = isinstance(e, HoldfastError) and final(e)
                self._do(self.reaper.handle(Cannot(one.session, why, ends), time.time()))

    async def _act(self, one: Effect, session: Session) -> None:
        """The last look was a moment ago, and other evictions may have taken long: look again."""
        tcp = await asyncio.to_thread(tcp_bytes)
        asked = any(held.binding.session == session.id for held in self._engine.held_acts.waiting())
        now = await self._look_at(session, tcp, asked)
        if now is None:
            return
        if why := now.safe or self._used(session) or ("a drain has begun" if self.paused() else ""):
            self._do(self.reaper.handle(Used(session.id, why), time.time()))
        elif isinstance(one, Evict):
            used = functools.partial(self._used, session)
            await self._evictions.evict(session, one.why, used=used)
        elif isinstance(one, End):
            await self._end(session, one)

    def _used(self, session: Session) -> str:
        """Why the session must stay after all."""
        if self._attached(session):
            return "a client has attached"
        waiting = self._engine.held_acts.waiting()
        asked = any(one.binding.session == session.id for one in waiting)
        return "an act waits for approval" if asked else ""

    async def _end(self, session: Session, one: End) -> None:
        await session.end(HOST, lambda: self._engine.halter.end(execution(session)))
        record = session.record
        before = record.state
        record.state = lifecycle.step(before, "reaped")
        record.reason = f"reaped: {one.why}"
        session.event(
            "session.reaped",
            before=before,
            after=record.state,
            because=one.why,
            cannot=one.cannot,
        )
        self._engine.store.post(store.save(record))
