"""Shows the progress of long work on the terminal: bytes, time, and the time that is left."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, TextIO

    from holdfast.model.jsontext import Json

QUIET_S: Final = 0.3  # short work shows nothing
_WIDTH: Final = 78


class Progress:
    """Takes the host's events `progress`. Without a terminal it shows nothing.

    The first event has the expected bytes and seconds, later ones the bytes so far. `counted`:
    steps whose bytes say how much of the work is done.
    """

    def __init__(
        self,
        title: str,
        counted: str,
        show: bool,
        out: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._counted = title, counted
        self._out = out or sys.stderr
        self._show = show and self._out.isatty()
        self._now, self._began = now, now()
        self._bytes, self._seconds = 0, 0.0
        self._shown = False

    def __call__(self, event: Json) -> None:
        if event.get("event") != "progress" or not self._show:
            return
        if event["step"] == "examined":
            self._bytes, self._seconds = event["bytes"], event.get("seconds") or 0.0
        done = event["bytes"] if event["step"] == self._counted else 0
        passed = self._now() - self._began
        if passed < QUIET_S and not self._shown:
            return
        text = line(self._title, event["step"], done, self._bytes, passed, self._seconds)
        self._out.write(f"\r{text[:_WIDTH]}\x1b[K")
        self._out.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()


def line(title: str, step: str, done: int, total: int, passed: float, expected: float) -> str:
    """`expected`: seconds for all. When bytes tell more, their rate counts."""
    amount = f"{done / 1e6:.0f} of about {max(total, done) / 1e6:.0f} MB" if done else step
    left = expected - passed
    if done and passed > expected / 2:
        left = passed * max(total - done, 0) / done
    more = f", about {left:.0f} s more" if left >= 1 else ""
    return f"{title}: {amount}, {passed:.0f} s{more}"
