"""What attach says on the first line for a moment, and when: not onto a screen that is about to be replaced.

A screen that is on its way would wipe a notice away unread. Until it is there, the notice is kept and said then; of several the last one counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.client.overlay import Overlay

NOTICE_S = 2.0  # how long a notice covers the first line


class Notices:
    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self.until: float | None = None  # when the session's own first line is due again
        self.later = ""  # said once the screen is there
        self.shown = False  # it is, and no other one is on its way
        self._reminds = True  # the user asked for the screen that is on its way

    def say(self, text: str) -> None:
        if not self.shown:
            self.later = text
        elif not self._overlay.covering:
            self._overlay.notice(text)
            self.until = time.monotonic() + NOTICE_S

    def awaits(self, reminds: bool) -> None:
        """A screen was asked for."""
        self.shown, self._reminds = False, reminds

    def came(self, reminder: str | None) -> None:
        """The screen is there, and covered what was said before it. `reminder`: for who has looked away meanwhile, if nothing newer is to be said."""
        text = self.later or (reminder if self._reminds else None)
        self.until, self.later, self.shown, self._reminds = None, "", True, False
        if text:
            self.say(text)

    def due(self) -> bool:
        """Whether what was said has stood long enough; the caller draws the session again."""
        if self.until is None or time.monotonic() < self.until:
            return False
        self.until = None
        return True
