"""Makes execs ask again that a host had read when it died: the kernel tells of each once, and would hold those tasks for ever.

A signal that is delivered ends their wait, and the call is begun again from the start: with a new notification. Frozen and thawed, they go the same way, and no program sees it; where the session
has no group of its own they are stopped and continued, one by one and only those that wait. A session that is halted is left alone: it goes that way when it is resumed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

from holdfast.host import observe
from holdfast.host.halt import HALT_WAIT_S, Halter, execution
from holdfast.host.process import read_short

if TYPE_CHECKING:
    from holdfast.host.session import Session

_CALLS: Final = (b"59 ", b"322 ", b"11 ", b"358 ", b"221 ", b"281 ", b"387 ")      # execve and execveat, of all personalities


def rekindle(halter: Halter, session: Session) -> int:
    """In a thread. How many were waiting."""
    waiting = [one.pid for one in observe.descendants(session.keeper_pid, with_argv=False) if _waits(one.pid)]
    if not waiting:
        return 0
    group = halter.groups.find(session.id, session.record.root_pid)
    if group:
        with contextlib.suppress(OSError):
            if halter.groups.frozen(group):
                return 0
            halter.groups.freeze(group, True, HALT_WAIT_S)
            halter.groups.freeze(group, False, HALT_WAIT_S)
            return len(waiting)
    if halter.halted_now(execution(session)) is not None:
        return 0
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in waiting:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
    return len(waiting)


def _waits(pid: int) -> bool:
    """Whether one of its threads waits at the gate."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                if b"seccomp" in read_short(f"/proc/{pid}/task/{thread}/wchan") or read_short(f"/proc/{pid}/task/{thread}/syscall").startswith(_CALLS):
                    return True
    return False
