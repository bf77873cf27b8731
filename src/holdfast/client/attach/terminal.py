"""The user's own terminal while attached: in raw mode, and restored on every way out.

Output goes through a separate non-blocking descriptor. The shell shares the file description behind
fd 1: if fd 1 became non-blocking, fd 1 would stay non-blocking after this process is killed. Output
that the terminal does not take is kept, at most a frame. Meanwhile the client reads no more from
the host, so a slow terminal slows no other client.
"""

from __future__ import annotations

import os
import select
import struct
import termios
import time
import tty
from fcntl import ioctl

from holdfast.model.errors import Usage

# Modes that people choose, or with defaults that differ between terminals: blinking, backspace,
# wheel in pagers, meta, urgency, clusters.
_PREFERENCES = b"12;67;1007;1034;1035;1036;1039;1042;2027"
_OFF = (
    b"1 5 40 45 1045 9 1000 1001 1002 1003 1005 1006 1015 1016 1004 2004 2026 2031 2033 2048 6 69"
)
_NO_KEYS = b"\x1b[<99u\x1b[=0u"
_COLOURS = b"".join(
    b"\x1b]%d\x1b\\" % number for number in (104, 105, 110, 111, 112, 113, 114, 117, 119)
)
# Pen, link, protection and character sets. Both screens get it: each has a saved cursor.
_PEN = b'\x1b[0m\x1b]8;;\x1b\\\x1b[0"q\x1b(B\x1b)B\x1b*B\x1b+B\x1b}\x0f'
# Leaves every mode that a program may have set, even in the middle of a sequence: VT52, status
# line, alternate screen and kitty's keys on both screens, preferences, modes, keys, colours and
# pointer, pen, link and protection, character sets, region, cursor.
RESET = (
    b"\x18\x1b\\\x1b<\x1b[0$}"
    + _NO_KEYS
    + _PEN
    + b"\x1b[?6l\x1b[H\x1b7\x1b[?1049l\x1b[?1047l\x1b[?47l"
    + _NO_KEYS
    + b"\x1b[?"
    + _PREFERENCES
    + b"r"
    + b"".join(b"\x1b[?%bl" % mode for mode in _OFF.split())
    + b"\x1b[?7h\x1b[?8h\x1b[2l\x1b[4l\x1b[12h\x1b[20l\x1b>\x1b[>1m\x1b[>2m\x1b[>4m"
    + _COLOURS
    + b"\x1b]22;\x1b\\"
    + _PEN
    + b"\x1b[r\x1b[?25h\x1b[0 q"
)
LEAVE_WAIT_S = 1.0  # for a terminal to take the reset sequences
SAVE, RESTORE_TITLE = b"\x1b[22;0t\x1b[?" + _PREFERENCES + b"s", b"\x1b[23;0t"


def farewell(cols: int, rows: int) -> bytes:
    """The bytes that restore a terminal of that size; the cursor ends on a fresh line."""
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
        """Set raw mode; also called after a different program used the terminal."""
        tty.setraw(0, termios.TCSANOW)
        if not self.raw:
            self.raw = True
            self.write(SAVE)

    def leave(self) -> None:
        """Restore the terminal. Safe to call twice."""
        if not self.raw:
            return
        self.raw = False
        self.pending = None
        taken = self._write_all(farewell(*self.size()))
        try:
            termios.tcsetattr(0, termios.TCSADRAIN if taken else termios.TCSANOW, self._saved)
        except (OSError, termios.error):  # the terminal is gone
            pass

    def _write_all(self, data: bytes) -> bool:
        """False if the terminal did not take all: a stopped terminal must not block our exit."""
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
        """Whether the terminal takes output at all: the last line is not worth waiting for."""
        poll = select.poll()
        poll.register(self.out, select.POLLOUT)
        return bool(poll.poll(LEAVE_WAIT_S * 1000))

    def write(self, data: bytes | memoryview) -> None:
        """Write to the terminal; call only if no output is pending."""
        try:
            n = os.write(self.out, data)
        except BlockingIOError:
            n = 0
        self.pending = memoryview(bytes(data))[n:] if n < len(data) else None

    def write_between(self, data: bytes) -> None:
        """Write if all earlier output is out, so that `data` does not land inside a sequence."""
        if data and self.pending is None:
            self.write(data)

    def flush(self) -> None:
        """Write more of the rest, without a copy: a terminal takes some 4 KiB at a time."""
        if self.pending is not None:
            try:
                n = os.write(self.out, self.pending)
            except BlockingIOError:
                return
            self.pending = self.pending[n:] if n < len(self.pending) else None


def poke(pipe: int) -> None:
    """Wake the loop that polls the other end, from any thread."""
    try:
        os.write(pipe, b"\0")
    except OSError:
        pass
