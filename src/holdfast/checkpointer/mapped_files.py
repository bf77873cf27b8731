"""Opens deleted files that programs of a session have mapped, for CRIU inside the namespaces.

The kernel lets only the machine's root open an entry of /proc/PID/map_files. CRIU has left that
account for the session's user namespace, so it asks a process that stays outside (shim.c). CRIU
finds all other mapped files by their names.
"""

from __future__ import annotations

import contextlib
import os
import struct

from holdfast.checkpointer.criu import received
from holdfast.wire.checkpointing import is_deleted_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import NoReturn
else:
    import _socket as socket


@contextlib.contextmanager
def opener() -> Iterator[socket.socket | None]:
    """Have a process that opens files, started before this one leaves the machine's namespaces.

    Yields the line to it, or None for an ordinary user. The process ends with the line, and is
    collected: the host waits for the end of every process of the checkpointer.
    """
    if os.geteuid():
        yield None
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _serve(theirs)
    theirs.close()
    try:
        yield ours
    finally:
        ours.shutdown(socket.SHUT_RDWR)  # a child that hangs may have it too
        ours.close()
        os.waitpid(pid, 0)


def _serve(line: socket.socket) -> NoReturn:
    try:
        while fds := _answer(line):
            for fd in fds:
                os.close(fd)
    finally:
        os._exit(0)


def _answer(line: socket.socket) -> list[int]:
    """Answer one question. Return the descriptors to close; none at the end of the line."""
    name, asked = received(line, 1)
    if not asked:
        return []
    found = list[int]()
    with contextlib.suppress(OSError):
        if is_deleted_file(os.readlink(name, dir_fd=asked[0]).decode("utf-8", "replace")):
            found.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=asked[0]))
    rights = struct.pack(f"{len(found)}i", *found)
    line.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if found else [])
    return asked + found
