"""Gives a file in memory (tmpfs) huge pages, whatever the options of its file system.

To write into a huge page takes a quarter of the time of small pages, and to make one is quicker
than to make its 512 small ones. madvise(MADV_COLLAPSE) of Linux 6.1 turns one small page and the
hole around it into a huge page. Where memory is fragmented, or a virtual machine has not touched
it yet, that takes long. So it is done in steps, and given up when a step takes longer than small
pages would.
"""

from __future__ import annotations

import ctypes
import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

HUGE_BYTES: Final = 2 << 20
LEAST_BYTES: Final = 8 << 20  # of a file for which this is worth its fixed cost
_STEP_BYTES: Final = 8 << 20  # the kernel empties lists of every processor for each step
_SLOWEST: Final = 0.5e-9  # seconds per byte: twice what small pages take on a quiet machine
_SPARED_S: Final = 0.001  # by which a step may take longer
_COLLAPSE: Final = 25
_FAILED: Final = ctypes.c_void_p(-1).value
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    *(ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FIXED: Final = 0x10


def reserve(fd: int, size: int, clock: Callable[[], float]) -> int:
    """Reserve huge pages for an empty file; return the bytes reserved, from the beginning.

    The file has that length then. It is `size` rounded up, unless the kernel refuses, or
    is slow by the clock, which tells seconds.
    """
    whole = -(-size // HUGE_BYTES) * HUGE_BYTES
    span = _libc.mmap(None, whole + HUGE_BYTES, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if span == _FAILED:
        return 0
    done = 0
    try:
        start = -(-span // HUGE_BYTES) * HUGE_BYTES
        both = mmap.PROT_READ | mmap.PROT_WRITE
        if _libc.mmap(start, whole, both, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) == _FAILED:
            return 0
        step = HUGE_BYTES  # the first shows whether the kernel can do it
        while done < whole:
            step = min(step, whole - done)
            os.ftruncate(fd, done + step)
            for at in range(done, done + step, HUGE_BYTES):
                os.pwrite(fd, b"\0", at)
            began = clock()
            if _libc.madvise(start + done, step, _COLLAPSE):
                break
            done += step
            if clock() - began > step * _SLOWEST + _SPARED_S:
                break
            step = _STEP_BYTES
        os.ftruncate(fd, done)
    finally:
        _libc.munmap(span, whole + HUGE_BYTES)
    return done
