"""Sockets at which a keeper and the nursery listen, in the nursery's directory."""

from __future__ import annotations

import _socket
import os
import struct

from holdfast.model.limits import LISTEN_BACKLOG

_CREDENTIALS = struct.Struct("3i")


def same_user(sock: _socket.socket) -> bool:
    """Tell whether the peer is this account or root; does not rely on the directory's mode."""
    uid = _CREDENTIALS.unpack(sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))[1]
    return uid in (os.geteuid(), 0)


def bind(name: str, kind: int) -> tuple[_socket.socket, str]:
    """Make a socket that will listen at `name`; return it with its temporary name."""
    listener = _socket.socket(_socket.AF_UNIX, kind)
    fresh = f".{name}.{os.getpid()}"
    forget(fresh)
    listener.bind(fresh)
    return listener, fresh


def inode(name: str) -> int:
    """Return the inode of a file, or 0 if the file does not exist."""
    try:
        return os.stat(name).st_ino
    except FileNotFoundError:
        return 0


def listen(listener: _socket.socket, fresh: str, name: str) -> None:
    """Listen, then rename, so that `name` never leads to a socket that does not listen.

    The peer credentials that a client sees are those of the process that called listen.
    """
    listener.listen(LISTEN_BACKLOG)
    os.rename(fresh, name)


def forget(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        pass


def answers(name: str) -> bool:
    """Tell whether a process listens at `name`: replacing it would cut off a live session."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        sock.connect(name)
        return True
    except OSError:
        return False
    finally:
        sock.close()
