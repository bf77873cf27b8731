"""Frames over a unix socket on this machine.

A socket's path may be 107 bytes long, a home's path longer: both ends then name it through an open directory
(`/proc/self/fd/N/name`), so no length is refused.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_PATH_BYTES = 107
PAIR_BYTES = 64 * 1024


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name for `path` that fits into a socket address."""
    if len(os.fsencode(path)) <= _PATH_BYTES:
        yield path
        return
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def connect(path: str, kind: int = socket.SOCK_STREAM, blocking: bool = True) -> socket.socket:
    """Not blocking: BlockingIOError if so many wait already that the kernel would let us wait too."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.setblocking(blocking)
    try:
        with short_path(path) as name:
            sock.connect(name)
    except BaseException:
        sock.close()
        raise
    return sock


def listen(path: str, backlog: int = 128) -> socket.socket:
    """Binds under a fresh name and renames, so that the path never leads to a socket that is not listening yet."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = f"{path}.{os.getpid()}"
    old = os.umask(0o177)
    try:
        try:
            os.unlink(fresh)
        except FileNotFoundError:
            pass
        with short_path(fresh) as name:
            sock.bind(name)
        sock.listen(backlog)
        os.rename(fresh, path)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(old)
    return sock


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends within this process, with little in the kernel between them: what does not fit must be seen to wait."""
    made = socket.socketpair()
    for end in made:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, PAIR_BYTES)
    return made


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end, from the kernel."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
