"""Makes the kernel report execs again that a host had read but not answered when the host died.

The kernel reports each exec once and would hold the waiting tasks for ever. A delivered signal ends
the wait, and the task starts the system call again, with a new notification. Freezing and thawing
the session's control group has the same effect, and no program notices the freeze. If the session
has no control group, each waiting thread is stopped and continued. A signal to the process would
wake only its first thread. A halted session is left alone: resuming the session has the same
effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.host.processes import proc_scan
from holdfast.host.processes.halt import HALT_WAIT_S, Halter, execution
from holdfast.host.processes.process import half, read_short
from holdfast.wire.ring import FLAG_FENCED

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

# For finding the waiting processes. A process not examined by then counts as waiting.
SEARCH_S: Final = 2.0
# The numbers of execve and execveat on all architectures, in the form of /proc/PID/syscall.
_EXEC_CALLS: Final = (b"59 ", b"322 ", b"11 ", b"358 ", b"221 ", b"281 ", b"387 ")


async def renotify(halter: Halter, session: Session) -> None:
    waiting = _Waiting(set(), set())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(session.in_thread(_find_waiting, session, waiting), SEARCH_S)
    if pids := {*waiting.certain, *waiting.unexamined}:
        await halter.in_thread(_interrupt, halter, session, pids)


def _interrupt(halter: Halter, session: Session, waiting: set[int]) -> None:
    """In a thread."""
    group = halter.groups.find(session.id, session.record.root_pid)
    if group:
        with contextlib.suppress(OSError):
            if not halter.groups.frozen(group):
                halter.groups.freeze(group, True, HALT_WAIT_S)
                halter.groups.freeze(group, False, HALT_WAIT_S)
                if session.ring.flags & FLAG_FENCED:  # the fence fell in between
                    halter.groups.freeze(group, True, HALT_WAIT_S)
            return
    if halter.halted_now(execution(session)) is not None:
        return
    for thread in waiting:
        # Both at once, so that the shell hardly ever sees the job stopped. Of a process, the
        # kernel wakes the thread whose number is given.
        with contextlib.suppress(OSError):
            os.kill(thread, signal.SIGSTOP)
            os.kill(thread, signal.SIGCONT)


class _Waiting(NamedTuple):
    certain: set[int]  # threads
    unexamined: set[int]  # processes


def _find_waiting(session: Session, found: _Waiting) -> None:
    """In a thread of the session: a process that hangs in an exec blocks the examining thread."""
    found.unexamined.update(one.pid for one in proc_scan.of_session(session.keeper_pid))
    for pid in sorted(found.unexamined):
        found.certain.update(_waiting_threads(pid))
        found.unexamined.discard(pid)


def _waiting_threads(pid: int) -> Iterator[int]:
    """The threads of this process that wait at the gate."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task") if not half(pid) else ():
            with contextlib.suppress(OSError):
                task = f"/proc/{pid}/task/{thread}"
                if b"seccomp" in read_short(f"{task}/wchan") or read_short(
                    f"{task}/syscall"
                ).startswith(_EXEC_CALLS):
                    yield int(thread)
