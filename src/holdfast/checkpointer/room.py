"""Reserves room for images of memory while the session still runs.

A file in memory gets its pages when it is written, which takes more than half of the time of
writing. CRIU writes while the processes stand still. So the pages are reserved before, in files
with the names that CRIU uses (shim.c lets CRIU open such a file as it is). CRIU numbers these files
in the order of the processes, parents first. A wrong guess costs time, and memory until `settle`.

Large files get huge pages, where the kernel has them ready (wire/huge_pages.py). These must lie
within the length of the file, so `settle` cuts the file to what CRIU has written. Other pages are
reserved beyond the end of an empty file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from typing import Final

from holdfast.wire import huge_pages, pagemap

LEAST_BYTES: Final = 1 << 20
PROCESSES_MAX: Final = 1000  # of a session with more, no room is reserved
_KEEP_SIZE: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def reserve(images: int, tops: list[int]) -> None:
    """Reserve room for the memory of these processes and their descendants."""
    sizes = [*_sizes(tops)]
    for number, size in enumerate(sizes if len(sizes) <= PROCESSES_MAX else (), 1):
        if size >= LEAST_BYTES:
            with contextlib.suppress(OSError):
                _reserve(images, _name(number), size)


def settle(images: int) -> None:
    """Cut each file to the length that CRIU has written, and remove those that are not used."""
    with os.scandir(images) as entries:
        sizes = {one.name: one.stat().st_size for one in entries if _is_pages(one.name)}
    lengths = dict[str, int]()
    for name in _pagemaps(images) if any(sizes.values()) else ():
        with open(os.open(name, os.O_RDONLY, dir_fd=images), "rb") as f:
            number, runs = pagemap.read(f.read())
        lengths[_name(number)] = sum(count for _, count in runs) * pagemap.PAGE_BYTES
    for name, size in sizes.items():
        if not (length := lengths.get(name, 0)):
            os.unlink(name, dir_fd=images)
        elif length < size:
            fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=images)
            os.ftruncate(fd, length)
            os.close(fd)


def _pagemaps(images: int) -> list[str]:
    return [name for name in os.listdir(images) if name.startswith("pagemap-")]


def _name(number: int) -> str:
    return f"pages-{number}.img"


def _is_pages(name: str) -> bool:
    return name.startswith("pages-")


def _reserve(images: int, name: str, size: int) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=images)
    try:
        if size >= huge_pages.LEAST_BYTES and huge_pages.reserve(fd, size, time.monotonic) >= size:
            return
        _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))
    finally:
        os.close(fd)


def _sizes(tops: list[int]) -> Iterator[int]:
    """The bytes of private memory of each process, parents first."""
    for pid in members(tops):
        with contextlib.suppress(OSError, ValueError):
            if (size := _private_bytes(pid)) is not None:
                yield size


def members(tops: list[int]) -> Iterator[int]:
    """These processes and their descendants, parents first."""
    left = [*reversed(tops)]
    while left and (pid := left.pop()):
        yield pid
        with contextlib.suppress(OSError, ValueError):
            left += reversed(children(pid))


def _private_bytes(pid: int) -> int | None:
    """None of a zombie, which has no memory and no file."""
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f.read().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) << 10 if "RssAnon" in fields else None


def children(pid: int) -> list[int]:
    found = list[int]()
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        with open(f"/proc/{pid}/task/{thread}/children") as f:
            found += map(int, f.read().split())
    return found
