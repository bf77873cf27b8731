"""The user's own terminal while attached: raw, and put back on every way out.

Output goes through a descriptor of its own that does not block (the shell shares the file description behind fd 1: making that one
non-blocking would outlive us if we are killed). What the terminal does not take is kept, at most one frame, and nothing
more is read from the host meanwhile: a slow terminal slows only itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import termios
import time
import tty
from fcntl import ioctl

from holdfast.model.errors import Usage

# Modes whose default differs between terminals, or that people choose: blinking, backspace, wheel in pagers, meta, urgency, clusters.
_PREFERENCES = b"12;67;1007;1034;1035;1036;1039;1042;2027"
_OFF = (
    1,
    5,
    40,
    45,
    1045,
    9,
    1000,
    1001,
    1002,
    1003,
    1005,
    1006,
    1015,
    1016,
    1004,
    2004,
    2026,
    2031,
    2033,
    2048,
    6,
    69,
)
_NO_KEYS = b"\x1b[<99u\x1b[=0u"
_COLOURS = b"".join(
    b"\x1b]%d\x1b\\" % number for number in (104, 105, 110, 111, 112, 113, 114, 117, 119)
)
# Leaves every mode a program may have set, whatever sequence it was in: VT52, status line, alternate screen and kitty's keys on both,
# preferences, modes, keys, colours and pointer, pen, link and protection, character sets, region, cursor.
RESET = (
    b"\x18\x1b\\\x1b<\x1b[0$}"
    + _NO_KEYS
    + b"\x1b7\x1b[?1049l\x1b[?1047l\x1b[?47l"
    + _NO_KEYS
    + b"\x1b[?"
    + _PREFERENCES
    + b"r"
    + b"".join(b"\x1b[?%dl" % mode for mode in _OFF)
    + b"\x1b[?7h\x1b[?8h\x1b[2l\x1b[4l\x1b[12h\x1b[20l\x1b>\x1b[>1m\x1b[>2m\x1b[>4m"
    + _COLOURS
    + b'\x1b]22;\x1b\\\x1b[0m\x1b]8;;\x1b\\\x1b[0"q\x1b(B\x1b)B\x1b*B\x1b+B\x0f\x1b}\x1b[r\x1b[?25h\x1b[0 q'
)
LEAVE_WAIT_S = 1.0  # for a terminal to take the sequences that reset it
SAVE, RESTORE_TITLE = b"\x1b[22;0t\x1b[?" + _PREFERENCES + b"s", b"\x1b[23;0t"


def farewell(cols: int, rows: int) -> bytes:
    """What puts a terminal of that size back; the cursor ends on a fresh line."""
    tabs = b"\x1b[3g" + b"".join(b"\x1b[%dG\x1bH" % column for column in range(9, cols + 1, 8))
    return RESET + tabs + b"\x1b[%d;1H\r\n\x1b7" % max(rows, 1) + RESTORE_TITLE


class UserTerminal:
    def __init__(self) -> None:
        if not (os.isatty(0) and os.isatty(1)):
            raise Usage(
                "attach needs a terminal",
                "use `holdfast view`, `read`, `send` or `run` from scripts",
            )
        self._saved = termios.tcgetattr(0)
        self.pending: memoryview | None = None
        try:
            self.out = os.open(
                os.ttyname(1), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            self.out = os.dup(1)
        self.raw = False

    def size(self) -> tuple[int, int]:
        try:
            rows, cols = struct.unpack("HHHH", ioctl(1, termios.TIOCGWINSZ, bytes(8)))[:2]
        except OSError:
            return 0, 0
        return cols, rows

    def enter(self) -> None:
        """Also again, when somebody else had the terminal meanwhile."""
        tty.setraw(0, termios.TCSANOW)
        if not self.raw:
            self.raw = True
            self.write(SAVE)

    def leave(self) -> None:
        """Back to how it was. Safe to call twice."""
        if not self.raw:
            return
        self.raw = False
        self.pending = None
        taken = self._write_all(farewell(*self.size()))
        with contextlib.suppress(
            OSError, termios.error
        ):  # a terminal that is gone needs no restoring
            termios.tcsetattr(0, termios.TCSADRAIN if taken else termios.TCSANOW, self._saved)

    def _write_all(self, data: bytes) -> bool:
        """False if the terminal did not take all of it: one that stands still must not keep us from leaving."""
        deadline = time.monotonic() + LEAVE_WAIT_S
        poll = select.poll()
        poll.register(self.out, select.POLLOUT)
        while data:
            try:
                data = data[os.write(self.out, data) :]
            except BlockingIOError:
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    return False
            except OSError:
                return False
        return True

    def takes(self) -> bool:
        """Whether it takes anything at all: the last word is not worth hanging for."""
        poll = select.poll()
        poll.register(self.out, select.POLLOUT)
        return bool(poll.poll(LEAVE_WAIT_S * 1000))

    def write(self, data: bytes | memoryview) -> None:
        """Only when nothing is pending."""
        try:
            n = os.write(self.out, data)
        except BlockingIOError:
            n = 0
        self.pending = (
            memoryview(bytes(data))[n:] if n < len(data) else None
        )  # copied once, if it is not ours

    def flush(self) -> None:
        """A terminal takes some 4 KiB at a time: what is left is not copied again for each of them."""
        if self.pending is not None:
            try:
                n = os.write(self.out, self.pending)
            except BlockingIOError:
                return
            self.pending = self.pending[n:] if n < len(self.pending) else None


def poke(pipe: int) -> None:
    """Wakes up who polls the other end, from another thread."""
    with contextlib.suppress(OSError):
        os.write(pipe, b"\0")
