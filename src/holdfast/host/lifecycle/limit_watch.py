"""Watches the limits that the kernel does not keep, and reports processes killed for memory.

- **Processes**, where neither control group nor RLIMIT_NPROC bounds them (root without the pids
  controller): the host counts reported forks, and halts a session above its limit. With a control
  group one order freezes even a fork bomb; the bomb has some hundred processes more by then.
- **Disk**: the host measures the session's own directories. It tells attached clients at NEAR of
  the limit, and halts the session at the limit. After a resume the session may run, so that files
  can be removed there, and is halted again if its size has grown.
- **The file system of the home**: below RESERVE the host halts the contained session that wrote
  most since the last look, and looks again. So sessions stop before the host cannot write its
  database. The kernel counts what a process writes, wherever: also into the workspace, or into
  files that were removed while open.
- **Memory**: the kernel counts the processes that it killed for memory, by control group and for
  the whole machine. If a process of a session dies by SIGKILL and the count has risen, the event
  names the process, its act and its operator. If more processes died than were counted, or only
  the machine's count is known, the event says that it is not sure. Where the kernel reports no
  exits, a look compares the counter, and names the processes that are gone, not being sure.

The host looks every LOOK_S while a program runs in a limited session, and if the kernel reports no
forks; else every IDLE_LOOK_S. A walk through the session's directories takes at most 1/WALK_SHARE
of the time, in small steps. So do the walks of all sessions together, unless a session would then
be measured less often than every IDLE_LOOK_S. A directory that programs closed is measured all the
same (disk_usage.py). If even that is not possible, an event says so, and the rest counts: a program
may close a directory for good reasons, and the file system of the home is watched in any case.

Not bound: the number of files, and the rate of writing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.core.record.record import host_fact
from holdfast.core.session.limits import CGROUP, WATCH, oom_kills
from holdfast.host.lifecycle import limits
from holdfast.host.lifecycle.disk_usage import measure
from holdfast.host.processes import process
from holdfast.host.processes.halt import Halter, execution
from holdfast.host.processes.process import read_proc
from holdfast.host.runtime.notify import log_errors
from holdfast.host.runtime.tasks import Tasks
from holdfast.model import sizes
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.core.originators.lineage import Member
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal

LOOK_S: Final = 2.0
IDLE_LOOK_S: Final = 60.0
WALK_S: Final = 5.0  # between two walks through the directories of a session
WALK_SHARE: Final = 50
NEAR: Final = 0.8
RESERVE_BYTES, RESERVE_SHARE = 2 << 30, 20  # the smaller one of 2 GiB and a twentieth
WRITER_BYTES: Final = 1 << 20  # a session that wrote less since the last look fills no disk
KILLED_S: Final = 0.05  # kills are reported together: one reading of the counter
KILLED_SHOWN: Final = 16
PATH_CHARS: Final = 256  # of a path in an event
_SIGKILL: Final = 9


@dataclass(frozen=True, slots=True)
class Space:
    """The file system of the home, in bytes."""

    free: int
    whole: int

    @property
    def reserve(self) -> int:
        return min(RESERVE_BYTES, self.whole // RESERVE_SHARE)


@dataclass(slots=True)
class _Watched:
    session: Session
    processes: int | None  # the limit, if this module keeps it
    disk: int | None
    memory: bool  # the kernel bounds the session's memory
    kills: int | None = None  # the counter at the last reading; None: not read yet
    killed: list[tuple[int, Member | None, str]] = field(default_factory=list)
    checking: bool = False
    halting: bool = False
    near: bool = False  # clients were told
    closed: str = ""  # a directory that could not be measured; an event was sent
    halted_at: int = 0  # the size at the last halt
    walk_at: float = 0.0  # when the next walk is due
    written: int | None = None  # bytes, as the kernel counts for the living processes


class LimitWatch:
    """One per host.

    `name_of`: the name of a program that has exited, if known. `told`: whether the kernel reports
    exits.
    """

    def __init__(
        self,
        state: str,
        halter: Halter,
        journal: Journal,
        name_of: Callable[[str, int], str] = lambda session, pid: "",
        told: Callable[[], bool] = lambda: True,
        space: Callable[[], Space] | None = None,
    ) -> None:
        self._state, self._halter, self._journal = state, halter, journal
        self._name_of, self._told = name_of, told
        self._space = space or (lambda: space_of(state))
        self._watched: dict[str, _Watched] = {}
        self._tasks = Tasks("the limits of sessions")
        self._timer: asyncio.TimerHandle | None = None
        self._looking = self._closing = False

    def begin(self, session: Session) -> None:
        kept = limits.of_label(session.label)
        watched = self._watched[session.id] = _Watched(
            session,
            _limit_of(kept, "processes"),
            _limit_of(kept, "disk"),
            kept.get("memory", {}).get("by") == CGROUP,
        )
        if watched.memory and session.state == "creating":
            watched.kills = 0  # a new group: a program may be killed before this host looks
        else:
            self._tasks.spawn(self._read_kills(watched))
        self._soon()

    def end(self, session: Session) -> None:
        self._watched.pop(session.id, None)

    def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    # ------------------------------------------------------------ processes

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        watched = self._watched.get(session.id)
        if watched is None:
            return
        if what == "started":
            self._count(watched, len(session.commands.lineage.members))
            self._soon()
        elif status is not None and status & 0x7F == _SIGKILL and not session.ending:
            if len(watched.killed) < KILLED_SHOWN:
                watched.killed.append((pid, was, self._program(session, pid)))
            if not watched.checking:
                watched.checking = True
                self._tasks.spawn(self._report_killed(watched))

    def _count(self, watched: _Watched, count: int) -> None:
        if watched.processes is not None and count > watched.processes:
            self._tasks.spawn(self._halt(watched, "processes", count, watched.processes))

    def _program(self, session: Session, pid: int) -> str:
        found = process.read_stat(pid)  # a zombie still has its name
        return found.comm if found is not None else self._name_of(session.id, pid)

    async def _read_kills(self, watched: _Watched) -> bool:
        """Reads the counter; returns whether it is the session's own."""
        own, watched.kills = await self._halter.in_thread(self._kills, watched.session)
        return own

    def _kills(self, session: Session) -> tuple[bool, int]:
        group = self._halter.groups.find(session.id, session.record.root_pid)
        if group and (count := self._halter.groups.oom_kills(group)) is not None:
            return True, count
        try:
            return False, oom_kills(read_proc("/proc/vmstat", 1 << 20).decode())
        except OSError:
            return False, 0

    async def _report_killed(self, watched: _Watched) -> None:
        await asyncio.sleep(KILLED_S)
        watched.checking = False
        killed, watched.killed = watched.killed, []
        count, own = await self._rise(watched)
        if count:
            self._say_killed(watched, killed, own, own and len(killed) <= count)

    async def _find_killed(self, watched: _Watched) -> None:
        count, own = await self._rise(watched)
        if count:
            lineage = watched.session.commands.lineage
            members = {pid: lineage.member(pid) for pid in lineage.members}
            gone = await self._halter.in_thread(_gone, members)
            found = [(pid, members[pid], self._name_of(watched.session.id, pid)) for pid in gone]
            self._say_killed(watched, [*found[:KILLED_SHOWN]] or [(None, None, "")], own, False)

    async def _rise(self, watched: _Watched) -> tuple[int, bool]:
        """How many kills the counter has more, and whether it is the session's own."""
        before = watched.kills
        own = await self._read_kills(watched)
        return (0 if before is None or watched.kills is None else watched.kills - before), own

    def _say_killed(
        self,
        watched: _Watched,
        killed: Iterable[tuple[int | None, Member | None, str]],
        own: bool,
        sure: bool,
    ) -> None:
        session = watched.session
        limit = limits.of_label(session.label).get("memory", {}).get("limit") if own else None
        for pid, was, program in killed:
            session.event(
                "process.killed_for_memory",
                pid=pid,
                program=program,
                actor=was.cause.actor if was is not None else "unknown",
                act=was.cause.ref(session.ref) if was is not None else None,
                limit=limit,
                sure=sure,
            )
            session.viewers.tell("killed_for_memory", program=program, pid=pid, limit=limit)
        probe("host.limits.killed")

    # ------------------------------------------------------------ looking

    def _soon(self) -> None:
        """Arranges the next look: soon if a program runs in a limited session."""
        if self._closing or self._looking or not any(map(_is_limited, self._watched.values())):
            return
        loop = asyncio.get_running_loop()
        busy = not self._told() or any(map(_is_busy, self._watched.values()))
        wait = LOOK_S if busy else IDLE_LOOK_S
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= loop.time() + wait:
                return
            self._timer.cancel()
        self._timer = loop.call_later(wait, self._look_now)

    def _look_now(self) -> None:
        self._timer, self._looking = None, True
        self._tasks.spawn(self._look())

    async def _look(self) -> None:
        try:
            with log_errors("the limits of sessions"):
                await self.look()
        finally:
            self._looking = False
            self._soon()

    async def look(self) -> None:
        """Measures once, and halts sessions that are above a limit."""
        space = await self._halter.in_thread(self._space)
        if space.free < 2 * space.reserve:
            await self._find_writers(space)
        for watched in [*self._watched.values()]:
            if watched.memory and not self._told():
                await self._find_killed(watched)
            if watched.processes is not None:
                count = await self._halter.in_thread(self._counted, watched.session)
                self._count(watched, count)
            if watched.disk is not None and watched.walk_at <= time.monotonic():
                await self._measure(watched, watched.disk)
        probe("host.limits.looked")

    def _counted(self, session: Session) -> int:
        """Processes and threads: forks alone do not tell of threads."""
        group = self._halter.groups.find(session.id, session.record.root_pid)
        return self._halter.groups.threads(group) if group else 0

    # ------------------------------------------------------------ disk

    async def _measure(self, watched: _Watched, limit: int) -> None:
        session, began = watched.session, time.monotonic()
        kept = session.label.get("kept")  # a home that stays, with its temporary files
        own = (f"{self._state}/contained/{session.id}", *((str(kept),) if kept else ()))
        paths = (*own, str(session.writable_directory))
        found = await session.in_thread(measure, paths, lambda: self._closing)
        now = time.monotonic()
        watched.walk_at = now + walk_pause(now - began, len(self._watched))
        if found.closed and found.closed != watched.closed:
            path = found.closed[:PATH_CHARS].encode("utf-8", "backslashreplace").decode()
            session.event("limit.unmeasured", resource="disk", path=path)
        watched.closed = found.closed
        if found.size < NEAR * limit:
            watched.near, watched.halted_at = False, 0
        if found.size >= limit:
            if found.size > watched.halted_at:
                watched.halted_at = found.size
                await self._halt(watched, "disk", found.size, limit)
        elif found.size >= NEAR * limit and not watched.near:
            watched.near = True
            session.event("limit.near", resource="disk", used=found.size, limit=limit)
            session.viewers.tell("limit_near", resource="disk", used=found.size, limit=limit)

    async def _find_writers(self, space: Space) -> None:
        """Counts what contained sessions write; below the reserve, halts the one with the most."""
        wrote: list[tuple[int, _Watched]] = []
        for watched in [*self._watched.values()]:
            if watched.session.layout.get("layout") != "contained" or not _runs(watched):
                continue
            members = tuple(watched.session.commands.lineage.members)
            before = watched.written
            watched.written = await watched.session.in_thread(written_by, members)
            if before is not None:
                wrote.append((watched.written - before, watched))
        most = max(wrote, key=lambda pair: pair[0], default=None)
        if space.free < space.reserve and most is not None and most[0] >= WRITER_BYTES:
            why = (
                f"only {sizes.show(space.free)} are free where Holdfast keeps its record, and "
                "this session wrote most; free some space"
            )
            await self._halt(most[1], "free space", space.free, space.reserve, why)

    # ------------------------------------------------------------ halt

    async def _halt(
        self, watched: _Watched, resource: str, used: int, limit: int, why: str = ""
    ) -> None:
        session = watched.session
        if watched.halting or not _runs(watched):
            return
        watched.halting = True
        try:
            done = await self._halter.halt(execution(session), lambda: session.ring.accepted)
            because = why or reason(resource, used, limit)
            if _runs(watched):
                session.change(
                    "halted",
                    operator="host",
                    how=done.how,
                    took_ms=done.took_ms,
                    complete=done.complete,
                    act=done.last_act,
                    because=because,
                )
            session.event("limit.reached", resource=resource, used=used, limit=limit)
            session.viewers.tell("halted", operator="host", how=done.how, because=because)
            facts = {"how": done.how, "complete": done.complete, "because": because}
            self._journal.post(
                host_fact(session.id, session.record.epoch, "halt", "host", "host", facts=facts)
            )
        finally:
            watched.halting = False
        probe("host.limits.halted")


def reason(resource: str, used: int, limit: int) -> str:
    """Why a session was halted, and how to go on."""
    if resource == "processes":
        return f"it has {used} processes, and its limit is {limit}; end some before you resume it"
    return (
        f"its own files have {sizes.show(used)}, and its limit is {sizes.show(limit)}; "
        "resume it and remove files"
    )


def _limit_of(kept: dict[str, dict[str, object]], name: str) -> int | None:
    one = kept.get(name, {})
    limit = one.get("limit")
    return limit if one.get("by") == WATCH and isinstance(limit, int) else None


def _runs(watched: _Watched) -> bool:
    return watched.session.state in ("live", "detached") and not watched.session.ending


def _is_limited(watched: _Watched) -> bool:
    return watched.disk is not None or watched.processes is not None or watched.memory


def walk_pause(took_s: float, sessions: int) -> float:
    """The time between two walks of a session; `sessions`: so many share the time for walks."""
    together = min(IDLE_LOOK_S, WALK_SHARE * took_s * sessions)
    return max(WALK_S, WALK_SHARE * took_s, together)


def _is_busy(watched: _Watched) -> bool:
    """Whether more than a shell at its prompt runs in the session."""
    session, commands = watched.session, watched.session.commands
    if not _is_limited(watched) or session.state == "halted" or session.ending:
        return False
    idle = commands.kind in ("bash", "zsh") and commands.shell.at_prompt
    return not idle or len(commands.lineage.members) > 1


def _gone(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if (one := process.read_stat(pid)) is None or one.state in "ZX"]


def space_of(path: str) -> Space:
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def written_by(pids: Iterable[int]) -> int:
    """The bytes that these processes, and children they waited for, caused to be written."""
    total = 0
    for pid in pids:
        try:
            text = read_proc(f"/proc/{pid}/io").decode()
            total += int(text.partition("\nwrite_bytes: ")[2].split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return total
