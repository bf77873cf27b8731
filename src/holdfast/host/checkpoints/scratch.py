"""Directories for plain images, which are never stored: they have the memory of programs.

They are in memory (/dev/shm) if there is room for them, else on the disk. A host removes at its
start what an earlier one has left there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import threading
from pathlib import Path
from typing import Final

MEMORY: Final = "/dev/shm"
ROOM: Final = 2.5  # of the images' size must be free memory: a restore needs the same again
_HASH_BYTES: Final = 8


class Scratch:
    def __init__(self, state: str, memory: str = MEMORY) -> None:
        name = hashlib.blake2b(os.fsencode(state), digest_size=_HASH_BYTES).hexdigest()
        self._memory = Path(memory, f"holdfast-{os.geteuid()}-{name}")
        self._disk = Path(state, "checkpoints", ".plain")

    def make(self, name: str, size: int) -> Path:
        """An empty directory of that name for about `size` bytes."""
        if self._fits(size):
            with contextlib.suppress(OSError):
                return self._made(self._memory / name)
        return self._made(self._disk / name)

    def _made(self, place: Path) -> Path:
        shutil.rmtree(place, ignore_errors=True)
        while True:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _private(place.parent):
                raise OSError(f"{place.parent} is not private to this account")
            with contextlib.suppress(FileNotFoundError):  # another thread just removed the parent
                place.mkdir(mode=0o700)
                return place

    def clear(self, place: Path) -> threading.Thread:
        """Have a thread remove the directory, and the one above it if it was the last.

        The kernel takes 130 ms to free 1 GB of memory, and no caller has to wait for that.
        """
        gone = place.with_name(f".gone-{secrets.token_hex(_HASH_BYTES)}")
        with contextlib.suppress(OSError):
            place.rename(gone)
        removal = threading.Thread(target=_remove, args=(gone,), name="scratch")
        removal.start()
        return removal

    def sweep(self) -> None:
        """Remove what an earlier host has left."""
        for above in (self._memory, self._disk):
            if _private(above):
                shutil.rmtree(above, ignore_errors=True)

    def _fits(self, size: int) -> bool:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            disk = os.statvfs(self._memory.parent)
            lines = Path("/proc/meminfo").read_text().splitlines()
            free = next(int(one.split()[1]) << 10 for one in lines if one[:13] == "MemAvailable:")
            return min(disk.f_bavail * disk.f_frsize, free) > size * ROOM
        return False


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()


def _private(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        found = os.lstat(directory)
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & 0o077
        )
    return False
