"""Ends with a run of the tests all that it has started, however the run ends.

Hosts, nurseries and keepers are daemons: they survive the tests that start them. `hold_together`
lets the run go on in a child. This process adopts every daemon of the run (a subreaper), passes
signals on, and kills what is left when the run has ended. Only SIGKILL to this process gets in the
way; the run then ends too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

END_S = 10.0  # a process in a frozen group of the first version of control groups cannot end
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def hold_together() -> None:
    """Return in a child, in which the run goes on."""
    libc = ctypes.CDLL(None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = os.fork()
    if run == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    code = 255
    try:
        code = os.waitstatus_to_exitcode(_watch(run))
        _end_all()
    finally:
        os._exit(code if code >= 0 else 128 - code)


def _watch(run: int) -> int:
    """Collect what ends, until the run has; return its status."""
    while True:
        told = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        if told.si_signo != signal.SIGCHLD:
            if told.si_code <= 0:  # not from the terminal, which has told the run too
                os.kill(run, told.si_signo)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == run:
                return ended[1]


def _end_all() -> None:
    """Kill this process's children until it has none: it adopts theirs."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        for child in Path("/proc/thread-self/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        signal.sigtimedwait({signal.SIGCHLD}, 0.1)
