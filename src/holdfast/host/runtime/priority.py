"""The host before all others, for as long as somebody seizes or halts.

Measured on two processors with 200 forking processes and with floods of output, other people's programs beside. `nice` does next to nothing. Where
the kernel groups processes by their terminal session (sched_autogroup, on by default), it counts only within a session, and every daemon that
called setsid is a session with a share as large as this whole host's: the thread that halted, at -15, waited 75 ms for its turn. What helps:

- A real-time policy for the moment (`hurrying`): it waits for nobody. Of a seize while output floods the 99th percentile of what the keeper needs went from
  80 .. 127 to 10 .. 38 ms, of a halt all waiting of our own is gone. Needs a privilege (root, CAP_SYS_NICE, RLIMIT_RTPRIO).
- A short slice (`short_slice`, Linux 6.12), which needs none: no larger share, but an earlier turn. The host's loop has one always, for what happens
  before anybody knows that there is a hurry: reading the request. Who has no privilege has nothing else.

A larger share of the machine for the host, always, makes that reading quicker still (20 .. 60 to 5 .. 13 ms beside busy programs), and was given up: with
it the host draws screens that nobody looks at while a program floods, at the program's expense (0.8 to 0.5 of a bare terminal's rate).

The whole process, or this thread alone? There is one interpreter lock, and among hundreds of busy processes whoever holds it must get to run for any
other to go on: a halt takes all threads along. A seize does not: while output floods, the thread that draws screens would take
a processor for itself, from those on whom the keeper waits.

Bounded: a halt takes 2 seconds at most, a seize less, and the kernel leaves a twentieth of each second to others. Never handed on: who is forked
or started as a thread meanwhile begins as ordinary as ever (SCHED_RESET_ON_FORK), or a session's programs could come to run before everybody.

What is halted must itself get to run to reach its freezer, to end the fork or exit it is in. That is 2 to 15 ms of processor time; all else of a
slow halt (p90 90 ms) is other programs' time. So the terminal sessions of what is being frozen get nearly all there is (`prefer`), and an ordinary
share again before the halt is answered (`ordinary`): p90 31 ms. Only who has the usual share is preferred, so what it was needs no memory; a host
that dies in between leaves a mark that the resume finds. A real-time policy for them was a little better still (p90 25 ms), but
what a dead host left behind then would be real-time programs.
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
PRIORITY: Final = 1  # the lowest of those that wait for nobody
PREFERRED: Final = b"-19"  # as a `nice` of a whole terminal session, for programs that are being frozen; no person uses that value
SLICE_NS: Final = 100_000  # the least that the kernel takes

_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}.get(platform.machine(), 0)
_RESET_ON_FORK: Final = 1  # in the flags of struct sched_attr
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_syscall: Final = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "syscall")  # type: ignore[arg-type]  # None: this process, libc included

T = TypeVar("T")

_hurried: dict[
    int, int
] = {}  # threads of this process that run before all others: what they were before
_within = 0


def prefer(pids: Iterable[int]) -> None:
    """The terminal sessions of these, before those of all others; as far as this account may."""
    _share_all(pids, b"0", PREFERRED)


def ordinary(pids: Iterable[int]) -> None:
    """Undoes that."""
    _share_all(pids, PREFERRED, b"0")


def _share_all(pids: Iterable[int], before: bytes, after: bytes) -> None:
    done: set[int] = set()
    for pid in pids:
        try:
            if (session := os.getsid(pid)) not in done:
                _share(pid, before, after)
                done.add(session)
        except (PermissionError, FileNotFoundError):
            return  # nor the others; or this kernel has no such thing
        except OSError:  # gone: the session's next one stands for it
            continue


def _share(pid: int, before: bytes, after: bytes) -> None:
    fd = os.open(f"/proc/{pid}/autogroup", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.read(fd, 64).split()[-1:] == [before]:  # "/autogroup-7 nice 0"
            os.write(fd, after)
    finally:
        os.close(fd)


@contextlib.contextmanager
def hurrying(whole: bool, *others: int) -> Iterator[None]:
    """This thread, or the `whole` process; and those others (of ours: a keeper), until the end of the block. Entered by the host's own
    thread alone, any number of times at once."""
    global _within
    _within += 1
    for thread in (
        map(int, os.listdir("/proc/self/task")) if whole else (threading.get_native_id(),)
    ):
        if (policy := _hurry(thread)) is not None:
            _hurried[thread] = policy
    mine = {pid: policy for pid in others if (policy := _hurry(pid)) is not None}
    try:
        yield
    finally:
        _within -= 1
        _calm(mine)
        if not _within:
            _calm(_hurried)


async def until(done: Awaitable[T], *others: int) -> T:
    """Waits for it, with this thread and those others in a hurry."""
    with hurrying(False, *others):
        return await done


def join() -> None:
    """By a thread that may have begun since."""
    thread = threading.get_native_id()
    if _within and (policy := _hurry(thread)) is not None:
        _hurried[thread] = policy
        if not _within:  # over just now
            _calm(_hurried)


@contextlib.contextmanager
def other(pid: int) -> Iterator[None]:
    """Another process of ours alone, from any thread."""
    policy = _hurry(pid)
    try:
        yield
    finally:
        if policy is not None:
            _calm({pid: policy})


def short_slice(thread: int = 0) -> bool:
    """For one thread, for ever: quicker turns, no larger share. False: this kernel has no such thing."""
    if not _SETATTR:
        return False
    with contextlib.suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        attributes = _ATTRIBUTES.pack(
            _ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0
        )
        return bool(_ctypes.call_function(_syscall, (_SETATTR, thread, attributes, 0)) == 0)
    return False


def _hurry(thread: int) -> int | None:
    """What it was before; None: nothing that would have to be undone was done."""
    try:
        policy = os.sched_getscheduler(thread)
        if policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
            os.sched_setscheduler(thread, REALTIME, os.sched_param(PRIORITY))
            return policy
    except OSError:  # not allowed, or gone
        short_slice(thread)
    return None


def _calm(threads: dict[int, int]) -> None:
    while threads:
        thread, policy = threads.popitem()
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, policy, os.sched_param(0))
