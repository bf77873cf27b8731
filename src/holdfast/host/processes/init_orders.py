"""Orders process 1 of a contained session to hold all other processes, or to release them.

The order goes to the keeper as a signal, and the keeper passes it on over a socket. A signal to
process 1 itself would prove nothing: code inside can send signals whose sender the kernel conceals.
Process 1 shows by its name that it has obeyed; no other process can change that name.

A session that an older keeper holds takes the signals itself.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from holdfast.core.session import halt as rules
from holdfast.host.processes.process import read_proc
from holdfast.host.runtime.priority import raised_process
from holdfast.wire.spawning import (
    HALT_SIGNAL,
    HALTED_NAME,
    INIT_NAME,
    OLD_HALT_SIGNAL,
    OLD_RELEASE_SIGNAL,
    RELEASE_SIGNAL,
)

WAIT_S: Final = 1.0  # for process 1 to obey
PAUSE_S, PAUSE_MAX_S = 0.0001, 0.01  # between looks: the kernel has no event for a new name
_PENDING = 1 << (OLD_HALT_SIGNAL - 1) | 1 << (OLD_RELEASE_SIGNAL - 1)


def order(keeper: int, init: int, halt: bool) -> None:
    """Returns when process 1 has obeyed, or after a while.

    Until then the other processes are not read: they would have to be read again, and reading
    would take processor time from process 1.
    """
    with raised_process(keeper), raised_process(init):
        send(init, signal.SIGCONT)
        if not _passes_on(keeper):
            return _order_directly(init, OLD_HALT_SIGNAL if halt else OLD_RELEASE_SIGNAL)
        send(keeper, HALT_SIGNAL if halt else RELEASE_SIGNAL)
        done = HALTED_NAME if halt else INIT_NAME
        deadline, pause = time.monotonic() + WAIT_S, PAUSE_S
        while _read(init, "comm").strip() not in (done, b"") and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(1.5 * pause, PAUSE_MAX_S)
    return None


def send(pid: int, number: int) -> bool:
    """False if the signal is not allowed. A process that is gone needs no signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _passes_on(keeper: int) -> bool:
    """Whether a keeper takes orders; an older one ignores the signal."""
    for line in _read(keeper, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (HALT_SIGNAL - 1) & 1)
    return False


def _order_directly(init: int, number: int) -> None:
    send(init, number)
    pause = PAUSE_S
    while pause < PAUSE_MAX_S and (status := _read(init, "status")):
        one = rules.member(init, status.decode("utf-8", "replace"))
        if not one.pending & _PENDING and one.state != "R":
            return
        time.sleep(pause)
        pause *= 1.5


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty if the process has ended."""
    try:
        return read_proc(f"/proc/{pid}/{name}")
    except OSError:
        return b""
