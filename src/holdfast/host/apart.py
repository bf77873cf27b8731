"""The beginning of a file, read by a thread that shares its descriptors with nobody.

Whoever is forked from a process has its descriptors and closes them first, and so does whoever goes away; and a file of a FUSE program is closed when that program says that it has heard of it. So one file of
one session that is open here, and whose file system does not answer any more, would keep everything that the host starts (the parser, plug-ins, the next host) and its lock. In a table of descriptors of its
own it keeps only the thread that reads it. (Descriptors by which nothing can be read, O_PATH, are closed without asking anybody.)
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final

_CLONE_FILES: Final = 0x400
_FDS: Final = 1 << 30
_libc = ctypes.CDLL(None, use_errno=True)


def beginning(path_only: int, count: int) -> bytes:
    """Of the file that this descriptor (O_PATH) leads to. OSError; blocks as long as its file system wants to: for a thread of somebody's own."""
    found: list[bytes | OSError] = []
    reader = threading.Thread(target=_read, args=(path_only, count, found), name="apart", daemon=True)
    reader.start()
    reader.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _read(path_only: int, count: int, found: list[bytes | OSError]) -> None:
    try:
        if not _libc.unshare(_CLONE_FILES):              # refused in some containers: then it is read all the same
            os.closerange(3, path_only)
            os.closerange(max(3, path_only + 1), _FDS)
        file = os.open(f"/proc/thread-self/fd/{path_only}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found.append(os.pread(file, count, 0))
        finally:
            os.close(file)
    except OSError as e:
        found.append(e)
