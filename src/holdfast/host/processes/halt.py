"""Halts a session: stops all its processes at once; and resumes them, unnoticed by the shell (A4).

There are three ways; a session uses the first that is available (core/session/halt.py has the
words):
- "cgroup freeze": the host freezes the session's control group. The host moves descendants that
  left the group back, and they freeze on arrival. In a contained session no process can leave.
- "pid namespace stop": the keeper orders process 1 of the session's pid namespace, over a socket
  that these two share. Process 1 sends SIGSTOP to all other processes in one system call, and then
  holds every thread by ptrace until the resume.
- "best effort": the host sends SIGSTOP to all processes below the keeper, until none runs.

This module stores no state. It reads from the kernel which way a session has, and whether the
session is halted. So if a host dies while a session is halted, the next host can resume the
session.

A halt needs no cooperation: no turn, policy, record or free disk. Threads of this module make the
calls to the kernel. So a busy host hardly delays a halt, and a slow kernel does not delay the host.
`complete` says whether the kernel confirmed the halt. If False, `missed` names the processes that
still ran when the time was over: in an uninterruptible wait, or of a different user (after sudo)
without a control group.

A halt is a commit horizon: it undoes nothing, and completed effects of programs remain. `last_act`
is the last input that the session had taken when it stood still.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from holdfast.core.session import halt as rules
from holdfast.core.session.halt import BEST_EFFORT, FREEZE, NAMESPACE, How, Member
from holdfast.host.processes import proc_scan
from holdfast.host.processes.cgroups import Groups
from holdfast.host.processes.init_orders import order, send
from holdfast.host.processes.process import half, read_proc, read_stat
from holdfast.host.runtime.priority import join, ordinary, prefer, raised, short_slice
from holdfast.host.runtime.threads import Pool

if TYPE_CHECKING:
    from holdfast.host.processes.interfaces import SessionProcesses

HALT_WAIT_S = 2.0  # for the kernel to confirm the halt; after that `complete` is False
PREFER_AFTER_S = 0.002  # processes that still run after this time get a higher priority
RELEASE_WAIT_S = 0.5  # for released processes to stop again
QUIET_S = 5.0  # for CRIU to save a session; the pause of several GB, or on a busy machine
END_WAIT_S = 5.0  # for all processes to die
FETCH_ROUNDS = 8  # a process outside the group may fork before it is moved
SETTLE_S = 0.1  # for processes that were told to stop, before all are looked at again
# Between looks at processes that stop one after the other: the kernel has no event for that.
PAUSE_S, PAUSE_SETTLE_S, PAUSE_MAX_S = 0.0005, 0.002, 0.01
SHELLS_S = 0.1  # the longest wait of a halt for shells to stop before their jobs do
SHELL_LOOKS = 32  # processes that are looked at for shells before all are stopped at once
PROCESSES_MAX = 65_536
# The kernel gives at most this much of a list of children per read. A read below half is the last.
CHILDREN_BYTES = 4096
THREADS = 256  # most threads never start

T = TypeVar("T")
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Execution:
    """The part of a session that a halt needs."""

    session: str
    keeper_pid: int
    root_pid: int


@dataclass(frozen=True, slots=True)
class Halted:
    how: How
    pids: tuple[int, ...]  # stopped processes, as this machine numbers them
    took_ms: float
    complete: bool
    last_act: int
    missed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    how: How
    pids: tuple[int, ...]
    took_ms: float
    complete: bool


def execution(session: SessionProcesses) -> Execution:
    return Execution(session.id, session.keeper_pid, session.record.root_pid)


class Halter:
    """Halts and resumes the sessions of a host.

    `spared` names descendants of a session that a halt must never stop: the host, the nursery and
    the keepers, if an operator started them inside the session.
    """

    def __init__(self, state: str, spared: Callable[[], Iterable[int]] = lambda: ()) -> None:
        self.groups = Groups(state)
        self._spared = spared
        self._pool = Pool(THREADS, "halt", short_slice)
        self.dumping = dict[str, asyncio.Future[None]]()  # sessions that stand still for CRIU
        self.fenced = set[str]()  # sessions without a lease: no resume reaches them (host/leases)

    # ------------------------------------------------------------ for the host's loop

    async def halt(self, execution: Execution, last_act: Callable[[], int] = lambda: 0) -> Halted:
        """Halts a session.

        The order to freeze goes out at once, on the caller's thread, without waiting. From then on
        no program of the session does anything (measured: mostly 0.3 ms after the request). A
        thread waits for the kernel's confirmation. Meanwhile the whole host runs with raised
        priority: a thread cannot go on while another thread holds the interpreter lock and gets no
        processor.
        """
        begin = time.monotonic()
        await self.quiet(execution.session)
        with raised(True):
            group = self.groups.find(execution.session, execution.root_pid)
            if group:
                self.groups.order(group)
            return await self.in_thread(_joining, self.halt_now, execution, last_act, begin)

    async def quiet(self, session: str) -> None:
        """Wait while CRIU works on a session: a halt or resume in between would hold CRIU up.

        The processes stand still meanwhile. After QUIET_S the caller goes on nevertheless.
        """
        if (dump := self.dumping.get(session)) is not None:
            await asyncio.wait({dump}, timeout=QUIET_S)

    async def resume(self, execution: Execution) -> Resumed:
        """Lets the processes go on, unless the session is fenced."""
        await self.quiet(execution.session)
        if execution.session in self.fenced:
            return Resumed(BEST_EFFORT, (), 0.0, False)
        with raised(True):  # otherwise the resumed programs would delay the answer
            resumed: Resumed = await self.in_thread(_joining, self.resume_now, execution)
        await self.keep_fenced(execution)
        return resumed

    async def keep_fenced(self, execution: Execution) -> None:
        """After processes went on: halt them again if the session was fenced meanwhile."""
        if execution.session in self.fenced:
            await self.halt(execution)

    async def end(self, execution: Execution) -> bool:
        """Kills all processes, halted or not; returns whether none is left."""
        return await self.in_thread(self.end_now, execution)

    async def halted(self, execution: Execution) -> How | None:
        """How the session is halted right now; None if the session is not halted."""
        return await self.in_thread(self.halted_now, execution)

    async def layout(self, execution: Execution) -> dict[str, str]:
        return await self.in_thread(self.layout_now, execution)

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, functools.partial(work, *arguments)
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def spared(self) -> set[int]:
        return {os.getpid(), *self._spared()}

    # ------------------------------------------------------------ the layout of the session

    def way(self, execution: Execution) -> tuple[How, str, int]:
        """The way to halt, the session's group, and process 1 of its pid namespace (0: none)."""
        group = self.groups.find(execution.session, execution.root_pid)
        init = _init(execution)
        return (FREEZE if group else NAMESPACE if init else BEST_EFFORT), group, init

    def layout_now(self, execution: Execution) -> dict[str, str]:
        """{"layout": "plain" | "contained", "halt": how, "says": a sentence}.

        For `ls`, `who` and `attach`.
        """
        how, _, init = self.way(execution)
        return {
            "layout": "contained" if init else "plain",
            "halt": how,
            "says": rules.says(bool(init), how),
        }

    def halted_now(self, execution: Execution) -> How | None:
        how, group, init = self.way(execution)
        if group and self.groups.frozen(group):
            return how
        if rules.all_stopped(self._members(execution, init)):
            return NAMESPACE if init else BEST_EFFORT
        return None

    # ------------------------------------------------------------ halt

    def halt_now(
        self,
        execution: Execution,
        last_act: Callable[[], int] = lambda: 0,
        since: float | None = None,
    ) -> Halted:
        begin = time.monotonic() if since is None else since
        how, group, init = self.way(execution)
        if group:
            pids, missed = self._freeze(execution, group, init)
        else:
            pids, missed = self._stop(execution, init)
        pids -= {init, _hf_root(execution, init)}
        took = (time.monotonic() - begin) * 1000
        return Halted(
            how, tuple(sorted(pids)), round(took, 3), not missed, last_act(), tuple(sorted(missed))
        )

    def _freeze(self, execution: Execution, group: str, init: int) -> tuple[set[int], set[int]]:
        frozen = self.groups.freeze(group, True, PREFER_AFTER_S)
        inside = self.groups.pids(group)
        if not frozen:
            prefer(inside)
            frozen = self.groups.freeze(group, True, HALT_WAIT_S)
            inside = self.groups.pids(group)
            ordinary(inside)
        missed: set[int] = set()
        for _ in range(FETCH_ROUNDS if not init else 0):
            strays = {pid for pid in self._pids(execution, 0) if pid not in inside}
            missed = {one.pid for one in look(strays) if one.state not in "ZX"}
            if not missed:
                break
            missed = {pid for pid in missed if not self.groups.fetch(group, pid)}
            frozen = self.groups.freeze(group, True, HALT_WAIT_S)
            inside = self.groups.pids(group)
        if not frozen:
            missed |= {one.pid for one in look(inside) if one.running and not _frozen(one.pid)}
        return inside - missed, missed

    def _stop(self, execution: Execution, init: int) -> tuple[set[int], set[int]]:
        """Stops processes top down; returns the stopped and the running pids.

        Top down, because a stopped process forks no more, and shells must stop before their jobs.
        In a namespace, the descent ends where shells are unlikely; then all stop at once. The host
        reads little before that: among many busy processes, the host gets little processor time.
        """
        deadline, pause = time.monotonic() + HALT_WAIT_S, PAUSE_S
        root = look((execution.root_pid,))
        # Otherwise the session is halted already, or the shell is gone: no process to mark.
        fresh = bool(root) and root[0].state not in "Tt"
        refused: set[int] = set()
        if fresh or not rules.all_stopped(self._members(execution, init)):
            if init:
                self._descend([execution.root_pid], fresh, SHELL_LOOKS)
                order(execution.keeper_pid, init, True)
            else:
                refused = self._descend(of_session(execution.keeper_pid), fresh, PROCESSES_MAX)
        dead: set[int] = set()
        all_stopped = False
        while True:
            members, moved = self._walk(execution, init)
            running = {one.pid for one in members if one.running}
            before, all_stopped = all_stopped, not running - refused
            known, dead = dead, {one.pid for one in members if one.state in "ZX"}
            # In a namespace one walk is not enough: a process that is read later may continue one
            # that was read earlier. The next walk finds that process running.
            seen_twice = before if init else not moved and dead <= known
            if (all_stopped and seen_twice) or time.monotonic() > deadline:
                break
            # In a namespace, process 1 gets some time to stop the others first.
            if running and (not init or pause == PAUSE_MAX_S):
                refused |= {pid for pid in running if not stop_threads(pid)}
            if running and init:  # no new process can have appeared
                pause = _settled(running - refused, pause)
            elif running:
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
        return {one.pid for one in members if not one.running and one.state not in "ZX"}, running

    def _descend(self, tops: list[int], fresh: bool, limit: int) -> set[int]:
        """Stops the processes in `tops` and all their descendants.

        If `fresh`, marks processes that were stopped before. Returns the processes that this
        account may not stop.
        """
        spared, deadline = self.spared(), time.monotonic() + SHELLS_S
        refused: set[int] = set()
        todo = look(pid for pid in tops if pid not in spared)
        for one in todo:  # the list grows during the loop
            stopped = one.state == "T" or one.pending & rules.SIGSTOP_BIT  # the latter by CRIU
            if fresh and stopped and not one.stopped_before and one.mark:
                send(one.pid, one.mark)
            elif one.running and not send(one.pid, signal.SIGSTOP):
                refused.add(one.pid)
            found = children(one.pid)[: max(0, limit - len(todo))]
            below = look(pid for pid in found if pid not in spared)
            if any(child.session == one.session and child.group != one.group for child in below):
                while (
                    any(shell.running for shell in look((one.pid,))) and time.monotonic() < deadline
                ):
                    time.sleep(PAUSE_S / 2)
            todo += below
        return refused

    def keep_halted(self, execution: Execution) -> How:
        """Halt a restored session, whose processes begin stopped by SIGSTOP."""
        how, group, init = self.way(execution)
        if group:
            self.groups.freeze(group, True, HALT_WAIT_S)
            for pid in rules.to_continue(self._members(execution, init)):  # frozen, not stopped
                send(pid, signal.SIGCONT)
        elif init:
            order(execution.keeper_pid, init, True)
        return how

    # ------------------------------------------------------------ resume, end

    def resume_now(self, execution: Execution) -> Resumed:
        begin = time.monotonic()
        how, group, init = self.way(execution)
        if group and self.groups.frozen(group):
            pids = self.groups.pids(group)
            ordinary(pids)  # an earlier host may have died before this step
            done = self.groups.freeze(group, False, HALT_WAIT_S)
        else:
            pids, done = set(), True
            for pid in rules.to_continue(self._released(execution, init)):
                if send(pid, signal.SIGCONT):
                    pids.add(pid)
                else:
                    done = False
        pids -= {init, _hf_root(execution, init)}
        return Resumed(how, tuple(sorted(pids)), round((time.monotonic() - begin) * 1000, 3), done)

    def _released(self, execution: Execution, init: int) -> list[Member]:
        """The processes, stopped but no longer held by process 1.

        A released process takes a moment to stop again. Until then its mark cannot be seen.
        """
        if not init:
            return self._members(execution, init)
        order(execution.keeper_pid, init, False)
        deadline = time.monotonic() + RELEASE_WAIT_S
        while True:
            members = self._members(execution, init)
            if not any(one.running for one in members) or time.monotonic() > deadline:
                return members
            time.sleep(PAUSE_S)

    def end_now(self, execution: Execution) -> bool:
        deadline = time.monotonic() + END_WAIT_S
        _, group, init = self.way(execution)
        if group and not self.groups.kill(group):
            for pid in self.groups.pids(group):  # SIGKILL reaches frozen processes too
                send(pid, signal.SIGKILL)
        if init:
            send(init, signal.SIGKILL)  # the kernel then kills the whole namespace
        pause = PAUSE_S
        while alive := [one for one in self._members(execution, 0) if one.state not in "ZX"]:
            for one in alive:
                send(one.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
        return True

    # ------------------------------------------------------------ looking

    def _members(self, execution: Execution, init: int) -> list[Member]:
        return self._walk(execution, init)[0]

    def _walk(self, execution: Execution, init: int) -> tuple[list[Member], bool]:
        """The session's processes, parents first, and whether a process vanished during the walk.

        Leaves out the session's init and spared processes. Each process is read before its
        children, so the list of children of a stopped process is complete.
        """
        found: list[Member] = []
        moved = False
        for pid in self._pids(execution, init):
            one = look((pid,))
            found += one
            moved = moved or not one
        return found, moved

    def _pids(self, execution: Execution, init: int) -> Iterator[int]:
        """Parents first; reads the children of a process when the caller asks for the next pid."""
        spared = self.spared()
        todo = children(init) if init else of_session(execution.keeper_pid)
        seen = {*todo, *spared}
        for pid in todo:  # the list grows during the loop
            if pid in spared:
                continue
            yield pid
            fresh = [child for child in children(pid) if child not in seen]
            todo += fresh[: max(0, PROCESSES_MAX - len(todo))]
            seen.update(fresh)


def _joining(work: Callable[..., T], *arguments: object) -> T:
    join()
    return work(*arguments)


def look(pids: Iterable[int]) -> list[Member]:
    found: list[Member] = []
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            one = rules.member(pid, read_proc(f"/proc/{pid}/status").decode("utf-8", "replace"))
            if one.threads > 1 and not one.running:
                one = rules.with_threads(one, _thread_states(pid))
            found.append(one)
    return found


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _thread_states(pid: int) -> Iterator[str]:
    for thread in _threads(pid):
        with contextlib.suppress(OSError, IndexError):
            stat = read_proc(f"/proc/{pid}/task/{thread}/stat").decode("utf-8", "replace")
            yield stat.rpartition(")")[2].split()[0]


def _settled(running: Iterable[int], pause: float) -> float:
    """Returns when none of these runs, or after a while; the result is the next pause."""
    patience = time.monotonic() + SETTLE_S
    while True:
        time.sleep(pause)
        running = [one.pid for one in look(running) if one.running]
        if not running:
            return PAUSE_S
        if time.monotonic() > patience:
            return PAUSE_MAX_S
        pause = min(2 * pause, PAUSE_SETTLE_S)


def _init(execution: Execution) -> int:
    """The pid of process 1 in the session's own pid namespace; 0 if the session has no namespace.

    The pid is the number in this process's namespace.
    """
    own = look((os.getpid(),))
    depth = len(own[0].namespaced) if own else 1
    seen: set[int] = set()
    pids = [execution.root_pid]
    while pids and len(seen) < 64:
        (one,) = look(pids) or (None,)
        if one is None:
            break
        if len(one.namespaced) > depth and one.namespaced[depth] == 1:
            return one.pid
        if (
            one.pid == execution.root_pid
            and one.parent == execution.keeper_pid
            and len(one.namespaced) == depth
        ):
            return 0  # the root process itself, without a namespace of its own
        seen.add(one.pid)
        pids = (
            [one.parent]
            if len(one.namespaced) > depth and one.parent > 1 and one.parent not in seen
            else []
        )
    # The root has ended, but other processes go on.
    for child in look(children(execution.keeper_pid)):
        if len(child.namespaced) > depth and child.namespaced[depth] == 1:
            return child.pid
    return 0


def _hf_root(execution: Execution, init: int) -> int:
    """The pid of hf-root, which runs no program of the session; 0 if there is none."""
    if not init:
        return proc_scan.hf_root(execution.keeper_pid)
    return next((one.pid for one in look(children(init)) if one.namespaced[-1:] == (2,)), 0)


def of_session(keeper_pid: int) -> list[int]:
    """The uppermost processes of a session, without hf-root and connector, as in proc_scan."""
    found = list[int]()
    for one in filter(None, map(read_stat, children(keeper_pid))):
        if proc_scan.is_hf_root(one, keeper_pid):
            found += children(one.pid)
        elif one.session != keeper_pid:
            found.append(one.pid)
    return found


def children(pid: int) -> list[int]:
    """The children of all threads of a process.

    Most processes have a single thread, numbered like the process. The link count of the task
    directory shows that without listing the directory.
    """
    found: list[int] = []
    tasks = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in (str(pid),) if os.stat(tasks).st_nlink == 3 else os.listdir(tasks):
            fd = os.open(f"{tasks}/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                words = piece = os.read(fd, CHILDREN_BYTES)
                while len(piece) > CHILDREN_BYTES // 2:
                    piece = os.read(fd, CHILDREN_BYTES)
                    words += piece
            finally:
                os.close(fd)
            found += [int(word) for word in words.split()]
    return found


def _frozen(pid: int) -> bool:
    """Whether a running process of a freezing group is frozen.

    The process then waits in `do_freezer_trap`, which some compilers inline into `get_signal`.
    """
    try:
        return not half(pid) and read_proc(f"/proc/{pid}/wchan").startswith(
            (b"do_freezer", b"get_signal")
        )
    except OSError:
        return False


def stop_threads(pid: int) -> bool:
    """Sends SIGSTOP to a process and to each of its threads; False if that is not allowed.

    Any thread takes a signal that is sent to the process. If that thread is traced, the signal
    stops only this thread, and its tracer can continue it. A thread that is not traced and gets a
    SIGSTOP of its own stops the whole process.
    """
    allowed = send(pid, signal.SIGSTOP)
    for thread in _threads(pid) if allowed else ():
        _libc.tgkill(pid, thread, int(signal.SIGSTOP))
    return allowed
