"""The cost of each session in memory: what it pins, for how long, and for which operator (R8).

Memory is anonymous and shared memory of the session's processes and of its keeper, as the kernel
counts it for each process. Memory that processes share after a fork counts for each of them, so the
figure is an upper bound. Caches of files are not counted: the kernel drops them by itself.

A round reads /proc for all sessions. The result is kept for FRESH_S, and longer if a round takes
long, so that rounds use at most 1/SHARE of the time, however often operators ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from holdfast.home import Home
from holdfast.host.lifecycle.disk_usage import measure
from holdfast.host.processes import proc_scan
from holdfast.host.processes.halt import Halter
from holdfast.host.processes.process import read_short
from holdfast.host.residency.activity import cpu_seconds
from holdfast.host.runtime.notify import log_errors
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.session.session import Session

FRESH_S: Final = 5.0
SHARE: Final = 20
DISK_FRESH_S: Final = 60.0
SILENT_S: Final = 3600.0  # a detached session without output for so long counts as idle
_MEMORY: Final = (b"RssAnon:", b"RssShmem:")
_SWAP: Final = b"VmSwap:"


class Cost(NamedTuple):
    """`disk`: spool, checkpoints and own directories, in bytes. `since`: of this incarnation."""

    memory: int
    swap: int
    cpu_s: float
    disk: int
    since: float
    maker: str


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def home(self) -> Home: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...


class Costs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.last: dict[str, Cost] = {}
        self._at, self._took = 0.0, 0.0  # of the last round
        self._disk: dict[str, tuple[float, int]] = {}  # when measured, bytes
        self._round: asyncio.Task[None] | None = None
        self._tasks = Tasks("the cost of sessions")

    def close(self) -> None:
        self._tasks.cancel()

    async def fresh(self) -> dict[str, Cost]:
        """The costs by session; callers at the same time share a round."""
        if self.stale and self._round is None:
            self._round = self._tasks.spawn(self._measure())
            self._round.add_done_callback(self._over)
        if self._round is not None:
            await asyncio.wait({self._round})
        return self.last

    def refresh(self) -> None:
        """Begin a round if the last is old, without waiting for it."""
        if self.stale and self._round is None:
            self._round = self._tasks.spawn(self._measure())
            self._round.add_done_callback(self._over)

    @property
    def measured(self) -> bool:
        """Whether a round is over, so that `last` says something."""
        return self._at > 0.0

    @property
    def stale(self) -> bool:
        return time.monotonic() - self._at > max(FRESH_S, SHARE * self._took)

    def _over(self, _: object) -> None:
        self._round = None

    async def _measure(self) -> None:
        with log_errors("the cost of sessions"):
            began = time.monotonic()
            sessions = [one for one in self._engine.sessions.values() if not one.ending]
            self.last = await asyncio.to_thread(self._measured, sessions)
            self._at = time.monotonic()
            self._took = self._at - began

    def _measured(self, sessions: Iterable[Session]) -> dict[str, Cost]:
        found = dict[str, Cost]()
        for session in sessions:
            with contextlib.suppress(OSError, ValueError):
                found[session.id] = self._cost(session)
        self._disk = {id: one for id, one in self._disk.items() if id in found}
        return found

    def _cost(self, session: Session) -> Cost:
        processes = proc_scan.of_session(session.keeper_pid)
        memory = swap = 0
        for pid in (session.keeper_pid, *(one.pid for one in processes)):
            pinned, swapped = resident(pid)
            memory, swap = memory + pinned, swap + swapped
        return Cost(
            memory,
            swap,
            round(cpu_seconds(session, self._engine.halter.groups, processes), 2),
            self.disk(session.id),
            began_at(session.record.root_start) or session.record.created,
            str(session.label.get("by", "")),
        )

    def disk(self, session: str) -> int:
        """Bytes on the disk; blocks. Measured again after DISK_FRESH_S."""
        at, size = self._disk.get(session, (-DISK_FRESH_S, 0))
        if time.monotonic() - at >= DISK_FRESH_S:
            home = self._engine.home
            paths = (
                f"{home.state}/checkpoints/{session}",
                f"{home.state}/contained/{session}",
                f"{home.spool}/{session}",
            )
            size = measure([path for path in paths if os.path.exists(path)]).size
            self._disk[session] = time.monotonic(), size
        return size

    def silent(self, among: Collection[str]) -> list[str]:
        """The measured sessions among these that are detached and silent for SILENT_S."""
        now, sessions = time.monotonic(), self._engine.sessions
        return [
            id
            for id in self.last
            if id in among
            and (one := sessions.get(id)) is not None
            and not one.viewers
            and now - one.last_activity >= SILENT_S
        ]


def resident(pid: int) -> tuple[int, int]:
    """Bytes of memory that the process pins, and bytes that are swapped out."""
    memory = swap = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in read_short(f"/proc/{pid}/status").splitlines():
            if line.startswith(_MEMORY):
                memory += int(line.split()[1]) << 10
            elif line.startswith(_SWAP):
                swap = int(line.split()[1]) << 10
    return memory, swap


def began_at(ticks: int) -> float:
    """The time of a process's start, in seconds since 1970; 0 if it is not known."""
    if not ticks:
        return 0.0
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(boot + ticks / proc_scan.TICKS, 3)
