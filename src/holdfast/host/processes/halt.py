"""Halt: every process of a session stopped, now, whatever it does; and resume, so that the shell does not know (A4).

Three ways, the first that the session has (core/halt.py has the words):
- "cgroup freeze": its control group is frozen. Descendants that left it are fetched back into it, where they freeze on
  arrival. In a contained session none can leave.
- "pid namespace stop": process 1 of its pid namespace sends SIGSTOP to all others in one system call.
- "best effort": SIGSTOP to all below the keeper, again and again until nobody runs.

Nothing is remembered here: which way a session has, and whether it is halted, is read from the kernel each time. So a host
that dies while a session is halted finds it halted, and its successor can resume it.

Not cooperative: no turn, policy, record or free disk is needed. What is asked of the kernel is asked in threads of this
module's own, so that neither can a busy host delay a halt much, nor a slow kernel the host. `complete` is what the kernel
confirmed, not what was hoped: False names in `missed` who still ran when the time was over (in an uninterruptible wait;
or another user's, after sudo, without a control group).

It is a commit horizon, not a time machine: what programs had done is done. `last_act` is the last input that the session
had taken when it stood still.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from holdfast.core import halt as rules
from holdfast.core.halt import BEST_EFFORT, FREEZE, NAMESPACE, How, Member
from holdfast.host.groups import Groups
from holdfast.host.hurry import hurrying, join, ordinary, other, prefer, short_slice
from holdfast.host.process import half, read_proc
from holdfast.host.threads import Pool
from holdfast.wire.spawning import HALT_SIGNAL

if TYPE_CHECKING:
    from holdfast.host.session import Session

HALT_WAIT_S = 2.0  # for the kernel to confirm it; beyond it `complete` is False
PREFER_AFTER_S = 0.002  # what is not frozen by then has others before it
END_WAIT_S = 5.0  # for everything to be dead
FETCH_ROUNDS = 8  # who left the group may have children meanwhile
SETTLE_S = 0.1  # for processes that were told to stop, before all are looked at again
PAUSE_S, PAUSE_SETTLE_S, PAUSE_MAX_S = (
    0.0005,
    0.002,
    0.01,
)  # between looks at processes that stop one by one: the kernel has no event for that
SHELLS_S = (
    0.1  # for shells to stop before their jobs do: longer than that a halt does not wait for them
)
SHELL_LOOKS = 32  # processes that are looked at for shells before all are stopped at once
PROCESSES_MAX = 65_536
CHILDREN_BYTES = 4096  # the kernel gives no more of such a list at once; what is shorter by half is the end of it
_ORDERED = 1 << (HALT_SIGNAL - 1)
THREADS = 256  # most of them never start

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Execution:
    """What of a session is halted."""

    session: str
    keeper_pid: int
    root_pid: int


@dataclass(frozen=True, slots=True)
class Halted:
    how: How
    pids: tuple[int, ...]  # who stands still, as this machine numbers them
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


def execution(session: Session) -> Execution:
    return Execution(session.id, session.keeper_pid, session.record.root_pid)


class Halter:
    """One per host. `spared` names processes that are never stopped with a session though they descend from it: the host,
    its nursery and its keepers, when somebody started them inside."""

    def __init__(self, state: str, spared: Callable[[], Iterable[int]] = lambda: ()) -> None:
        self.groups = Groups(state)
        self._spared = spared
        self._pool = Pool(THREADS, "halt", short_slice)

    # ------------------------------------------------------------ for the host's loop

    async def halt(self, execution: Execution, last_act: Callable[[], int] = lambda: 0) -> Halted:
        """The order to freeze is given at once, in the caller's own time on the processor: it waits for nothing, and from then on no
        program of the session does anything (measured: mostly 0.3 ms after the request; what is waited for is that the kernel says so). What waits
        is in a thread. Meanwhile the whole host hurries: one thread cannot go on while another holds the interpreter and does not get to run."""
        begin = time.monotonic()
        with hurrying(True):
            group = self.groups.find(execution.session, execution.root_pid)
            if group:
                self.groups.order(group)
            return await self.in_thread(_joining, self.halt_now, execution, last_act, begin)

    async def resume(self, execution: Execution) -> Resumed:
        with hurrying(True):  # or those that go on would keep this from saying so
            return await self.in_thread(_joining, self.resume_now, execution)

    async def end(self, execution: Execution) -> bool:
        """Kills everything, halted or not; whether nobody is left."""
        return await self.in_thread(self.end_now, execution)

    async def halted(self, execution: Execution) -> How | None:
        """How it is halted right now, None if it is not."""
        return await self.in_thread(self.halted_now, execution)

    async def layout(self, execution: Execution) -> dict[str, str]:
        return await self.in_thread(self.layout_now, execution)

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, functools.partial(work, *arguments)
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    # ------------------------------------------------------------ what the session has

    def way(self, execution: Execution) -> tuple[How, str, int]:
        """How it would be halted; its group; process 1 of its pid namespace (0: none of its own)."""
        group = self.groups.find(execution.session, execution.root_pid)
        init = _init(execution)
        return (FREEZE if group else NAMESPACE if init else BEST_EFFORT), group, init

    def layout_now(self, execution: Execution) -> dict[str, str]:
        """{"layout": "plain" | "contained", "halt": how, "says": a sentence}: for ls, who, attach."""
        how, _, init = self.way(execution)
        mapped = bool(init) and _mapped(init)
        return {
            "layout": "contained" if init else "plain",
            "halt": how,
            "says": rules.says(bool(init), mapped, how),
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
            missed = {one.pid for one in _look(strays) if one.state not in "ZX"}
            if not missed:
                break
            missed = {pid for pid in missed if not self.groups.fetch(group, pid)}
            frozen = self.groups.freeze(group, True, HALT_WAIT_S)
            inside = self.groups.pids(group)
        if not frozen:
            missed |= {one.pid for one in _look(inside) if one.running and not _frozen(one.pid)}
        return inside - missed - {init}, missed

    def _stop(self, execution: Execution, init: int) -> tuple[set[int], set[int]]:
        """Top down, so that who is stopped forks no more and shells stop before their jobs; in a namespace only as far as shells are
        likely, then all at once. Little is looked at before that: among many busy processes this one gets little time."""
        deadline, pause = time.monotonic() + HALT_WAIT_S, PAUSE_S
        root = _look((execution.root_pid,))
        fresh = (
            bool(root) and root[0].state != "T"
        )  # else it is halted already, or its shell is no more: nothing to mark
        refused: set[int] = set()
        if fresh or not rules.all_stopped(self._members(execution, init)):
            if init:
                self._descend([execution.root_pid], fresh, SHELL_LOOKS)
                self._order(init)
            else:
                refused = self._descend(_children(execution.keeper_pid), fresh, PROCESSES_MAX)
        dead: set[int] = set()
        while True:
            members, moved = self._walk(execution, init)
            running = {one.pid for one in members if one.running}
            if not running - refused and (
                init or (not moved and {one.pid for one in members if one.state in "ZX"} <= dead)
            ):
                break  # in one look, and nobody can have changed places during it
            if time.monotonic() > deadline:
                break
            dead = {one.pid for one in members if one.state in "ZX"}
            if running and (not init or pause == PAUSE_MAX_S):  # init has had its time
                refused |= {pid for pid in running if not _signal(pid, signal.SIGSTOP)}
            if running and init:  # nobody new can have come
                pause = _settled(running - refused, pause)
            elif running:
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
        return {one.pid for one in members if not one.running and one.state not in "ZX"}, running

    def _order(self, init: int) -> None:
        """Returns when process 1 has stopped all others, or does not get to it. To look at them before would be looking twice, at the expense of
        process 1's own turn."""
        with other(init):
            _signal(init, signal.SIGCONT)
            _signal(init, HALT_SIGNAL)
            pause = PAUSE_S / 4
            while pause < PAUSE_MAX_S and any(
                one.pending & _ORDERED or one.state == "R" for one in _look((init,))
            ):
                time.sleep(pause)
                pause *= 1.5

    def _descend(self, tops: list[int], fresh: bool, limit: int) -> set[int]:
        """Stops them and all below, marks who was stopped before (if `fresh`); gives those that this account may not stop."""
        spared = {os.getpid(), *self._spared()}
        deadline = time.monotonic() + SHELLS_S
        refused: set[int] = set()
        todo = _look(pid for pid in tops if pid not in spared)
        for one in todo:  # grows while it is walked
            if one.running and not _signal(one.pid, signal.SIGSTOP):
                refused.add(one.pid)
            elif fresh and one.state == "T" and not one.stopped_before and one.mark:
                _signal(one.pid, one.mark)
            children = _look(
                pid for pid in _children(one.pid)[: max(0, limit - len(todo))] if pid not in spared
            )
            if any(child.session == one.session and child.group != one.group for child in children):
                while (
                    any(shell.running for shell in _look((one.pid,)))
                    and time.monotonic() < deadline
                ):
                    time.sleep(PAUSE_S / 2)
            todo += children
        return refused

    # ------------------------------------------------------------ resume, end

    def resume_now(self, execution: Execution) -> Resumed:
        begin = time.monotonic()
        how, group, init = self.way(execution)
        if group and self.groups.frozen(group):
            pids = self.groups.pids(group) - {init}
            ordinary(pids)  # a host may have died before it came to that
            done = self.groups.freeze(group, False, HALT_WAIT_S)
        else:
            pids = set()
            order = rules.to_continue(self._members(execution, init))
            done = True
            for pid in order:
                if _signal(pid, signal.SIGCONT):
                    pids.add(pid)
                else:
                    done = False
        return Resumed(how, tuple(sorted(pids)), round((time.monotonic() - begin) * 1000, 3), done)

    def end_now(self, execution: Execution) -> bool:
        deadline = time.monotonic() + END_WAIT_S
        _, group, init = self.way(execution)
        if group and not self.groups.kill(group):
            for pid in self.groups.pids(group):  # SIGKILL reaches frozen processes too
                _signal(pid, signal.SIGKILL)
        if init:
            _signal(init, signal.SIGKILL)  # and with it the kernel kills them all
        pause = PAUSE_S
        while alive := [one for one in self._members(execution, 0) if one.state not in "ZX"]:
            for one in alive:
                _signal(one.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
        return True

    # ------------------------------------------------------------ looking

    def _members(self, execution: Execution, init: int) -> list[Member]:
        return self._walk(execution, init)[0]

    def _walk(self, execution: Execution, init: int) -> tuple[list[Member], bool]:
        """The session's processes without its init and what is spared, parents first; and whether somebody vanished meanwhile.
        Each is looked at before its children are, so that the children of one that was stopped are complete."""
        found: list[Member] = []
        moved = False
        for pid in self._pids(execution, init):
            one = _look((pid,))
            found += one
            moved = moved or not one
        return found, moved

    def _pids(self, execution: Execution, init: int) -> Iterator[int]:
        """Parents first; the children of one are read when the caller asks for the next."""
        spared = {os.getpid(), *self._spared()}
        todo = _children(init or execution.keeper_pid)
        seen = {*todo, *spared}
        for pid in todo:  # grows while it is walked
            if pid in spared:
                continue
            yield pid
            fresh = [child for child in _children(pid) if child not in seen]
            todo += fresh[: max(0, PROCESSES_MAX - len(todo))]
            seen.update(fresh)


def _joining(work: Callable[..., T], *arguments: object) -> T:
    join()
    return work(*arguments)


def _look(pids: Iterable[int]) -> list[Member]:
    found: list[Member] = []
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            found.append(
                rules.member(pid, read_proc(f"/proc/{pid}/status").decode("utf-8", "replace"))
            )
    return found


def _settled(running: Iterable[int], pause: float) -> float:
    """Returns when none of them runs, or after a while; the next pause. Who was stopped already is not looked at again until then."""
    patience = time.monotonic() + SETTLE_S
    while True:
        time.sleep(pause)
        running = [one.pid for one in _look(running) if one.running]
        if not running:
            return PAUSE_S
        if time.monotonic() > patience:
            return PAUSE_MAX_S
        pause = min(2 * pause, PAUSE_SETTLE_S)


def _init(execution: Execution) -> int:
    """Process 1 of the session's own pid namespace, as this one numbers it; 0 if the session has none."""
    own = _look((os.getpid(),))
    depth = len(own[0].namespaced) if own else 1
    seen: set[int] = set()
    pids = [execution.root_pid]
    while pids and len(seen) < 64:
        (one,) = _look(pids) or (None,)
        if one is None:
            break
        if len(one.namespaced) > depth and one.namespaced[depth] == 1:
            return one.pid
        if (
            one.pid == execution.root_pid
            and one.parent == execution.keeper_pid
            and len(one.namespaced) == depth
        ):
            return 0  # the root itself, and in no namespace of its own
        seen.add(one.pid)
        pids = (
            [one.parent]
            if len(one.namespaced) > depth and one.parent > 1 and one.parent not in seen
            else []
        )
    for child in _look(_children(execution.keeper_pid)):  # the root has ended, others go on
        if len(child.namespaced) > depth and child.namespaced[depth] == 1:
            return child.pid
    return 0


def _children(pid: int) -> list[int]:
    """Of all its threads. Most have but one, with the process's own number: told from the links of the directory, without listing it."""
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


def _mapped(pid: int) -> bool:
    """Whether it lives in a user namespace with other numbers for users."""
    try:
        return read_proc(f"/proc/{pid}/uid_map").split() != read_proc("/proc/self/uid_map").split()
    except OSError:
        return False


def _frozen(pid: int) -> bool:
    """Of one that runs, in a group that is to freeze: in `do_freezer_trap`, which some compilers make a part of `get_signal`."""
    try:
        return not half(pid) and read_proc(f"/proc/{pid}/wchan").startswith(
            (b"do_freezer", b"get_signal")
        )
    except OSError:
        return False


def _signal(pid: int, number: int) -> bool:
    """False: not allowed. Who is gone needs no signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True
