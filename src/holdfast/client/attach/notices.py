"""The line that attach shows over the first row for a moment. Pure.

A screen that has been requested would erase a notice unread. So the notice is kept until that
screen has arrived. Of several notices, only the last is shown.
"""

from __future__ import annotations

from holdfast.model.deque import deque

KEPT = 16
NOTICE_S = 2.0  # how long a notice covers the first row


class Notices:
    def __init__(self) -> None:
        self.until: float | None = None  # when the session's own first row is due again
        self.later = ""  # to be shown with the next screen
        self.shown = False  # the screen has arrived, and no further screen is requested
        self.kept: deque[str] = deque(maxlen=KEPT)  # the last notices, newest first
        self._reminds = True  # the user asked for the next screen
        self._again: float | None = None  # when a notice ends that a screen has wiped too early

    def say(self, text: str, now: float, covered: bool) -> str | None:
        """The text, if there is room now; `covered`: a list or question covers the screen."""
        if text not in list(self.kept)[:1]:
            self.kept.appendleft(text)
        if not self.shown:
            self.later = text
            return None
        if covered:
            return None
        self.until, self._again = self._again or now + NOTICE_S, None
        return text

    def page(self) -> list[str]:
        """The last notices, newest first, each at full length."""
        told = [f"  {text}" for text in self.kept] or ["  none so far"]
        return ["holdfast: the last notices, newest first", "", *told, "", "Any key returns."]

    def requested(self, reminds: bool) -> None:
        """A screen was requested; `reminds`: by the user, who may need a reminder."""
        self.shown, self._reminds = False, reminds

    def came(self, reminder: str | None) -> str | None:
        """A screen has replaced the last notice; returns the text to show on it."""
        self._again = None
        text: str | None = self.later
        unasked = self.shown and self.until is not None
        if not text and unasked and self.kept:
            text, self._again = self.kept[0], self.until
        text = text or (reminder if self._reminds else None)
        self.until, self.later, self.shown, self._reminds = None, "", True, False
        return text

    def due(self, now: float) -> bool:
        """Whether the notice has been shown long enough; the caller requests a screen."""
        if self.until is None or now < self.until:
            return False
        self.until = None
        return True
