"""Raises the host's scheduling priority while an operator seizes a turn or halts a session.

The figures below were measured on two processors beside 200 forking processes, floods of output and
other programs. `nice` has almost no effect. Where the kernel groups processes by terminal
session (sched_autogroup, on by default), `nice` counts only within a group. Every daemon that
called setsid is a group with as large a share as the whole host: the thread that halted, at -15,
waited 75 ms for the processor. Two measures help:

- A real-time policy for a moment (`raised`): the host runs before all ordinary programs. During a
  seize in a flood of output, the 99th percentile of the keeper's part went from 80..127 to
  10..38 ms. During a halt, the host itself no longer waits for the processor. This needs a
  privilege (root, CAP_SYS_NICE or RLIMIT_RTPRIO).
- A short time slice (`short_slice`, Linux 6.12), which needs no privilege: no larger share, but an
  earlier turn. The host's loop always has a short slice, because the host must read a request
  before the urgency is known. Without a privilege this is the only measure.

A permanently larger share for the host makes that reading quicker still (20..60 to 5..13 ms beside
busy programs). That was given up: during a flood of output the host would draw screens without
viewers, at the flooding program's expense (0.8 to 0.5 of a bare terminal's rate).

The whole process or a single thread? There is one interpreter lock. Among hundreds of busy
processes, the thread that holds the lock must get to run before any other thread can. So a halt
raises all threads. A seize raises only the seizing thread: while output floods, the thread that
draws screens would take a processor from the programs that the keeper waits for.

The effect is bounded: a halt takes at most 2 seconds, a seize less, and the kernel leaves a
twentieth of each second to other programs. The policy is never inherited: a child or thread started
meanwhile begins with the ordinary policy (SCHED_RESET_ON_FORK). Otherwise a session's programs
could come to run before all other programs.

A halted process must itself run to reach the freezer, because a started fork or exit must finish.
That is 2 to 15 ms of processor time; the rest of a slow halt (p90 90 ms) is other programs' time.
So the terminal sessions that are being frozen get nearly the whole processor (`prefer`), and an
ordinary share again before the halt is answered (`ordinary`): p90 31 ms. Only sessions with the
usual share are preferred, so the old value needs no memory; if the host dies in between, the resume
finds the mark. A real-time policy for these sessions was a little better (p90 25 ms), but a dead
host would then leave real-time programs behind.
"""

from __future__ import annotations

import _ctypes
import contextlib
import os
import platform
import struct
import threading
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final, TypeVar

REALTIME: Final = os.SCHED_RR | os.SCHED_RESET_ON_FORK
PRIORITY: Final = 1  # the lowest real-time priority
# The `nice` value of a terminal session that is being frozen; people do not use that value.
PREFERRED: Final = b"-19"
SLICE_NS: Final = 100_000  # the shortest that the kernel accepts

_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}.get(platform.machine(), 0)
_RESET_ON_FORK: Final = 1  # in the flags of struct sched_attr
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
# dlopen(None) is this process, libc included.
_this_process: Final = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]
_syscall: Final = _ctypes.dlsym(_this_process, "syscall")

T = TypeVar("T")

_raised: dict[int, int] = {}  # raised threads of this process, with the earlier policy
_depth = 0  # blocks of `raised` that are open


def prefer(pids: Iterable[int]) -> None:
    """Gives the terminal sessions of these processes a larger share, as far as permitted."""
    _share_all(pids, b"0", PREFERRED)


def ordinary(pids: Iterable[int]) -> None:
    """Undoes `prefer`."""
    _share_all(pids, PREFERRED, b"0")


def _share_all(pids: Iterable[int], before: bytes, after: bytes) -> None:
    done: set[int] = set()
    for pid in pids:
        try:
            if (session := os.getsid(pid)) not in done:
                _share(pid, before, after)
                done.add(session)
        except (PermissionError, FileNotFoundError):
            return  # the same holds for the other processes, or the kernel has no autogroups
        except OSError:  # gone: any other process of the session does as well
            continue


def _share(pid: int, before: bytes, after: bytes) -> None:
    fd = os.open(f"/proc/{pid}/autogroup", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.read(fd, 64).split()[-1:] == [before]:  # "/autogroup-7 nice 0"
            os.write(fd, after)
    finally:
        os.close(fd)


@contextlib.contextmanager
def raised(whole: bool, *others: int) -> Iterator[None]:
    """Runs this thread, or the `whole` process, and the `others` (keepers) before all programs.

    Only the host's main thread enters this block, also several times at once.
    """
    global _depth
    _depth += 1
    for thread in (
        map(int, os.listdir("/proc/self/task")) if whole else (threading.get_native_id(),)
    ):
        if (policy := _raise(thread)) is not None:
            _raised[thread] = policy
    mine = {pid: policy for pid in others if (policy := _raise(pid)) is not None}
    try:
        yield
    finally:
        _depth -= 1
        _restore(mine)
        if not _depth:
            _restore(_raised)


async def raised_until(done: Awaitable[T], *others: int) -> T:
    """Waits for `done` with this thread and the `others` raised."""
    with raised(False, *others):
        return await done


def join() -> None:
    """Raises the calling thread too, if the process was raised before the thread started."""
    thread = threading.get_native_id()
    if _depth and (policy := _raise(thread)) is not None:
        _raised[thread] = policy
        if not _depth:  # the block was left meanwhile
            _restore(_raised)


@contextlib.contextmanager
def raised_process(pid: int) -> Iterator[None]:
    """Raises a different process (a keeper) alone; from any thread."""
    policy = _raise(pid)
    try:
        yield
    finally:
        if policy is not None:
            _restore({pid: policy})


def survive_memory() -> None:
    """Makes the OOM killer take the host last, as the nursery does for itself and the keepers.

    Going below zero needs CAP_SYS_RESOURCE. Other accounts undo what a session raised.
    """
    for value in ("-900", "0"):
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(value)
            file.flush()
            return


def short_slice(thread: int = 0) -> bool:
    """Gives a thread earlier turns for good, no larger share. False: the kernel cannot."""
    if not _SETATTR:
        return False
    with contextlib.suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        attributes = _ATTRIBUTES.pack(
            _ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0
        )
        return bool(_ctypes.call_function(_syscall, (_SETATTR, thread, attributes, 0)) == 0)
    return False


def _raise(thread: int) -> int | None:
    """Sets the real-time policy; returns the old policy, or None if no undo is needed."""
    try:
        policy = os.sched_getscheduler(thread)
        if policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
            os.sched_setscheduler(thread, REALTIME, os.sched_param(PRIORITY))
            return policy
    except OSError:  # not allowed, or gone
        short_slice(thread)
    return None


def _restore(threads: dict[int, int]) -> None:
    while threads:
        thread, policy = threads.popitem()
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, policy, os.sched_param(0))
