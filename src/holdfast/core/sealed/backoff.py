"""The pause before the next attempt to reach a peer that was reachable before. Pure.

Short outages end quickly, so the pauses double from `first` up to QUICK_S and stay there. In a long
outage haste gains nothing: all clients of a machine that is switched off for the night must not
each dial it eighty thousand times, with a handshake each time. So a pause grows with the outage, to
SHARE of it, up to `most`: after one minute the pause is three seconds, not a minute. `luck` spreads
the clients that lost the same relay at the same moment.

A connection that did not last is not a success: the pauses continue where they were. Nor is a dial
that hung a connection.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


QUICK_S: Final = 0.5
SHARE: Final = 1 / 20
STEADY_S: Final = 5.0  # a connection that lasted this long resets the pauses


class Patience:
    """The pauses for one peer."""

    def __init__(self, first: float, most: float, steady_s: float = STEADY_S) -> None:
        self._first, self._most, self._steady = first, most, steady_s
        self._since: float | None = None  # when the outage began
        self._reached: float | None = None
        self._pause = first

    def reached(self, now: float) -> None:
        self._reached = now

    def pause(self, now: float, luck: float = 0.5) -> float:
        """Return the seconds until the next attempt, after a failure; `luck` is from 0 to 1."""
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
