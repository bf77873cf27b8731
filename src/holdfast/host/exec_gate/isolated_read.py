"""The beginning of a file, read by threads that share their descriptors with nobody.

Whoever is forked from a process has its descriptors and closes them first, and so does whoever goes away; and a file of a FUSE program is closed when that program says that it has heard of it. So one file of
one session that is open here, and whose file system does not answer any more, would keep everything that the host starts (the parser, plug-ins, the next host) and its lock. In a table of descriptors of its
own it keeps only the thread that reads it. (Descriptors by which nothing can be read, O_PATH, are closed without asking anybody.)

Waking another thread for each made an agent's 500 programs 1.6 times as slow as without the gate, instead of 1.2 (`bench.execgate --agent`): what lies on the machine's own disks (`_steady`) is read at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Final

from holdfast.host.fileevents import LOCAL
from holdfast.host.threads import THREADS, Pool

PLACES: Final = ("/", "/usr", "/home", "/opt", "/srv", "/var", "/nix")
_CLONE_FILES: Final = 0x400
_libc = ctypes.CDLL(None, use_errno=True)


def beginning(path_only: int, device: int, count: int) -> bytes:
    """Of the file that this descriptor (O_PATH) leads to, and where it is. OSError; blocks as long as its file system wants to: for a thread of somebody's own."""
    return (
        _read(path_only, count)
        if device in _steady()
        else _readers.submit(_read, path_only, count).result()
    )


def _read(path_only: int, count: int) -> bytes:
    file = os.open(
        f"/proc/self/fd/{path_only}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    )  # of the first thread, which is everybody else's
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


@functools.cache
def _steady() -> frozenset[int]:
    """The file systems of the machine itself, which nobody in a session has mounted and no program answers for. They stay as long as this host, so their numbers are nobody else's."""
    kinds = dict[str, str]()
    with (
        contextlib.suppress(OSError),
        open("/proc/self/mountinfo", errors="surrogateescape") as table,
    ):
        for line in table:
            before, _, after = line.partition(" - ")
            kinds[before.split(" ")[4]] = after.partition(" ")[
                0
            ]  # the last one there is what is seen
    found = set[int]()
    for place in PLACES:
        if kinds.get(place) in LOCAL:
            with contextlib.suppress(OSError):
                found.add(os.stat(place).st_dev)
    return frozenset(found)


_readers: Final = Pool(THREADS, "apart", _alone)
