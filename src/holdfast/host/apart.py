"""The beginning of a file, read by threads that share their descriptors with nobody.

Whoever is forked from a process has its descriptors and closes them first, and so does whoever goes away; and a file of a FUSE program is closed when that program says that it has heard of it. So one file of
one session that is open here, and whose file system does not answer any more, would keep everything that the host starts (the parser, plug-ins, the next host) and its lock. In a table of descriptors of its
own it keeps only the thread that reads it. (Descriptors by which nothing can be read, O_PATH, are closed without asking anybody.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Final

from holdfast.host.threads import THREADS, Pool

_CLONE_FILES: Final = 0x400
_libc = ctypes.CDLL(None, use_errno=True)


def beginning(path_only: int, count: int) -> bytes:
    """Of the file that this descriptor (O_PATH) leads to. OSError; blocks as long as its file system wants to: for a thread of somebody's own."""
    return _readers.submit(_read, path_only, count).result()


def _read(path_only: int, count: int) -> bytes:
    file = os.open(f"/proc/self/fd/{path_only}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)      # of the first thread, which is everybody else's
    try:
        return os.pread(file, count, 0)
    finally:
        os.close(file)


def _alone() -> None:
    """Refused in some containers: then it is read all the same."""
    if not _libc.unshare(_CLONE_FILES):
        for fd in os.listdir("/proc/thread-self/fd"):
            if int(fd) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(fd))


_readers: Final = Pool(THREADS, "apart", _alone)
