"""When somebody who lost the host tries again. The attach loop asks it; nothing here dials.

The host of this machine is either back within a moment or somebody says so: half a second between attempts. Another machine may be off for days, and everyone who was attached to
it may have lost the same relay at the same moment: the pauses grow and differ (core/patience.py). A key that is typed meanwhile is somebody who wants it: the next attempt is
soon, however long the outage.
"""

from __future__ import annotations

import os
import time
from typing import Final

from holdfast.core.patience import QUICK_S, STEADY_S, Patience
from holdfast.model.limits import RECONNECT_FIRST_S, RECONNECT_MAX_S, REMOTE_AGAIN_MAX_S

STATUS_AFTER_S: Final = 1.0  # a host away for longer than this is said so on the last line


class Returning:
    def __init__(self, remote: bool) -> None:
        self.at = 0.0  # when to try next
        self._remote = remote
        self._since: float | None = None  # away
        self._tried = 0.0
        self._patience = Patience(
            RECONNECT_FIRST_S,
            REMOTE_AGAIN_MAX_S if remote else RECONNECT_MAX_S,
            STEADY_S if remote else 0.0,
        )

    @property
    def long(self) -> bool:
        """Away for so long that it is to be said."""
        return self._since is not None and time.monotonic() - self._since > STATUS_AFTER_S

    def lost(self) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self.failed()

    def tries(self) -> None:
        self._tried = time.monotonic()

    def looks(self) -> None:
        """A thread looks for the way, and tells when it has found out."""
        self.at = time.monotonic() + RECONNECT_MAX_S

    def failed(self) -> None:
        now = time.monotonic()
        self.at = now + self._patience.pause(now, os.urandom(1)[0] / 255 if self._remote else 0.5)

    def typed(self) -> None:
        self.at = min(self.at, self._tried + QUICK_S)

    def reached(self) -> None:
        self._since = None
        self._patience.reached(time.monotonic())
