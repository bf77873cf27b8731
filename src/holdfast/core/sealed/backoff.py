"""How long to wait before trying again to reach somebody who was there before. Pure: time and luck in, seconds out.

Short outages end quickly, so the pauses double from `first` up to QUICK_S and stay there. In a long one nobody gains from haste: a machine that was switched off for the
night must not be asked for eighty thousand times, by each of its clients, with a handshake each time. So a pause grows with the outage, to SHARE of it, up to
`most`: whoever waited a minute waits three seconds more, not a minute. Luck spreads those who lost the same relay at the same moment.

A connection that did not last is no success: the pauses go on from where they were. And a dial that hung is no connection.
"""

from __future__ import annotations

from typing import Final

QUICK_S: Final = 0.5
SHARE: Final = 1 / 20
STEADY_S: Final = 5.0  # a connection that lasted this long was a good one: the pauses begin anew


class Patience:
    def __init__(self, first: float, most: float, steady_s: float = STEADY_S) -> None:
        self._first, self._most, self._steady = first, most, steady_s
        self._since: float | None = None  # when the outage began
        self._reached: float | None = None
        self._pause = first

    def reached(self, now: float) -> None:
        self._reached = now

    def pause(self, now: float, luck: float = 0.5) -> float:
        """It is lost, or was not reached: seconds until the next try. `luck`: between 0 and 1."""
        if self._reached is not None and now - self._reached >= self._steady:
            self._since = None
        self._reached = None
        if self._since is None:
            self._since, self._pause = now, self._first
        else:
            self._pause = min(
                self._pause * 2, max(QUICK_S, (now - self._since) * SHARE), self._most
            )
        return self._pause * (0.5 + luck)
