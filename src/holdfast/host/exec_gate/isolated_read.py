"""Reads the beginning of a file in threads that share no descriptors with the rest of the host.

A forked child inherits all descriptors of this process and closes them first; a process that ends
closes them too. Closing a file of a FUSE file system waits until the FUSE server has answered.
Suppose that a session has an open file on a file system that no longer answers. That file would
block every child of the host (the parser, plug-ins, the next host) and keep the host's lock. In a
separate descriptor table the file blocks only the thread that reads the file. (An O_PATH descriptor
closes without waiting.)

Waking a second thread for each file made an agent's 500 programs 1.6 times as slow as without the
gate, instead of 1.2 (`bench.execgate --agent`). Files on the machine's own disks are therefore read
directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Final

from holdfast.host.runtime import filesystems
from holdfast.host.runtime.threads import THREADS, Pool

SYSTEM_MOUNTS: Final = ("/", "/usr", "/home", "/opt", "/srv", "/var", "/nix")
_CLONE_FILES: Final = 0x400
_libc = ctypes.CDLL(None, use_errno=True)


def read_beginning(path_only: int, device: int, count: int) -> bytes:
    """The first bytes of the file behind an O_PATH descriptor; `device` is its file system.

    Raises OSError. Blocks as long as the file system does: call it in a thread.
    """
    if device in _system_devices():
        return _read(path_only, count)
    return _readers.submit(_read, path_only, count).result()


def _read(path_only: int, count: int) -> bytes:
    # /proc/self is the process: this path finds the descriptor in the table of the other threads.
    file = os.open(f"/proc/self/fd/{path_only}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.pread(file, count, 0)
    finally:
        os.close(file)


def _leave_descriptor_table() -> None:
    """Give this thread its own descriptor table. If a container refuses, reads work anyway."""
    if not _libc.unshare(_CLONE_FILES):
        for fd in os.listdir("/proc/thread-self/fd"):
            if int(fd) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(fd))


@functools.cache
def _system_devices() -> frozenset[int]:
    """Device numbers of the machine's own disks, which no session mounted and no program serves.

    These disks stay mounted as long as this host runs, so no other file system gets the numbers.
    """
    kinds, found = dict[str, str](), set[int]()
    with (
        contextlib.suppress(OSError),
        open("/proc/self/mountinfo", errors="surrogateescape") as table,
    ):
        kinds = {mount.point: mount.kind for mount in filesystems.mounts(table)}
    for place in SYSTEM_MOUNTS:
        if kinds.get(place) in filesystems.LOCAL:
            with contextlib.suppress(OSError):
                found.add(os.stat(place).st_dev)
    return frozenset(found)


_readers: Final = Pool(THREADS, "isolated read", _leave_descriptor_table)
