"""The few file operations of spool and checkpoints, so that tests can fail or cut short each."""

from __future__ import annotations

import ctypes
import os
from typing import Protocol

_libc = ctypes.CDLL(None, use_errno=True)


class Files(Protocol):
    """Every method may raise OSError. `write` may take less than all bytes."""

    def make_directory(self, path: str) -> None: ...
    def create(self, path: str) -> int: ...
    def write(self, fd: int, data: bytes) -> int: ...
    def sync(self, fd: int) -> None: ...
    def close(self, fd: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def remove_directory(self, path: str) -> None: ...
    def sync_path(self, path: str) -> None: ...  # a file, or a directory with its names
    def sync_all(self, path: str) -> None: ...  # all files on the file system of a directory
    def listdir(self, path: str) -> list[str]: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str, most: int) -> bytes: ...


class DiskFiles:
    """The operations of the kernel, for files that only this account may read."""

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def create(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)  # makes the length durable too

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_path(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd):
                raise OSError(ctypes.get_errno(), "syncfs", path)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def size(self, path: str) -> int:
        return os.stat(path, follow_symlinks=False).st_size

    def read(self, path: str, most: int) -> bytes:
        """The first `most` bytes of a file."""
        with open(
            os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
        ) as f:
            return f.read(most)
