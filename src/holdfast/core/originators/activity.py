"""The acts and operators behind files without a reported writer (P3).

`InputGivers` needs no report of the kernel: if a single operator ever gave input to a session, no
other operator can have written a file through a session.

`Activity` has the acts that were running at a given time.

An act runs while the shell executes the act, or while a process of the act is left. The knowledge
reaches back PAST_KEPT ends of acts; before that, the running acts are unknown. Times are wall-clock
times and reported slightly late: an act counts as running SLACK_S before and after. No I/O, no
clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final

from holdfast.core.originators.lineage import Cause
from holdfast.core.originators.writers import Author

PAST_KEPT: Final = 4096
RUNNING_MAX: Final = 4096
SLACK_S: Final = 0.5
NAMES_KEPT: Final = 64


class Activity:
    """The running and the recent acts of a session."""

    def __init__(self, since: float) -> None:
        self._since = since  # earlier times are unknown
        self._running: dict[Author, tuple[int, float]] = {}
        self._past: deque[tuple[Author, float, float]] = deque()

    def began(self, who: Author, at: float) -> None:
        count, first = self._running.get(who, (0, at))
        if not count and len(self._running) >= RUNNING_MAX:
            self._since = math.inf  # from now on the answer is unknown
            return
        self._running[who] = count + 1, first

    def ended(self, who: Author, at: float) -> None:
        count, first = self._running.get(who, (0, at))
        if count > 1:
            self._running[who] = count - 1, first
        elif count:
            del self._running[who]
            self._past.append((who, first, at))
            if len(self._past) > PAST_KEPT:
                self._since = max(self._since, self._past.popleft()[2] + SLACK_S)

    def at(self, moment: float) -> tuple[Author, ...] | None:
        """Return the authors whose acts ran at that time; None: not known any more."""
        if moment < self._since + SLACK_S:
            return None
        running = [who for who, (_, first) in self._running.items() if first - SLACK_S <= moment]
        return tuple(
            dict.fromkeys(
                [
                    *running,
                    *(
                        who
                        for who, first, last in self._past
                        if first - SLACK_S <= moment <= last + SLACK_S
                    ),
                ]
            )
        )


class InputGivers:
    """The operators who made or steered any session, since a known time."""

    def __init__(self, since: float) -> None:
        self._since = since  # earlier sessions may have had other operators
        self._past: set[str] | None = set()  # of sessions that ended; None: not known
        self._of: dict[str, Callable[[], Collection[str] | None]] = {}

    def began(self, session: str, names: Callable[[], Collection[str] | None]) -> None:
        self._of[session] = names

    def ended(self, session: str) -> None:
        if (names := self._of.pop(session, None)) is not None:
            self._past = _joined(self._past, names())

    def alone_at(self, moment: float) -> tuple[Author, ...] | None:
        """Return the only operator who can have ordered a write at that time; None: not known."""
        names = self._all()
        if names is None or len(names) != 1 or moment < self._since + SLACK_S:
            return None
        return tuple(Author("", Cause(name, None)) for name in names)

    def _all(self) -> set[str] | None:
        found = self._past
        for names in self._of.values():
            found = _joined(found, names())
        return found

    def save(self) -> list[Any]:
        names = self._all()
        return [self._since, None if names is None else sorted(names)]

    def restore(self, saved: list[Any]) -> None:
        """Load the answer of the last host, for the time before this host."""
        since, names = saved
        self._since, self._past = float(since), None if names is None else set(map(str, names))


def _joined(known: set[str] | None, more: Collection[str] | None) -> set[str] | None:
    if known is None or more is None or len(known) > NAMES_KEPT:
        return None
    return {*known, *more}
