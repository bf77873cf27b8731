"""The attributes of a file as the kernel knows them, without asking the file system.

The file system may not answer (a file server, a FUSE program), so this module uses statx with
AT_STATX_DONT_SYNC. Use it for the links below /proc/PID/fd, which lead to a file without a walk
through the file system. NFS is asked even so: call this in a thread of the session
(host/runtime/threads.py).
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final, NamedTuple

_AT_FDCWD: Final = -100
_DONT_SYNC: Final = 0x4000  # AT_STATX_DONT_SYNC
_BASIC: Final = 0x7FF  # STATX_BASIC_STATS
# links, mode, inode, major and minor number of a device file, major and minor of the file system
_LAYOUT: Final = struct.Struct("=16xI8xH2xQ88xIIII")
_BYTES: Final = 256

_libc = ctypes.CDLL(None, use_errno=True)
_statx: Final = getattr(_libc, "statx", None)  # None: the C library does not have statx


class Known(NamedTuple):
    links: int
    mode: int
    inode: int
    device: int
    rdev: int


def known(path: str) -> Known:
    if _statx is None:
        info = os.stat(path)
        return Known(info.st_nlink, info.st_mode, info.st_ino, info.st_dev, info.st_rdev)
    answer = ctypes.create_string_buffer(_BYTES)
    if _statx(_AT_FDCWD, os.fsencode(path), _DONT_SYNC, _BASIC, answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    links, mode, inode, *numbers = _LAYOUT.unpack_from(answer)
    return Known(links, mode, inode, os.makedev(*numbers[2:]), os.makedev(*numbers[:2]))
