"""The key of a file: its file system, inode and generation, as the kernel's handle names them.

A name comes and goes, and a reused inode is another file. File events (host/originators) and the
worker for files (host/requests/files) compare these bytes.
"""

from __future__ import annotations

import ctypes
import os
import struct

HANDLE_BYTES = 128
_AT_EMPTY_PATH, _AT_HANDLE_FID = 0x1000, 0x200


class Handle(ctypes.Structure):
    """`struct file_handle`."""

    _fields_ = (
        ("bytes", ctypes.c_uint),
        ("kind", ctypes.c_int),
        ("data", ctypes.c_ubyte * HANDLE_BYTES),
    )


_libc = ctypes.CDLL(None, use_errno=True)


def key_of(fd: int) -> bytes | None:
    """The name of an open file in events; None if the file system has no handles."""
    handle, mount = Handle(HANDLE_BYTES), ctypes.c_int()
    for flags in (_AT_EMPTY_PATH | _AT_HANDLE_FID, _AT_EMPTY_PATH):  # the first since Linux 6.5
        if _libc.name_to_handle_at(fd, b"", ctypes.byref(handle), ctypes.byref(mount), flags) == 0:
            size: int = handle.bytes
            data = bytes(handle.data[:size]) + b"\0" * (-size % 4)
            return (
                (os.fstatvfs(fd).f_fsid & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
                + struct.pack("=Ii", size, handle.kind)
                + data
            )
        handle.bytes = HANDLE_BYTES
    return None
