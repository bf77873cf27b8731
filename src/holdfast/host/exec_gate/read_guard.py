"""A timer that interrupts a blocked read of the kernel's reports of execs.

RECV blocks if a second reader of the descriptor was faster.
"""

from __future__ import annotations

import signal
import threading

from holdfast.wire import notification as wire

_ready = False


def install() -> None:
    """Let the timer's signal interrupt a call. Only the main thread can install the handler."""
    global _ready
    if not _ready and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, _ignore)
        _ready = True


def start() -> None:
    if _ready:
        signal.setitimer(signal.ITIMER_REAL, wire.GUARD_S, wire.GUARD_S)


def stop() -> None:
    if _ready:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ignore(number: int, frame: object) -> None:
    """The interrupted call returns; the handler has no work to do."""
