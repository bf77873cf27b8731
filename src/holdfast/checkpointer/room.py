"""Reserves room for images of memory while the session still runs.

A file in memory gets its pages when it is written, which takes about half of the time of writing.
CRIU writes while the processes stand still. So the pages are reserved before, beyond the end of
empty files with the names that CRIU uses (shim.c lets CRIU open such a file as it is). CRIU numbers
these files in the order of the processes, parents first. A wrong guess costs time only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Final

LEAST_BYTES: Final = 1 << 20
PROCESSES_MAX: Final = 1000  # of a session with more, no room is reserved
_KEEP_SIZE: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def reserve(images: int, init: int) -> None:
    """Reserve room for the memory of the descendants of a session's process 1."""
    sizes = [*_sizes(init)]
    for number, size in enumerate(sizes if len(sizes) <= PROCESSES_MAX else (), 1):
        if size >= LEAST_BYTES:
            with contextlib.suppress(OSError):
                _reserve(images, _name(number), size)


def clear(images: int) -> None:
    """Remove the files that CRIU has not used."""
    with os.scandir(images) as entries:
        unused = [one.name for one in entries if _is_pages(one.name) and not one.stat().st_size]
    for name in unused:
        os.unlink(name, dir_fd=images)


def _name(number: int) -> str:
    return f"pages-{number}.img"


def _is_pages(name: str) -> bool:
    return name.startswith("pages-")


def _reserve(images: int, name: str, size: int) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=images)
    try:
        _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))
    finally:
        os.close(fd)


def _sizes(init: int) -> Iterator[int]:
    """The bytes of private memory of each descendant, parents first."""
    left = [*reversed(_children(init))]
    while left and (pid := left.pop()):
        with contextlib.suppress(OSError, ValueError):
            if (size := _private_bytes(pid)) is not None:
                yield size
            left += reversed(_children(pid))


def _private_bytes(pid: int) -> int | None:
    """None of a zombie, which has no memory and no file."""
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f.read().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) << 10 if "RssAnon" in fields else None


def _children(pid: int) -> list[int]:
    found = list[int]()
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        with open(f"/proc/{pid}/task/{thread}/children") as f:
            found += map(int, f.read().split())
    return found
