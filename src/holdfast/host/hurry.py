"""This process before all others, for as long as a halt takes.

Measured with 200 forking processes: `nice` does next to nothing. Where the kernel groups processes by their terminal session
(sched_autogroup, the default of most), it counts only among processes of the same session, and every daemon that called setsid is a session
with a share as large as this whole host's. The thread that halted, at -15, waited 75 ms for its turn. A real-time policy stands
outside of that: it waits for nobody. It needs a privilege (root; CAP_SYS_NICE; RLIMIT_RTPRIO). Who has none gets a short slice (Linux 6.12):
no larger share, but an earlier turn, for the asking.

All threads of the process, not only the one that halts: there is one interpreter lock, and whoever holds it must get to run for any other to go
on. Bounded: real time lasts as long as somebody is within `hurrying`, and a halt takes 2 seconds at most; the kernel itself leaves
a twentieth of each second to others. Never handed on: who is forked or started as a thread meanwhile begins as ordinary as
ever (SCHED_RESET_ON_FORK), or a session's programs could come to run before everybody.
"""

from __future__ import annotations

import _ctypes
import contextlib
import os
import platform
import struct
import threading
from collections.abc import Iterator
from typing import Final

REALTIME: Final = os.SCHED_RR | os.SCHED_RESET_ON_FORK
PRIORITY: Final = 1             # the lowest of those that wait for nobody
SLICE_NS: Final = 100_000       # the least that the kernel takes

_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}.get(platform.machine(), 0)
_RESET_ON_FORK: Final = 1       # in the flags of struct sched_attr
_syscall: Final = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "syscall")  # type: ignore[arg-type]  # None: this process, libc included


class Hurry:
    """Of one process."""

    def __init__(self) -> None:
        self._within = 0
        self._hurried: set[int] = set()

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Entered by one thread alone; also while it is within it already."""
        self._within += 1
        if self._within == 1:
            self._hurried.update(thread for thread in map(int, os.listdir("/proc/self/task")) if _hurry(thread))
        try:
            yield
        finally:
            self._within -= 1
            if not self._within:
                while self._hurried:
                    calm(self._hurried.pop())

    def join(self) -> None:
        """By a thread that may have begun since."""
        thread = threading.get_native_id()
        if self._within and _hurry(thread):
            self._hurried.add(thread)
            if not self._within:            # over just now
                calm(thread)


@contextlib.contextmanager
def other(pid: int) -> Iterator[None]:
    """Another process, as far as this account may."""
    hurried = _hurry(pid) or (short_slice(pid) and False)
    try:
        yield
    finally:
        if hurried:
            calm(pid)


def _hurry(thread: int) -> bool:
    try:
        if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
            os.sched_setscheduler(thread, REALTIME, os.sched_param(PRIORITY))
            return True
    except OSError:                         # not allowed, or gone
        pass
    return False


def calm(thread: int) -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
    short_slice(thread)


def short_slice(thread: int = 0) -> bool:
    """For one thread, for ever: quicker turns, no larger share. False: this kernel has no such thing."""
    if not _SETATTR:
        return False
    with contextlib.suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0)
        return bool(_ctypes.call_function(_syscall, (_SETATTR, thread, attributes, 0)) == 0)
    return False
