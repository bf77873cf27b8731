"""When which act had something running: for files whose writer nobody told (P3). No I/O, no clock.

An act runs while the shell executes it or any process that it started is left. What is known reaches back as far as PAST_KEPT ends of acts; before that nobody can say who ran.
Moments are the wall clock's, and those who tell them are a little late: an act counts as running SLACK_S before and after.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from holdfast.core.writers import Author

PAST_KEPT: Final = 4096
RUNNING_MAX: Final = 4096
SLACK_S: Final = 0.5


class Activity:
    def __init__(self, since: float) -> None:
        self._since = since  # before that nothing is known
        self._running: dict[Author, tuple[int, float]] = {}
        self._past: deque[tuple[Author, float, float]] = deque()

    def began(self, who: Author, at: float) -> None:
        count, first = self._running.get(who, (0, at))
        if not count and len(self._running) >= RUNNING_MAX:
            self._since = math.inf  # from here on nobody can say
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
        """Whose acts ran then; None: that is not known any more."""
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
