"""The input of a `run`: read from a descriptor as far as the host allows, and sent in STDIN frames.

A terminal, /dev/null and a closed descriptor are no input: the command then reads the session's
terminal, where an operator can answer it. The client reads nothing before the shell has started the
command. Bytes of a file that the command did not read are given back, so that a loop like `while
read LINE` over the file goes on with its next line. Bytes from a pipe cannot be given back.
"""

from __future__ import annotations

import os
import stat

from holdfast.model.errors import Lost
from holdfast.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket

    from holdfast.model.jsontext import Json

CHUNK_BYTES = 64 * 1024


class Source:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._start = os.lseek(fd, 0, os.SEEK_CUR) if self._file else 0
        self._number: int | None = None  # of the request
        self._sent = self._allowed = 0
        self._over = False
        self._complete = False  # the host has said that the command can read all
        self.cut = False  # the connection ended before that

    def begin(self, number: int) -> None:
        """Note the number of the request, which was sent, perhaps again on another connection.

        The host allows input only after the command has started. If this client has sent input and
        then repeats the request, the command is running already. Its input ended when the first
        connection was lost, so the input is cut.
        """
        self.cut = self.cut or (self._sent > 0 and not self._complete)
        self._number = number

    def allowed(self, event: Json) -> None:
        """The host can take more, or has given everything to the command."""
        self._complete = self._complete or bool(event.get("done"))
        self._allowed = int(event["until"])

    @property
    def wanted(self) -> bool:
        return self._sent < self._allowed and not self._over and not self.cut

    def wait(self, sock: Socket) -> bytes | None:
        """The next STDIN frame to send; None when the socket can be read."""
        import select

        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if self.wanted:
            poll.register(self._fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if sock.fileno() in ready or self._fd not in ready or self._number is None:
            return None
        try:
            data = os.read(self._fd, min(CHUNK_BYTES, self._allowed - self._sent))
        except OSError:
            data = b""
        frame = frames.stdin(self._number, self._sent, data)
        self._over = not data
        self._sent += len(data)
        return frame

    def finish(self, answer: Json) -> None:
        """Give back unread bytes; Lost if the command may have read a part only."""
        if self.cut:
            raise Lost(
                "the connection broke while the command read its input: it may have read only a "
                f"part, at most {self._sent} bytes; it ended with {answer['exit_code']}",
                "look at its effect, then run it again",
            )
        if self._file and isinstance(read := answer.get("stdin"), int):
            os.lseek(self._fd, self._start + read, os.SEEK_SET)


def source(fd: int) -> Source | None:
    """The input behind a descriptor; None if there is none to pass on."""
    try:
        found = os.fstat(fd)
        if os.isatty(fd) or (stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)):
            return None
        if stat.S_ISDIR(found.st_mode):
            return None
        return Source(fd)
    except OSError:
        return None
