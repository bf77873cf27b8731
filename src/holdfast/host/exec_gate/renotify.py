"""Makes execs ask again that a host had read when it died: the kernel tells of each once, and would hold those tasks for ever.

A signal that is delivered ends their wait, and the call is begun again from the start: with a new notification. Frozen and thawed, they go the same way, and no program sees it; where the session
has no group of its own they are stopped and continued, one by one and only those that wait. A session that is halted is left alone: it goes that way when it is resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.host import observe
from holdfast.host.halt import HALT_WAIT_S, Halter, execution
from holdfast.host.process import half, read_short

if TYPE_CHECKING:
    from holdfast.host.session import Session

LOOK_S: Final = 2.0  # for who waits to be found; who was not looked at by then counts as one
_CALLS: Final = (
    b"59 ",
    b"322 ",
    b"11 ",
    b"358 ",
    b"221 ",
    b"281 ",
    b"387 ",
)  # execve and execveat, of all personalities


async def rekindle(halter: Halter, session: Session) -> None:
    waiting = _Waiting(set(), set())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(session.in_thread(_look, session, waiting), LOOK_S)
    if pids := {*waiting.sure, *waiting.perhaps}:
        await halter.in_thread(_again, halter, session, pids)


def _again(halter: Halter, session: Session, waiting: set[int]) -> None:
    """In a thread."""
    group = halter.groups.find(session.id, session.record.root_pid)
    if group:
        with contextlib.suppress(OSError):
            if not halter.groups.frozen(group):
                halter.groups.freeze(group, True, HALT_WAIT_S)
                halter.groups.freeze(group, False, HALT_WAIT_S)
            return
    if halter.halted_now(execution(session)) is not None:
        return
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in waiting:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


class _Waiting(NamedTuple):
    sure: set[int]
    perhaps: set[int]  # not looked at yet


def _look(session: Session, found: _Waiting) -> None:
    """In a thread of the session's: one of its processes may be half another program, and hang at a file system; nobody can look at it then."""
    found.perhaps.update(
        one.pid for one in observe.descendants(session.keeper_pid, with_argv=False)
    )
    for pid in sorted(found.perhaps):
        if _waits(pid):
            found.sure.add(pid)
        found.perhaps.discard(pid)


def _waits(pid: int) -> bool:
    """Whether one of its threads waits at the gate."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task") if not half(pid) else ():
            with contextlib.suppress(OSError):
                if b"seccomp" in read_short(f"/proc/{pid}/task/{thread}/wchan") or read_short(
                    f"/proc/{pid}/task/{thread}/syscall"
                ).startswith(_CALLS):
                    return True
    return False
