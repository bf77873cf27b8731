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

# Leaves every mode a program may have set: alternate screen, mouse, paste, focus, keys, region, colours, cursor.
RESET = (b"\x1b[?1049l\x1b[?47l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>"
         b"\x1b[?6l\x1b[?7h\x1b[4l\x1b[20l\x1b[2l\x1b[?5l\x1b[?9l\x1b[?69l\x1b[?1016l\x1b[?2031l\x1b[?2026l\x1b[=0u\x1b[>4m\x1b[r\x1b[0m\x1b(B"
         b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\\x1b[?25h\x1b[0 q\x0f")
LEAVE_WAIT_S = 1.0         # for a terminal to take the sequences that reset it
SAVE_TITLE, RESTORE_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"


class UserTerminal:
    def __init__(self) -> None:
        if not (os.isatty(0) and os.isatty(1)):
            raise Usage("attach needs a terminal", "use `holdfast view`, `read`, `send` or `run` from scripts")
        self._saved = termios.tcgetattr(0)
        self.pending: memoryview | None = None
        try:
            self.out = os.open(os.ttyname(1), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
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
        tty.setraw(0, termios.TCSANOW)
        self.raw = True

    def leave(self) -> None:
        """Back to how it was. Safe to call twice."""
        if not self.raw:
            return
        self.raw = False
        self.pending = None
        _, rows = self.size()
        taken = self._write_all(RESET + b"\x1b[%d;1H\r\n" % max(rows, 1) + RESTORE_TITLE)
        with contextlib.suppress(OSError, termios.error):       # a terminal that is gone needs no restoring
            termios.tcsetattr(0, termios.TCSADRAIN if taken else termios.TCSANOW, self._saved)

    def _write_all(self, data: bytes) -> bool:
        """False if the terminal did not take all of it: one that stands still must not keep us from leaving."""
        deadline = time.monotonic() + LEAVE_WAIT_S
        poll = select.poll()
        poll.register(self.out, select.POLLOUT)
        while data:
            try:
                data = data[os.write(self.out, data):]
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
        self.pending = memoryview(bytes(data))[n:] if n < len(data) else None     # copied once, if it is not ours

    def flush(self) -> None:
        """A terminal takes some 4 KiB at a time: what is left is not copied again for each of them."""
        if self.pending is not None:
            try:
                n = os.write(self.out, self.pending)
            except BlockingIOError:
                return
            self.pending = self.pending[n:] if n < len(self.pending) else None
