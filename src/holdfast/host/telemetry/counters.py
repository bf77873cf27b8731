"""What is counted and has no other owner: what ended sessions had put out, requests that failed, how long seizing and halting took, spans.

Whoever does something counts it where it is done (the gate its decisions, the door its verdicts, the store its commits); the page that shows it collects (host/metrics.py). Of a session
the totals are its keeper's and its keyboard's own: here is only what must not be lost from the sum when it ends. Counting a key is one addition.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.exposition import Histogram

if TYPE_CHECKING:
    from holdfast.host.connection import Connection
    from holdfast.host.session import Session


class Totals(NamedTuple):
    output: int = 0  # bytes that programs put out
    rolled: int = 0  # bytes that no buffer has any more
    skips: int = 0  # times that a viewer was shown the newest screen instead of what it had missed
    typed: int = 0  # inputs of raw keys
    untaken: int = 0  # those that were refused

    def plus(self, other: Totals, sign: int = 1) -> Totals:
        return Totals(*(a + sign * b for a, b in zip(self, other, strict=True)))


class Tally:
    """One per host. It belongs to the loop; `spans` is also counted by the thread that exports them, under keys of its own."""

    def __init__(self) -> None:
        self.seizing, self.halting = Histogram(), Histogram()
        self.refusals: Counter[str] = Counter()  # requests that failed, by the name of the error
        self.spans: Counter[str] = Counter()  # by what became of them
        self.connections: set[Connection] = set()
        self.began = time.time()
        self._before: dict[
            Session, Totals
        ] = {}  # of sessions that run: what was there before this host had them
        self._ended = Totals()

    def begin(self, session: Session) -> None:
        self._before[session] = Totals() if session.state == "creating" else _of(session)

    def end(self, session: Session) -> None:
        before = self._before.pop(session, None)
        if before is not None:
            self._ended = self._ended.plus(_of(session)).plus(before, -1)

    def totals(self) -> Totals:
        """Of all sessions, since this host began."""
        found = self._ended
        for session, before in self._before.items():
            found = found.plus(_of(session)).plus(before, -1)
        return found


def _of(session: Session) -> Totals:
    ring, keyboard = session.ring, session.keyboard
    return Totals(ring.head, ring.start, session.pace.skips, keyboard.taken, keyboard.not_taken)
