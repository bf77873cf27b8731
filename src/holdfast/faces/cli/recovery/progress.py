"""Long work at the terminal: its progress, and Ctrl-C.

Ctrl-C gives the work up as long as that is harmless: the host undoes what has begun, and this
command says what is left. After that, Ctrl-C ends only this command: the work goes on, and this
command says where to look. The line of progress says which of the two holds. A second Ctrl-C ends
this command at once.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from holdfast.model.errors import HoldfastError, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, Final, TextIO

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json
else:
    import _signal as signal  # these commands load no more than they need

WAIT_S: Final = 3600.0  # a large session on a slow disk
QUIET_S: Final = 0.3  # short work shows nothing
_TICK_S: Final = 0.5
_WIDTH: Final = 100  # without a terminal to measure
_LEAST_WIDTH: Final = 40
GIVES_UP, GIVING_UP = "; Ctrl-C gives up", "; gives up ..."
LEAVES = "; Ctrl-C leaves it going on"
NOTHING: Final = "given up; nothing has begun"
CANCELLED: Final = "cancelled"  # a host's answer before the work began
# The host's names of steps that do not speak for themselves.
_STEPS: Final = {
    "examined": "looks at its processes",
    "begun": "stops its processes",
    "frozen": "its processes stand still",
    "saved": "its processes stand still",
    "resumed": "its processes go on; packs",
    "packed": "packs",
    "stored": "is on the disk",
    "sent": "sends",
    "copied": "copies files",
    "staged": "writes files",
    "written": "writes files",
    "unpacked": "unpacks",
    "stopped": "its processes have ended here",
}


class Interrupted(HoldfastError):
    """Ctrl-C: the work was given up, or goes on without this command."""

    name, exit_code = "interrupted", 130


class Progress:
    """Takes the host's events `progress`. Without a terminal it shows nothing.

    The first event has the expected bytes and seconds, later ones the bytes so far. `counted`:
    the step whose bytes say how much of the work is done. `stops`: Ctrl-C gives the work up.
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
        self.show = show and self._out.isatty()
        self._now, self._began = now, now()
        self._bytes, self._seconds = 0, 0.0
        self._event: Json = {"step": "", "bytes": 0}
        self._shown = self.giving_up = False
        self.begun = self.held = False  # `held`: it waits for an approver, which is shown
        self.stops = True
        self._painting = _thread.allocate_lock()

    def __call__(self, event: Json) -> None:
        if event.get("event") != "progress":
            return
        self.stops = event.get("stops") is not False
        self.begun, self.held = True, False
        if event["step"] == "examined":
            self._bytes, self._seconds = event["bytes"], event.get("seconds") or 0.0
        self._event = event
        self.paint()

    def paint(self) -> None:
        if not self.show:
            return
        with self._painting:
            if self.held:
                return
            passed = self._now() - self._began
            if passed < QUIET_S and not self._shown:
                return
            hint = GIVING_UP if self.giving_up else GIVES_UP if self.stops else LEAVES
            text = self._line(passed)
            width = _width(self._out)
            self._out.write(f"\r{text[: width - len(hint)]}{hint}\x1b[K")
            self._out.flush()
            self._shown = True

    def _line(self, passed: float) -> str:
        event = self._event
        step = str(event["step"])
        done = event["bytes"] if step == self._counted else 0
        words = _STEPS.get(step, step)
        if "left" in event:  # a drain tells of all its sessions
            words = f"{event['saved']} saved, {event['left']} left; {event['name']}: {words}"
            words += f" ({event['within']:.0f} s of the notice left)"
        if until := event.get("until"):
            at = time.strftime("%H:%M:%S", time.localtime(until))
            return f"{self._title}: {words}; waits until {at}"
        return line(self._title, words, done, self._bytes, passed, self._seconds)

    def clear(self) -> None:
        with self._painting:
            if self._shown:
                self._out.write("\r\x1b[K")
                self._out.flush()
                self._shown = False


def _width(out: TextIO) -> int:
    try:
        return max(_LEAST_WIDTH, os.get_terminal_size(out.fileno()).columns - 1)
    except (OSError, ValueError):
        return _WIDTH


def line(title: str, step: str, done: int, total: int, passed: float, expected: float) -> str:
    """`expected`: seconds for all. When bytes tell more, their rate counts."""
    amount = f"{done / 1e6:.0f} of about {max(total, done) / 1e6:.0f} MB" if done else step
    left = expected - passed
    if done and passed > expected / 2:
        left = passed * max(total - done, 0) / done
    more = f", about {left:.0f} s more" if left >= 1 else ""
    return f"{title}: {amount}{', ' if amount else ''}{passed:.0f} s{more}"


def carried_out(connection: Link, op: str, progress: Progress, look: str, **fields: Any) -> Json:
    """The reply to a long request. `look`: commands that tell how work ends that goes on."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        if progress.giving_up or not progress.stops or not connection.waits_for:
            raise KeyboardInterrupt
        progress.giving_up = True
        connection.give_up()

    def told(event: Json) -> None:
        progress(event)
        if progress.giving_up and not progress.stops:
            raise KeyboardInterrupt  # it was too late

    def held(event: Json) -> None:
        progress.held = True
        progress.clear()
        say(event)

    say, connection.on_held = connection.on_held, held
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else a caller ignores Ctrl-C, such as nohup
        signal.signal(signal.SIGINT, interrupted)
    over = _thread.allocate_lock()
    over.acquire()

    def tick() -> None:
        while not over.acquire(timeout=_TICK_S):
            progress.paint()

    if progress.show:
        _thread.start_new_thread(tick, ())
    try:
        fields.setdefault("wait_s", WAIT_S)
        return connection.request(op, on_event=told, **fields)
    except KeyboardInterrupt:
        if not progress.stops:
            raise Interrupted("it goes on without this command", look) from None
        if progress.begun or connection.waits_for:
            why = "left; the host gives it up, unless it was too late for that"
            raise Interrupted(why, look) from None
        raise Interrupted(NOTHING, "") from None
    except Refused as e:
        if progress.giving_up and (e.facts.get("given_up") or e.message == CANCELLED):
            why = NOTHING if e.message == CANCELLED else e.message
            raise Interrupted(why, "") from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        over.release()
        progress.held = True
        progress.clear()
