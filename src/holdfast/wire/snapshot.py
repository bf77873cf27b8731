"""The latest screen of a session, in the keeper's second memfd, where it survives the host.

    memfd ::= PAGE SLOT SLOT
    PAGE words: 0 MAGIC, 1 ACTIVE (0 none, 1 or 2), 2..5 slot one, 6..9 slot two
    slot words: output offset of the screen, length, crc32, position in the file

A writer fills the inactive slot, then its words, then flips ACTIVE with a single 8-byte write: a
host killed at any byte leaves the older snapshot intact. At rest there are the latest and at most
one older snapshot. A wrong checksum means no snapshot, never a wrong screen. Hosts write, one at a
time, because the keeper admits one term; the keeper itself never reads a snapshot.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Final

from holdfast.model.limits import SNAPSHOT_BYTES

MAGIC: Final = 0x3150414E53464C48
_PAGE: Final = 4096
_WORD = struct.Struct("<Q")
_SLOT = struct.Struct("<QQQQ")


def store(fd: int, offset: int, data: bytes) -> None:
    if len(data) > SNAPSHOT_BYTES:
        raise ValueError(f"snapshot of {len(data)} bytes; at most {SNAPSHOT_BYTES}")
    active = _active(fd)
    target = 2 if active == 1 else 1
    position = _PAGE + (target - 1) * SNAPSHOT_BYTES
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at : at + (1 << 20)], position + at)
    os.pwrite(
        fd,
        _SLOT.pack(offset, len(data), zlib.crc32(data), position),
        16 + (target - 1) * _SLOT.size,
    )
    os.pwrite(fd, _WORD.pack(MAGIC), 0)
    os.pwrite(fd, _WORD.pack(target), 8)
    if target == 1:
        # Free the older snapshot and the rest of a larger one in this slot.
        os.ftruncate(fd, position + len(data))


def load(fd: int) -> tuple[int, bytes] | None:
    """Return (output offset, snapshot), or None if no snapshot has a valid checksum."""
    active = _active(fd)
    if active not in (1, 2):
        return None
    head = os.pread(fd, _SLOT.size, 16 + (active - 1) * _SLOT.size)
    if len(head) != _SLOT.size:
        return None
    offset, length, crc, position = _SLOT.unpack(head)
    if length > SNAPSHOT_BYTES or position != _PAGE + (active - 1) * SNAPSHOT_BYTES:
        return None
    data = b""
    while len(data) < length:
        piece = os.pread(fd, length - len(data), position + len(data))
        if not piece:
            return None
        data += piece
    return (offset, data) if zlib.crc32(data) == crc else None


def _active(fd: int) -> int:
    page = os.pread(fd, 16, 0)
    if len(page) != 16 or _WORD.unpack_from(page)[0] != MAGIC:
        return 0
    value: int = _WORD.unpack_from(page, 8)[0]
    return value
