"""Small files that a host leaves for the next host. They need not survive a reboot.

A file is written whole or not at all, and only its user can read it. If a program put a pipe, a
link or a directory in place of the file, the host does not open it and so cannot hang. If writing
fails, the next host knows less.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable

NAME = "name"  # the file with a session's name
CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def write(path: str, pieces: Iterable[str]) -> bool:
    """Writes the file; returns whether that worked. In a thread, one write at a time per path."""
    fresh = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        with open(os.open(fresh, flags | CAREFUL, 0o600), "w") as file:
            file.writelines(pieces)
        os.rename(fresh, path)
        return True
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        return False


def read(path: str, most: int, fits: Callable[[int], bool] = lambda fd: True) -> bytes:
    """Reads at most `most` bytes. OSError: there is no file, or `fits` rejects the descriptor."""
    with open(os.open(path, os.O_RDONLY | CAREFUL), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        data = file.read(most)
        if not fits(file.fileno()):
            raise OSError(f"{path} is not what it should be")
        return data
