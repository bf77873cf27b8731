"""What one host writes down for the next: small files that must outlive a process, not the machine. Whole or not at all, for one user, and never waited for: whatever lies in their place
(a pipe, a link, a directory) is not opened, and where nothing can be written the next host knows less."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable


def write(path: str, pieces: Iterable[str]) -> bool:
    """Whether it is there now. In a thread, one at a time for each path."""
    fresh = f"{path}.new"
    try:
        with open(
            os.open(
                fresh,
                os.O_WRONLY
                | os.O_CREAT
                | os.O_TRUNC
                | os.O_CLOEXEC
                | os.O_NOFOLLOW
                | os.O_NONBLOCK,
                0o600,
            ),
            "w",
        ) as file:
            file.writelines(pieces)
        os.rename(fresh, path)
        return True
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        return False


def read(path: str, most: int, fits: Callable[[int], bool] = lambda fd: True) -> bytes:
    """At most so much of it. OSError if there is no such file, or what was read does not fit."""
    with open(
        os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        data = file.read(most)
        if not fits(file.fileno()):
            raise OSError(f"{path} is not what it should be")
        return data
