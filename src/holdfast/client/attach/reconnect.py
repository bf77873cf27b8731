"""When a client that lost its host tries again. Pure: time in, the next attempt out.

The host of this machine is back within a moment, unless `down` has stopped the host: half a second
between attempts. A remote machine may be off for days, and all clients of a relay may have lost the
relay at once: the pauses grow and differ (core/sealed/backoff.py). A key that is typed meanwhile
shows that a user waits: the next attempt follows soon, however long the outage.
"""

from __future__ import annotations

import os

from holdfast.core.sealed.backoff import QUICK_S, STEADY_S, Patience
from holdfast.model.limits import RECONNECT_FIRST_S, RECONNECT_MAX_S, REMOTE_AGAIN_MAX_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STATUS_AFTER_S = 1.0  # an outage that is longer than this is shown to the user


def _random() -> float:
    return os.urandom(1)[0] / 255


class Reconnect:
    def __init__(self, remote: bool, luck: Callable[[], float] = _random) -> None:
        self.at = 0.0  # when to try next
        self._luck = luck if remote else lambda: 0.5
        self._since: float | None = None  # when the outage began
        self._tried = 0.0
        self._patience = Patience(
            RECONNECT_FIRST_S,
            REMOTE_AGAIN_MAX_S if remote else RECONNECT_MAX_S,
            STEADY_S if remote else 0.0,
        )

    def long(self, now: float) -> bool:
        """Whether the outage has lasted so long that the user is told."""
        return self._since is not None and now - self._since > STATUS_AFTER_S

    def lost(self, now: float) -> None:
        if self._since is None:
            self._since = now
            self.failed(now)

    def tries(self, now: float) -> None:
        self._tried = now

    def dials(self, now: float) -> None:
        """A thread opens the line, and reports the end of the attempt."""
        self.at = now + RECONNECT_MAX_S

    def failed(self, now: float) -> None:
        self.at = now + self._patience.pause(now, self._luck())

    def typed(self) -> None:
        self.at = min(self.at, self._tried + QUICK_S)

    def reached(self, now: float) -> None:
        self._since = None
        self._patience.reached(now)
