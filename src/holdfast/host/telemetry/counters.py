"""Counters without another owner.

They cover the output of ended sessions, failed requests, the time of seizures and halts, and spans.

Each component counts its own work: the gate its decisions, the door its verdicts, the store its
commits. The metrics page collects the numbers (host/telemetry/metrics.py). The keeper and the
keyboard hold the totals of a session. This module keeps only the totals that the sum must not lose
when a session ends. Counting a key is one addition.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.prometheus_text import Histogram

if TYPE_CHECKING:
    from holdfast.host.runtime.connection import Connection
    from holdfast.host.session.session import Session


class Totals(NamedTuple):
    output: int = 0  # bytes of output of programs
    rolled: int = 0  # bytes that have left every buffer
    skips: int = 0  # times that a viewer got the newest screen instead of the output it had missed
    typed: int = 0  # inputs of raw keys
    untaken: int = 0  # refused inputs of raw keys

    def plus(self, other: Totals, sign: int = 1) -> Totals:
        return Totals(*(a + sign * b for a, b in zip(self, other, strict=True)))


class Counters:
    """The counters of a host, used on the loop.

    The thread that exports spans also counts in `spans`, under separate keys.
    """

    def __init__(self) -> None:
        self.seizing, self.halting = Histogram(), Histogram()
        self.refusals: Counter[str] = Counter()  # requests that failed, by the name of the error
        self.spans: Counter[str] = Counter()  # by outcome
        self.connections: set[Connection] = set()
        self.began = time.time()
        # Running sessions, with the totals that existed before this host adopted the session.
        self._before: dict[Session, Totals] = {}
        self._ended = Totals()

    def begin(self, session: Session) -> None:
        self._before[session] = Totals() if session.state == "creating" else _of(session)

    def end(self, session: Session) -> None:
        before = self._before.pop(session, None)
        if before is not None:
            self._ended = self._ended.plus(_of(session)).plus(before, -1)

    def totals(self) -> Totals:
        """The totals of all sessions since this host began."""
        found = self._ended
        for session, before in self._before.items():
            found = found.plus(_of(session)).plus(before, -1)
        return found


def _of(session: Session) -> Totals:
    ring, keyboard = session.ring, session.keyboard
    return Totals(ring.head, ring.start, session.pace.skips, keyboard.taken, keyboard.not_taken)
