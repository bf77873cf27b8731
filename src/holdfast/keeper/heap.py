"""Why the nursery fills the gaps of its heap before it forks.

A keeper shares the nursery's memory page by page until either process writes, and in CPython even
reading an object writes (its reference count). A keeper's own memory therefore depends on the
number of pages that it touches, hardly on the number of objects. The allocator hands out free
blocks of old pools first, scattered over many pages, and each page counts. `fill_gaps` takes all
those blocks: once before the keeper's code is loaded, so that the code lies together, and once
before forking, so that a keeper's new objects lie together. It knows the pool layout of CPython
3.11 to 3.13; with another allocator it only wastes a few megabytes once.
"""

from __future__ import annotations

from _thread import allocate_lock

_BLOCK_BYTES, _BLOCK_BYTES_MAX = 16, 512  # size classes of the object allocator
_POOL_BYTES, _POOL_HEADER_BYTES = 16384, 48
_GAPS_MAX = 4096  # per size class; a bound for any other allocator
_LOCKS = 256  # after each fork Python recreates its own locks, from libc's heap
_filled: list[object] = []  # never freed


def fill_gaps() -> None:
    """Take free blocks of each size until a block starts a fresh pool."""
    empty = b"".__sizeof__()
    for size in range(2 * _BLOCK_BYTES, _BLOCK_BYTES_MAX + 1, _BLOCK_BYTES):
        for _ in range(_GAPS_MAX):
            block: object = bytes(size - empty) if size >= empty else float(len(_filled))
            _filled.append(block)
            if id(block) % _POOL_BYTES == _POOL_HEADER_BYTES:
                break
    locks = [allocate_lock() for _ in range(_LOCKS)]
    del locks  # libc reuses the last freed blocks first, and these are neighbours
