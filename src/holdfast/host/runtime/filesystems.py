"""File systems as the kernel describes them: the mount table, and the type of an open file's."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

# Kinds of file systems that only this machine can change.
LOCAL: Final = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "overlay", "zfs"),
        *("bcachefs", "vfat", "exfat", "ntfs3", "jfs", "reiserfs", "nilfs2", "erofs"),
    )
)
PROC: Final = 0x9FA0  # `type_of` a file in /proc
_STATFS_BYTES: Final = 256
_libc = ctypes.CDLL(None, use_errno=True)


class Mount(NamedTuple):
    device: str  # "major:minor"
    point: str  # the path in the mount namespace of the process
    kind: str
    source: str
    writable: bool


def mounts(lines: Iterable[str]) -> Iterator[Mount]:
    """The mounts of `/proc/PID/mountinfo`. At the same point, a later mount covers an earlier."""
    for line in lines:
        before, dash, after = line.partition(" - ")
        # By single blanks: a mount can have an empty source.
        fields, more = before.split(" "), after.rstrip("\n").split(" ")
        if dash and len(fields) >= 6 and len(more) >= 3:
            writable = "rw" in fields[5].split(",") and "rw" in more[2].split(",")
            yield Mount(fields[2], _unescaped(fields[4]), more[0], more[1], writable)


def _unescaped(field: str) -> str:
    r"""The kernel writes blanks, tabs, newlines and backslashes as octal numbers (`\040`)."""
    first, *rest = field.split("\\")
    return first + "".join(
        chr(int(part[:3], 8)) + part[3:] if part[:3].isdigit() and len(part) >= 3 else "\\" + part
        for part in rest
    )


def type_of(fd: int) -> int:
    """`f_type` of the file system of an open file: the first word of struct statfs."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(fd), found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "fstatfs")
    return int(struct.unpack_from("@l", found)[0])
