"""Frames over a unix socket on this machine.

The path of a socket has at most 107 bytes and the path of a home may be longer. Both ends then name
the socket through an open directory (`/proc/self/fd/N/name`), so no length is refused.
"""

from __future__ import annotations

import _socket
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_PATH_BYTES = 107
PAIR_BYTES = 64 * 1024


def _with_short_path(call: Callable[[str], None], path: str) -> None:
    """Call `call` with a name for `path` that fits into a socket address."""
    if len(os.fsencode(path)) <= _PATH_BYTES:
        return call(path)
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)


def connect(path: str, kind: int = _socket.SOCK_STREAM, blocking: bool = True) -> socket.socket:
    """Connect. If not `blocking`, raises BlockingIOError when the backlog is full."""
    import socket

    sock = socket.socket(socket.AF_UNIX, kind)
    sock.setblocking(blocking)
    _connect(sock, path)
    return sock


def connect_quickly(path: str) -> _socket.socket:
    """Connect with the compiled socket class alone, for programs that live some milliseconds.

    `import socket` builds its enumerations in Python, which takes 6 ms.
    """
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    _connect(sock, path)
    return sock


def _connect(sock: _socket.socket, path: str) -> None:
    try:
        _with_short_path(sock.connect, path)
    except BaseException:
        sock.close()
        raise


def receive(sock: _socket.socket, most: int, descriptors: int) -> tuple[bytes, list[int]]:
    """Bytes with the descriptors that came with them, as `socket.recv_fds` gives them."""
    data, ancillary, _, _ = sock.recvmsg(most, _socket.CMSG_LEN(descriptors * 4))
    found: list[int] = []
    for level, kind, body in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            found += struct.unpack(f"{len(body) // 4}i", body[: len(body) - len(body) % 4])
    return data, found


def listen(path: str, backlog: int = 128) -> socket.socket:
    """Bind under a fresh name, listen and rename, so that `path` always leads to a listener."""
    import socket

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = f"{path}.{os.getpid()}"
    old = os.umask(0o177)
    try:
        try:
            os.unlink(fresh)
        except FileNotFoundError:
            pass
        _with_short_path(sock.bind, fresh)
        sock.listen(backlog)
        os.rename(fresh, path)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(old)
    return sock


def pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected ends within this process, with small kernel buffers between them."""
    import socket

    made = socket.socketpair()
    for end in made:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, PAIR_BYTES)
    return made


def peer(sock: _socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the peer, from the kernel."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))
    return pid, uid
