"""A host whose loop is held up in the kernel makes room for the next one (A4): nothing may delay a halt, and least of all a program in a session.

The loop reads the memory of programs that are about to become another (host/notified.py), and only pages that are there. Whoever takes one away between the look and the read, and gives it to a
file system that does not answer, holds up the loop; not even a signal ends that, as long as the file system has a program that lives. The same holds for the words of a program that has just become
another (host/compared.py), and of one that starts others (host/lineage.py): they are given by nobody but the kernel, but not while its memory is locked, and who hangs at a file system may have that lock.
A thread notices that the loop has been reading for HELD_S without having run, and replaces the host (`replace`, of the composition root). The programs of that session are read in threads from then on,
or not at all, by the next hosts too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from holdfast.host import kept
from holdfast.host.process import read_short

if TYPE_CHECKING:
    from holdfast.host.session import Session

LOOK_S: Final = 0.5  # while there are sessions with a gate at exec depth
HELD_S: Final = 2.0
_MARK: Final = "slow"  # in the session's memory
log = logging.getLogger("holdfast.host")


class HeldUp:
    """One per host."""

    def __init__(self) -> None:
        self.reading: Session | None = None  # whose programs the loop reads now
        self.turn = 0  # which reading that is
        self.replace: Callable[[], None] = lambda: None
        self._watched: set[str] = set()
        self._slow: set[str] = set()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, session: Session) -> None:
        """On the loop's thread."""
        if session.id not in self._watched and slow(session):
            self._slow.add(session.id)
        self._watched.add(session.id)
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, args=(threading.get_native_id(),), name="held up", daemon=True
            )
            self._thread.start()

    def end(self, session: Session) -> None:
        self._watched.discard(session.id)
        self._slow.discard(session.id)
        if not self._watched:
            self._wanted.clear()

    def slow(self, session: Session) -> bool:
        """The same as below, from memory."""
        return session.id in self._slow

    @contextlib.contextmanager
    def reads(self, session: Session) -> Iterator[None]:
        """Around what may hold up the loop, also within another such."""
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
                kept.write(f"{session.memory}/{_MARK}", ("",))
                return self.replace()


def slow(session: Session) -> bool:
    """Whether it is one whose programs held up a host."""
    return os.path.exists(f"{session.memory}/{_MARK}")


def ran(thread: int) -> int:
    """How often a thread has given up its processor. If it runs, wants to, or was stopped, it is not held up: then never the same twice."""
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
