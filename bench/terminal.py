"""A program in its own terminal, as a terminal emulator would run it, and ways to read its output.

The reader is the harness itself, in Python, about 4 KiB a read. The reader is part of every figure,
also of the bare terminal; that is why ratios are used. Reads block; a deadline is an alarm that
raises, because a poll before each read would cost the bare terminal more than the tools behind it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

ROWS, COLS = 24, 80
READ_BYTES = 64 * 1024
TAIL_BYTES = 64  # kept between reads, so that a mark split by two reads is found
QUIET_S = 0.5  # a terminal that is quiet for this long has shown all its output


class TooLong(Exception):
    """The awaited event did not happen in time."""


class ClientEnded(Exception):
    """The program in the terminal ended during a read."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    def expired(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"not within {seconds:g} s")

    old = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


class Terminal:
    """A running program; its output is counted, and kept on request."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.received = 0
        self.kept: list[bytes] | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLS, 0, 0))
                os.execvpe(argv[0], list(argv), dict(environ))
            finally:
                os._exit(127)

    def send(self, data: bytes) -> None:
        os.write(self.fd, data)

    def read(self) -> bytes:
        """The next bytes; empty when the program is gone."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except OSError:
            return b""
        self.received += len(data)
        if self.kept is not None:
            self.kept.append(data)
        return data

    def keep(self) -> None:
        """From here on, keep all output."""
        self.kept = []

    def shown(self) -> bytes:
        return b"".join(self.kept or ())

    def close(self) -> None:
        """Kill the program as by kill -9; its terminal disappears with the process."""
        if self.fd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def read_until(terminals: Sequence[Terminal], marks: Sequence[bytes], seconds: float) -> float:
    """Read all terminals until each has shown all marks, in their order.

    Returns the time of that moment (time.perf_counter).
    """
    todo = {t: list(marks) for t in terminals}
    tails = dict.fromkeys(terminals, b"")
    by_fd = {t.fd: t for t in terminals}
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    only = terminals[0] if len(terminals) == 1 else None
    with deadline(seconds):
        while todo:
            for terminal in [only] if only else [by_fd[fd] for fd, _ in poll.poll()]:
                data = terminal.read()
                if not data:
                    raise ClientEnded(f"the client ended; its last words: {tails[terminal]!r}")
                text = tails[terminal] + data
                left = todo.get(terminal)
                while left and (at := text.find(left[0])) >= 0:
                    text = text[at + len(left.pop(0)) :]
                    if not left:
                        del todo[terminal]
                tails[terminal] = text[-TAIL_BYTES:]
    return time.perf_counter()


def read_until_quiet(
    terminals: Sequence[Terminal], quiet_s: float = QUIET_S, seconds: float = 10.0
) -> None:
    """Read all terminals until all are quiet."""
    by_fd = {t.fd: t for t in terminals}
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    end = time.perf_counter() + seconds
    while by_fd and (ready := poll.poll(quiet_s * 1000)):
        for fd, _ in ready:
            if not by_fd[fd].read():
                poll.unregister(fd)
                del by_fd[fd]
        if time.perf_counter() > end:
            raise TooLong("it never becomes quiet")


class Signal:
    """A fifo by which a session's program reports to the harness, past the measured tool."""

    def __init__(self, path: str) -> None:
        self.path = path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Otherwise the reader would see end of file before a writer opened the fifo
        self._keep = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def wait(self, seconds: float) -> float:
        """Wait until the program wrote to the fifo. Returns the time of that moment."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(seconds * 1000):
            raise TooLong(f"no word from the program within {seconds:g} s")
        at = time.perf_counter()
        os.read(self._fd, 4096)
        return at

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._keep)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
