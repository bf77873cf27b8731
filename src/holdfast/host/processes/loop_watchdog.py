"""Replaces a host whose loop hangs in the kernel (A4).

Nothing may delay a halt, least of all a program in a session. But three reads on the loop may hang:

- The memory of a program before an exec (host/exec_gate/exec_request.py). The loop reads only pages
  that are present. A program may remove such a page between the check and the read, and map a file
  of a file system that does not answer. Then not even a signal ends the read, as long as the
  program behind the file system lives.
- The command line of a program after an exec (host/exec_gate/verify_exec.py).
- The command line of a program that starts other programs (host/originators/lineage.py).

The kernel alone supplies a command line, but not while the memory of the program is locked. A
program that hangs in a file system may hold that lock.

A thread notices that the loop has been in a read for HELD_S without running, and replaces the host
(`replace`, of the composition root). From then on, all hosts read the programs of that session in
threads, or not at all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from holdfast.host.processes.process import read_short
from holdfast.host.runtime import handover_file

if TYPE_CHECKING:
    from holdfast.host.processes.interfaces import SessionProcesses

LOOK_S: Final = 0.5  # between checks, while a session has a gate at exec depth
HELD_S: Final = 2.0
_MARK: Final = "slow"  # in the session's memory
log = logging.getLogger("holdfast.host")


class HeldUp:
    """The watchdog of a host's loop."""

    def __init__(self, replace: Callable[[], None] = lambda: None) -> None:
        self.reading: SessionProcesses | None = None  # the session that the loop reads now
        self.turn = 0  # the number of that read
        self._replace = replace
        self._watched: set[str] = set()
        self._slow: set[str] = set()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, session: SessionProcesses) -> None:
        """Watches reads of this session; call it on the loop's thread."""
        if session.id not in self._watched and slow(session):
            self._slow.add(session.id)
        self._watched.add(session.id)
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, args=(threading.get_native_id(),), name="held up", daemon=True
            )
            self._thread.start()

    def end(self, session: SessionProcesses) -> None:
        self._watched.discard(session.id)
        self._slow.discard(session.id)
        if not self._watched:
            self._wanted.clear()

    def slow(self, session: SessionProcesses) -> bool:
        """Like the function `slow`, but from memory."""
        return session.id in self._slow

    @contextlib.contextmanager
    def reads(self, session: SessionProcesses) -> Iterator[None]:
        """Encloses a read that may hang the loop; may be nested."""
        before, self.reading = self.reading, session
        self.turn += 1
        try:
            yield
        finally:
            self.reading = before
            self.turn += 1

    def _watch(self, loop: int) -> None:
        seen, since = (-1, -1), 0.0
        while True:
            self._wanted.wait()
            time.sleep(LOOK_S)
            if (session := self.reading) is None:
                seen = (-1, -1)
            elif (now := (self.turn, ran(loop))) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > HELD_S:
                log.critical(
                    "a program of session %s holds up the loop: the next host takes over",
                    session.id,
                )
                handover_file.write(f"{session.host_only_directory}/{_MARK}", ("",))
                return self._replace()


def slow(session: SessionProcesses) -> bool:
    """Whether a program of this session has hung a host before."""
    return os.path.exists(f"{session.host_only_directory}/{_MARK}")


def ran(thread: int) -> int:
    """How often a thread has given up its processor.

    A thread that runs, is ready to run or was stopped does not hang: then each call returns a
    different number.
    """
    try:
        text = read_short(f"/proc/self/task/{thread}/status")
        if text[text.index(b"State:") + 6 :].split(maxsplit=1)[0] not in (b"S", b"D"):
            return time.monotonic_ns()
        return sum(
            int(text[text.index(word) + len(word) :].split(maxsplit=1)[0])
            for word in (b"\nvoluntary_ctxt_switches:", b"nonvoluntary_ctxt_switches:")
        )
    except (OSError, ValueError, IndexError):
        return time.monotonic_ns()
