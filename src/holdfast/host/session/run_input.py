"""The input of a `run`: from the client's STDIN frames into the FIFO that the command reads.

The host lets the client send UPSTREAM_WINDOW_BYTES beyond the bytes that are in the FIFO. So a
command that reads slowly, or not at all, costs a bounded buffer here and stops the client. The host
asks for the first bytes after the shell has opened the FIFO: a run that is refused or held takes
no input.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections import deque
from typing import TYPE_CHECKING, Final

from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.flow import Upstream
from holdfast.host.session.session import Session
from holdfast.host.shell.run import open_stdin

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

OPEN_AGAIN_S: Final = 0.01  # between looks whether the shell has opened the FIFO


class Stdin:
    """The input of one run, until `close`."""

    def __init__(self, session: Session, conn: Connection, number: int) -> None:
        self._session = session
        # The ends of the FIFO. The host reads nothing; its own end shows how much is unread.
        self._fd = self._unread_fd = -1
        self._waiting: deque[bytes | memoryview] = deque()  # received, not in the FIFO
        self._written = 0
        self.complete = False  # the command can read all of it
        self.read = 0  # bytes that the command has read, known after `close`
        self._upstream = Upstream(conn, number, self._take)
        self._opening = session.spawn(self._open())

    async def _open(self) -> None:
        """Waits for the shell, which says that the run begins just before it opens the FIFO."""
        while True:
            try:
                fd = open_stdin(self._session.directories)
            except OSError:
                return  # the run is over
            if fd is not None:
                break
            await asyncio.sleep(OPEN_AGAIN_S)
        self._fd = fd
        with contextlib.suppress(OSError):
            self._unread_fd = os.open(
                f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        self._upstream.used(self._written)

    def _take(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
        if len(self._waiting) <= 1:
            self._pump()

    def _pump(self) -> None:
        try:
            while self._waiting:
                data = self._waiting[0]
                sent = os.write(self._fd, data)
                self._written += sent
                if sent == len(data):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = memoryview(data)[sent:]
        except BlockingIOError:
            self._session.loop.add_writer(self._fd, self._pump)
            return self._upstream.used(self._written)
        except OSError:  # no process has the other end any more
            self._waiting.clear()
            return self._shut()
        self._session.loop.remove_writer(self._fd)
        if self._upstream.over:
            self.complete = True
            self._upstream.complete()
            return self._shut()
        self._upstream.used(self._written)

    def _shut(self) -> None:
        """Closes the FIFO: the command reads the end after the bytes that are in it."""
        if self._fd >= 0:
            self._session.loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self._opening.cancel()
        self._upstream.close()
        self._shut()
        self._waiting.clear()
        if self._unread_fd >= 0:
            self.read = self._written - _unread(self._unread_fd)
            os.close(self._unread_fd)
            self._unread_fd = -1

    def facts(self) -> dict[str, Canonical]:
        """For the record: how much the command read, and whether it could read all."""
        return {"stdin": {"bytes": self.read, "complete": self.complete}}


def _unread(fd: int) -> int:
    """Bytes in the FIFO that no process has read."""
    with contextlib.suppress(OSError):
        count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
        return count
    return 0
