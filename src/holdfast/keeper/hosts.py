"""Connections to the keeper: the host with the highest term so far, and unidentified newcomers.

A newcomer may stay silent. When there are too many, the oldest is dropped, so that silent peers
cannot lock a host out. Answers are never queued: a host that does not read them is dropped,
reconnects with a new term and asks again.
"""

from __future__ import annotations

import _socket
import os
import select

from holdfast.keeper import listening
from holdfast.model.limits import KEEPER_BACKLOG
from holdfast.wire import keeper as wire

_ONCE_PER_ARRIVAL = select.EPOLLIN | select.EPOLLET  # a failing accept must not cause a busy loop


class Hosts:
    __slots__ = (
        "directory",
        "fresh",
        "host",
        "inode",
        "listener",
        "name",
        "newcomers",
        "poll",
        "term",
    )

    def __init__(
        self, poll: select.epoll, directory: str, name: str, fresh: str, inode: int, listener: int
    ) -> None:
        self.poll = poll
        self.directory, self.name = directory, name  # of the listening socket
        self.fresh, self.inode = fresh, inode  # the socket file's temporary name and its inode
        self.term = 0
        self.host: _socket.socket | None = None
        self.newcomers: dict[int, _socket.socket] = {}  # by descriptor, oldest first
        self.listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, listener)

    def listen(self) -> None:
        self.listener.setblocking(False)
        listening.listen(self.listener, self.fresh, self.name)
        self.fresh = ""
        self.poll.register(self.listener.fileno(), _ONCE_PER_ARRIVAL)

    def listen_anew(self) -> None:
        """Listen again if the socket's file was removed, or its directory removed and recreated."""
        try:
            os.chdir(self.directory)
            if self.inode == listening.inode(self.name):
                return
            fresh, self.fresh = listening.bind(self.name, _socket.SOCK_SEQPACKET)
            self.inode = listening.inode(self.fresh)
        except OSError:
            return
        self.listener.close()
        self.listener = fresh
        self.listen()

    def accept(self) -> None:
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        self.poll.modify(self.listener.fileno(), _ONCE_PER_ARRIVAL)  # report the next one, if any
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
        if not listening.same_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        if len(self.newcomers) >= KEEPER_BACKLOG:
            self.drop(next(iter(self.newcomers.values())))
        self.newcomers[fd] = sock
        self.poll.register(fd, select.EPOLLIN)

    def claim(self, sock: _socket.socket, packet: bytes) -> bool:
        """Handle a newcomer's introduction. Return whether it is the host from now on."""
        lowest, highest, term = wire.read_hello(packet)
        if not lowest <= wire.VERSION <= highest:
            self.refuse(sock, wire.REFUSED_VERSION, wire.VERSION)
            return False
        if term <= self.term:
            self.refuse(sock, wire.REFUSED_TERM, self.term)
            return False
        if self.host is not None:
            self.drop(self.host)
        del self.newcomers[sock.fileno()]
        self.host, self.term = sock, term
        return True

    def send(self, packet: bytes, fds: bytes = b"") -> None:
        if self.host is not None:
            try:
                self.host.sendmsg(
                    [packet], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)] if fds else ()
                )
            except OSError:
                self.drop(self.host)

    def refuse(self, sock: _socket.socket, reason: int, value: int) -> None:
        try:
            sock.send(wire.refused(reason, value))
        except OSError:
            pass
        self.drop(sock)

    def drop(self, sock: _socket.socket) -> None:
        """Close a connection; the kernel removes it from the poll."""
        self.newcomers.pop(sock.fileno(), None)
        if sock is self.host:
            self.host = None
        sock.close()

    def close(self) -> None:
        for sock in (self.listener, self.host, *self.newcomers.values()):
            if sock is not None:
                sock.close()
        listening.forget(self.fresh or self.name)
