"""CRIU's list of the memory pages in a file `pages-N.img`."""

from __future__ import annotations

import struct
from typing import Final

from holdfast.wire import protobuf_fields as pb

PAGE_BYTES: Final = 4096
_LENGTH: Final = struct.Struct("<I")
_MAGIC_BYTES: Final = 8
_PAGES_ID: Final = 1  # of pagemap_head
_ADDRESS, _COUNT, _FLAGS, _COUNT_64 = 1, 2, 4, 5  # of pagemap_entry
_PRESENT: Final = 1 << 2  # the pages are in the file


def read(data: bytes) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The number of the file with the pages, and (address, pages) of each run in it."""
    entries, at = list[list[pb.Field]](), _MAGIC_BYTES
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        entries.append(pb.decode(data[at : at + length]))
        at += length
    if not entries:
        raise ValueError("no head")
    runs = tuple(
        (
            pb.number_of(one, _ADDRESS),
            pb.number_of(one, _COUNT_64) or pb.number_of(one, _COUNT),
        )
        for one in entries[1:]
        if pb.number_of(one, _FLAGS, _PRESENT) & _PRESENT
    )
    return pb.number_of(entries[0], _PAGES_ID), runs
