"""What changes in a session's graph, for whoever follows it: started, exited, listening, closed, blocked, unblocked.

The kernel's events say at once that a process came or went; then it is looked, and the difference of two looks is told, so a follower's picture is always that of a look. What comes and goes between
two looks is told by its exit alone. What has no event (ports, what waits for input) is looked at OBSERVE_INTERVAL_S apart, and only while somebody follows. A follower that does not read is
given no more than FOLLOW_BURST changes at once: the rest are counted, and the next look is whole.

However many follow, and however much happens: one look at a time, the same for all who follow that session, and pauses in between that are several times as long as it took (`Looks`).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.graph import Graph, Process
from holdfast.core.lineage import UNKNOWN, Cause, Member
from holdfast.host import observe
from holdfast.host.connection import Connection
from holdfast.host.graph import of_session
from holdfast.host.session import Session
from holdfast.host.threads import briefly
from holdfast.model.errors import Unavailable
from holdfast.model.limits import OBSERVE_INTERVAL_S

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

LOOK_S = 0.02  # between an event and the look: a process that has just begun is about to become its program
LOOK_SHARE = 4  # times as long as a look took, before the next one of that session
FOLLOW_BURST = 256  # changes of one look that are told one by one
EXITS_KEPT = 4096  # statuses of processes that were not looked at yet
_BLOCKED = ("input", "secret")


class Look(NamedTuple):
    processes: dict[tuple[int, int], Process]
    listening: set[observe.Socket]
    waits: tuple[str, str, str]


class Looks:
    """One per host."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: dict[str, asyncio.Task[Look]] = {}  # that have not begun to read
        self._tasks: set[asyncio.Task[Look]] = set()
        self._not_before: dict[str, float] = {}

    async def of(self, ops: Ops, session: Session) -> Look:
        """One that begins after this was asked."""
        if (task := self._next.get(session.id)) is None:
            task = self._next[session.id] = session.loop.create_task(self._look(ops, session))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Look]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it was for whoever waits, if anybody still does

    async def _look(self, ops: Ops, session: Session) -> Look:
        try:
            loop = session.loop
            await asyncio.wait(
                {session.ended},
                timeout=max(0.0, self._not_before.pop(session.id, 0.0) - loop.time()),
            )
            kin = ops.engine.kin

            async def read() -> tuple[frozenset[int], float, tuple[Graph, set[observe.Socket]]]:
                began = loop.time()
                del self._next[session.id]
                return kin.looking(session), began, await session.looked(_read, ops, session)

            before, began, (found, listening) = await briefly(self._one, read())
            took = loop.time() - began
            kin.seen(
                session,
                {p.pid: (p.start, p.ppid) for p in found.processes},
                before,
                whole=not found.cut,
            )
            waits = await session.attention()
            now = loop.time()
            self._not_before = {id: at for id, at in self._not_before.items() if at > now} | {
                session.id: now + took * LOOK_SHARE
            }
            return Look(
                {(p.pid, p.start): p for p in found.processes if p.state != "zombie"},
                listening,
                waits,
            )
        finally:
            if self._next.get(session.id) is asyncio.current_task():
                del self._next[session.id]


def _read(ops: Ops, session: Session) -> tuple[Graph, set[observe.Socket]]:
    found = of_session(ops.engine.halter.groups, session, files=False)
    return found, set(observe.listening(p.pid for p in found.processes))


class Follower:
    def __init__(self, ops: Ops, conn: Connection, number: int, session: Session) -> None:
        self._ops, self._conn, self._number, self._session = ops, conn, number, session
        self._woken = asyncio.Event()
        self._exits: dict[int, tuple[int, Member | None]] = {}
        self._causes: dict[
            tuple[int, int], Cause
        ] = {}  # of those that were looked at: who has exited is not asked any more
        self._processes: dict[tuple[int, int], Process] = {}
        self._listening: set[observe.Socket] = set()
        self._waits: tuple[str, str, str] | None = None
        self._told = 0

    async def follow(self) -> None:
        """Until the session ends. The first look is told as a beginning (`was`: it was there before): a follower that comes back misses nothing that is still there."""
        kin = self._ops.engine.kin
        kin.on_change.append(self._happened)
        try:
            while not self._session.ended.done():
                try:
                    await self._look()
                except Unavailable:
                    if self._session.ending or self._session.ended.done():
                        break
                    raise
                self._woken.clear()
                woken = asyncio.ensure_future(self._woken.wait())
                await self._session.or_end(woken, OBSERVE_INTERVAL_S)
                if not woken.done():
                    woken.cancel()
                    continue
                await asyncio.wait({self._session.ended}, timeout=LOOK_S)
            await asyncio.shield(self._session.ended)
        finally:
            kin.on_change.remove(self._happened)

    def _happened(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if session is self._session:
            if what == "exited" and status is not None and len(self._exits) < EXITS_KEPT:
                self._exits[pid] = status, was
            self._woken.set()

    async def _look(self) -> None:
        exits, self._exits = self._exits, {}
        now, listening, waits = await self._ops.following.of(self._ops, self._session)
        self._told = 0
        before, lineage, first = self._causes, self._session.commands.lineage, self._waits is None
        self._causes = {
            identity: before.get(identity, UNKNOWN)
            if (cause := lineage.of(identity[0])) is UNKNOWN
            else cause
            for identity in now
        }
        for identity, one in now.items():
            if identity not in self._processes:
                self._tell("started", {**self._about(one, self._causes[identity]), "was": first})
        for identity, one in self._processes.items():
            if identity not in now:
                status, was = exits.pop(one.pid, (None, None))
                self._tell(
                    "exited",
                    self._about(one, was.cause if was is not None else before[identity])
                    | _status(status),
                )
        living = {pid for pid, _ in now}
        for pid, (status, was) in exits.items():
            if pid not in living:
                self._tell(
                    "exited",
                    {
                        "pid": pid,
                        "ppid": was.parent or None if was is not None else None,
                        "argv": [],
                        "comm": "",
                        "started": None,
                    }
                    | self._by(was.cause if was is not None else UNKNOWN)
                    | _status(status),
                )
        for socket in sorted(listening - self._listening, key=repr):
            self._tell("listening", {**_socket(socket), "was": first})
        for socket in sorted(self._listening - listening, key=repr):
            self._tell("closed", _socket(socket))
        waited = self._waits[0] if self._waits is not None else ""
        if waits[0] != waited and (waits[0] in _BLOCKED or waited in _BLOCKED):
            self._tell(
                "blocked" if waits[0] in _BLOCKED else "unblocked",
                {"waiting": {"for": waits[0], "why": waits[1]}, "command": waits[2]},
            )
        self._processes, self._listening, self._waits = now, listening, waits
        if self._told > FOLLOW_BURST:
            self._conn.event(
                "changed",
                request=self._number,
                change="more",
                time=time.time(),
                count=self._told - FOLLOW_BURST,
            )

    def _about(self, one: Process, cause: Cause) -> dict[str, Any]:
        return {
            "pid": one.pid,
            "ppid": one.ppid,
            "argv": list(one.argv),
            "comm": one.comm,
            "started": round(one.started, 2),
        } | self._by(cause)

    def _by(self, cause: Cause) -> dict[str, Any]:
        return {"actor": cause.actor, "act": cause.ref(self._session.ref)}

    def _tell(self, change: str, facts: dict[str, Any]) -> None:
        self._told += 1
        if self._told <= FOLLOW_BURST:
            self._conn.event(
                "changed", request=self._number, change=change, time=time.time(), **facts
            )


def _status(status: int | None) -> dict[str, Any]:
    """As a shell would have it; None: nobody has said."""
    if status is None:
        return {"exit_code": None, "signal": None}
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def _socket(one: observe.Socket) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "kind": one.proto,
        "local": one.address if one.port is None else f"{one.address}:{one.port}",
        "port": one.port,
    }
