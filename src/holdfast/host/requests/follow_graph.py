"""Changes in a session's process graph: started, exited, listening, closed, blocked, unblocked.

A kernel event says at once that a process started or exited. Then the processes are read, and the
difference of two reads is sent, so a follower's picture always equals a read. A process that lives
between two reads is reported by its exit alone. Facts without an event (ports, programs that wait
for input) are polled every OBSERVE_INTERVAL_S while a client follows. A client that does not read
gets at most FOLLOW_BURST changes at once; the rest are counted, and the next read is whole.

All followers of a session share a read, reads happen in sequence, and a pause of LOOK_SHARE times
the duration follows each (`Looks`).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.originators.lineage import UNKNOWN, Cause, Member
from holdfast.core.session.graph import Graph, Process
from holdfast.core.session.graph_news import BLOCKED, present
from holdfast.host.processes import proc_scan
from holdfast.host.processes.graph import of_session
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.runtime.threads import in_slot
from holdfast.host.session.session import Session
from holdfast.model.errors import Unavailable
from holdfast.model.limits import OBSERVE_INTERVAL_S

if TYPE_CHECKING:
    from holdfast.host.requests.host import Host

LOOK_S = 0.02  # between an event and the read: a forked process is about to exec its program
LOOK_SHARE = 4  # the pause after a read of a session, in durations of the read
FOLLOW_BURST = 256  # changes of a read that are sent separately
EXITS_KEPT = 4096  # statuses of processes that were not looked at yet


class Look(NamedTuple):
    processes: dict[tuple[int, int], Process]
    listening: set[proc_scan.Socket]
    waits: tuple[str, str, str]


class Looks:
    """The reads of a host."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: dict[str, asyncio.Task[Look]] = {}  # that have not begun to read
        self._tasks = Tasks(None)
        self._not_before: dict[str, float] = {}

    async def of(self, host: Host, session: Session) -> Look:
        """A read that begins after the call."""
        if (task := self._next.get(session.id)) is None:
            task = self._next[session.id] = self._tasks.spawn(self._look(host, session))
        return await asyncio.shield(task)

    async def _look(self, host: Host, session: Session) -> Look:
        try:
            loop = session.loop
            await asyncio.wait(
                {session.ended},
                timeout=max(0.0, self._not_before.pop(session.id, 0.0) - loop.time()),
            )
            lineages = host.engine.lineages

            async def read() -> tuple[frozenset[int], float, tuple[Graph, set[proc_scan.Socket]]]:
                began = loop.time()
                del self._next[session.id]
                return lineages.looking(session), began, await session.looked(_read, host, session)

            before, began, (found, listening) = await in_slot(self._one, read())
            took = loop.time() - began
            living = {p.pid: (p.start, p.ppid) for p in found.processes}
            lineages.seen(session, living, before, whole=not found.cut)
            waits = await session.attention()
            now = loop.time()
            self._not_before = {id: at for id, at in self._not_before.items() if at > now} | {
                session.id: now + took * LOOK_SHARE
            }
            shown = {(p.pid, p.start): p for p in found.processes if p.state != "zombie"}
            return Look(shown, listening, waits)
        finally:
            if self._next.get(session.id) is asyncio.current_task():
                del self._next[session.id]


def _read(host: Host, session: Session) -> tuple[Graph, set[proc_scan.Socket]]:
    found = of_session(host.engine.halter.groups, session, files=False)
    return found, set(proc_scan.listening(p.pid for p in found.processes))


class Follower:
    def __init__(self, host: Host, conn: Connection, number: int, session: Session) -> None:
        self._host, self._conn, self._number, self._session = host, conn, number, session
        self._woken = asyncio.Event()
        self._exits: dict[int, tuple[int, Member | None]] = {}
        # of processes that were read: an exited process cannot be asked any more
        self._causes: dict[tuple[int, int], Cause] = {}
        self._processes: dict[tuple[int, int], Process] = {}
        self._listening: set[proc_scan.Socket] = set()
        self._waits: tuple[str, str, str] | None = None
        self._told = 0

    async def follow(self) -> None:
        """Returns when the session ends.

        The first read is sent as a whole (`present`), then as changes with `was`: a follower that
        reconnects learns of every process that vanished, and misses none that is still there.
        """
        lineages = self._host.engine.lineages
        lineages.on_change.append(self._happened)
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
            lineages.on_change.remove(self._happened)

    def _happened(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if session is self._session:
            if what == "exited" and status is not None and len(self._exits) < EXITS_KEPT:
                self._exits[pid] = status, was
            self._woken.set()

    async def _look(self) -> None:
        exits, self._exits = self._exits, {}
        now, listening, waits = await self._host.following.of(self._host, self._session)
        self._told = 0
        before, lineage, first = self._causes, self._session.commands.lineage, self._waits is None
        self._causes = {
            identity: before.get(identity, UNKNOWN)
            if (cause := lineage.of(identity[0])) is UNKNOWN
            else cause
            for identity in now
        }
        if first:
            self._conn.event(
                "present",
                request=self._number,
                time=time.time(),
                **present(
                    [(one.pid, round(one.started, 2)) for one in now.values()],
                    [(one.pid, _local(one)) for one in listening],
                    waits,
                ),
            )
        for identity, one in now.items():
            if identity not in self._processes:
                self._tell("started", {**self._about(one, self._causes[identity]), "was": first})
        for identity, one in self._processes.items():
            if identity not in now:
                status, was = exits.pop(one.pid, (None, None))
                cause = was.cause if was is not None else before[identity]
                self._tell("exited", self._about(one, cause) | _status(status))
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
        if waits[0] != waited and (waits[0] in BLOCKED or waited in BLOCKED):
            self._tell(
                "blocked" if waits[0] in BLOCKED else "unblocked",
                {"waiting": {"for": waits[0], "why": waits[1]}, "command": waits[2]},
            )
        self._processes, self._listening, self._waits = now, listening, waits
        if self._told > FOLLOW_BURST:
            self._say("more", {"count": self._told - FOLLOW_BURST})

    def _about(self, one: Process, cause: Cause) -> dict[str, object]:
        return {
            "pid": one.pid,
            "ppid": one.ppid,
            "argv": list(one.argv),
            "comm": one.comm,
            "started": round(one.started, 2),
        } | self._by(cause)

    def _by(self, cause: Cause) -> dict[str, object]:
        return {"actor": cause.actor, "act": cause.ref(self._session.ref)}

    def _tell(self, change: str, facts: dict[str, object]) -> None:
        self._told += 1
        if self._told <= FOLLOW_BURST:
            self._say(change, facts)

    def _say(self, change: str, facts: dict[str, object]) -> None:
        self._conn.event("changed", request=self._number, change=change, time=time.time(), **facts)


def _status(status: int | None) -> dict[str, object]:
    """An exit status in the form of a shell; None: the kernel did not say."""
    if status is None:
        return {"exit_code": None, "signal": None}
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def _socket(one: proc_scan.Socket) -> dict[str, object]:
    return {
        "pid": one.pid,
        "kind": one.proto,
        "local": _local(one),
        "port": one.port,
    }


def _local(one: proc_scan.Socket) -> str:
    return one.address if one.port is None else f"{one.address}:{one.port}"
