"""Cuts files of a checkpoint into pieces, so that the next checkpoint shares most of them.

Memory is cut where addresses cross a multiple of REGION_BYTES: a page that has changed makes the
pieces around it neither longer nor shorter. Other files are cut at fixed distances; the terminal's
output at fixed offsets of the output. Small files lie together in pieces.

A piece is a number of slices of files. The tree tells for each file the slices of pieces that it
consists of, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

PAGE_BYTES: Final = 4096
REGION_BYTES: Final = 256 << 10  # small enough for deduplication, and 4096 objects for 1 GiB
STEP_BYTES: Final = 1 << 20
CONTENT_MAX: Final = STEP_BYTES  # bytes of a piece
OBJECT_MAX: Final = CONTENT_MAX + (1 << 16)  # stored: compression may add a little
SMALL_BYTES: Final = 64 << 10  # of a file that lies in a piece with others


class Slice(NamedTuple):
    file: str
    offset: int
    length: int


class Part(NamedTuple):
    """Bytes of a piece: its number, the offset in it, and the length."""

    piece: int
    offset: int
    length: int


class File(NamedTuple):
    """A file to cut. `pages`: runs of memory pages in it, as (address, pages), if it is memory.

    `phase`: the offset of the first byte in a longer stream.
    """

    name: str
    size: int
    pages: tuple[tuple[int, int], ...] = ()
    phase: int = 0


Piece = tuple[Slice, ...]


def cut(files: Iterable[File]) -> tuple[list[Piece], dict[str, list[Part]]]:
    """The pieces, and the tree."""
    pieces, tree = list[Piece](), dict[str, list[Part]]()
    small, filled = list[Slice](), 0

    def close() -> None:
        nonlocal filled
        if small:
            pieces.append(tuple(small))
            small.clear()
            filled = 0

    for file in sorted(files, key=lambda one: (one.size <= SMALL_BYTES, one.name)):
        parts = tree.setdefault(file.name, [])
        if not file.size:
            continue
        if file.size <= SMALL_BYTES:
            if filled + file.size > STEP_BYTES:
                close()
            parts.append(Part(len(pieces), filled, file.size))
            small.append(Slice(file.name, 0, file.size))
            filled += file.size
            continue
        at = 0
        for length in _lengths(file):
            parts.append(Part(len(pieces), 0, length))
            pieces.append((Slice(file.name, at, length),))
            at += length
    close()
    return pieces, tree


def _lengths(file: File) -> Iterator[int]:
    found = sum(length for _, length in file.pages) * PAGE_BYTES
    if not file.pages or found != file.size:  # of a form that this release does not know
        yield from _fixed(file.size, file.phase)
        return
    yield from _regions(file.pages)


def _fixed(size: int, phase: int) -> Iterator[int]:
    first = min(size, STEP_BYTES - phase % STEP_BYTES)
    while size:
        yield first
        size -= first
        first = min(size, STEP_BYTES)


def _regions(pages: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Lengths of the stored pages of each region, in order."""
    region, length = -1, 0
    for address, count in pages:
        end = address + count * PAGE_BYTES
        while address < end:
            here = address // REGION_BYTES
            if here != region or length >= REGION_BYTES:
                if length:
                    yield length
                region, length = here, 0
            step = min(end, (here + 1) * REGION_BYTES) - address
            length += step
            address += step
    if length:
        yield length
