"""Where new objects go: why the nursery fills the gaps of its own heap before it forks.

A keeper shares the nursery's memory until one of them writes, page by page, and in this Python even looking at an
object writes (its reference count). So a keeper's own memory is the number of different pages that it touches, hardly
the number of objects. The allocator hands out the free blocks of old pools first, one here and one there, and each
costs a page. Therefore `fill_gaps` takes them all, once before the keeper's code is loaded (so that it lies together)
and once before forking (so that what a keeper makes lies together). It knows how CPython 3.11 to 3.13 lay out their
pools; with another allocator it does nothing but waste a few megabytes once.
"""

from __future__ import annotations

from _thread import allocate_lock

_BLOCK_BYTES, _BLOCK_BYTES_MAX = 16, 512  # size classes of the object allocator
_POOL_BYTES, _POOL_HEADER_BYTES = 16384, 48
_GAPS_MAX = 4096  # per size class; a bound for any other allocator
_LOCKS = 256  # Python makes its own anew after each fork, from libc's heap
_filled: list[object] = []  # never freed


def fill_gaps() -> None:
    """Takes free blocks of each size until one is the first of a fresh pool."""
    empty = b"".__sizeof__()
    for size in range(2 * _BLOCK_BYTES, _BLOCK_BYTES_MAX + 1, _BLOCK_BYTES):
        for _ in range(_GAPS_MAX):
            block: object = bytes(size - empty) if size >= empty else float(len(_filled))
            _filled.append(block)
            if id(block) % _POOL_BYTES == _POOL_HEADER_BYTES:
                break
    locks = [allocate_lock() for _ in range(_LOCKS)]
    del locks  # libc hands out first what was freed last: neighbours
