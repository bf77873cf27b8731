"""Answers the questions of core/containment about the machine's files."""

from __future__ import annotations

import itertools
import os
import stat
from typing import Final

NAMES_MAX: Final = 4096  # of a directory
TEXT_BYTES: Final = 1 << 16
_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final = {
    stat.S_IFDIR: "dir",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class Disk:
    """Implements `Files`. Calls may hang with a file system: use a thread."""

    def kind(self, path: str) -> str:
        try:
            return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "device")
        except (OSError, ValueError):
            return ""

    def link(self, path: str) -> str:
        try:
            return os.readlink(path)
        except OSError:
            return ""

    def real(self, path: str) -> str:
        try:
            return os.path.realpath(path)
        except (OSError, ValueError):
            return os.path.normpath(path)

    def names(self, path: str) -> list[str]:
        try:
            with os.scandir(path) as found:
                return sorted(one.name for one in itertools.islice(found, NAMES_MAX))
        except OSError:
            return []

    def public(self, path: str) -> bool:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return False
        wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
        return mode & wanted == wanted

    def read(self, path: str) -> str:
        try:
            return read_regular(path, TEXT_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def open_directory(path: str, make: bool = False) -> int:
    """Open an absolute path without following a link; `make`: with the directories that it lacks.

    Code of a session may exchange a directory of its workspace for a link at any moment. A link is
    an OSError (ENOTDIR).
    """
    fd = os.open("/", _PLACE)
    for name in filter(None, path.split("/")):
        try:
            try:
                inside = os.open(name, _PLACE, dir_fd=fd)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, 0o755, dir_fd=fd)
                inside = os.open(name, _PLACE, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inside
    return fd


def below(root: int, path: str) -> int:
    """Open a directory below an open one, without following a link."""
    fd = os.dup(root)
    for name in filter(None, path.split("/")):
        try:
            inside = os.open(name, _PLACE, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inside
    return fd


def read_regular(path: str, most: int, directory: int | None = None) -> bytes:
    """At most `most` bytes of a regular file. A link, a pipe or a device is an OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    fd = os.open(path, flags, dir_fd=directory)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(most)
