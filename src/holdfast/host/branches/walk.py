"""Walks directories that programs of a session can change, and reads them as entries.

A program could exchange a directory for a link at any moment, to make the host read files of the
machine. So every directory is opened component by component without following a link, and every
entry is reached from its open directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.core.branch.attributes import Attributes
from holdfast.core.branch.changes import DIRECTORY, FIFO, FILE, LINK, OTHER, WHITEOUT, Entry
from holdfast.host.branches import attributes
from holdfast.host.lifecycle.contained.disk import below, open_directory

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OPAQUE: Final = "user.overlay.opaque"


class Found(NamedTuple):
    """An entry. `at`: its open directory, valid until the next entry. `path`: below the top."""

    at: int
    name: str
    path: str
    status: os.stat_result

    @property
    def place(self) -> str:
        """A path to the entry that leads through no link."""
        return f"/proc/self/fd/{self.at}/{self.name}"

    def open(self) -> int:
        """The entry for reading; a link or a pipe without a writer is no harm."""
        return os.open(self.name, _READ, dir_fd=self.at)


def walk(top: str, closed: list[str] | None = None) -> Iterator[Found]:
    """Every entry below the top, a directory before its entries.

    The entries of an unreadable directory are left out; `closed` gets the path of the directory.
    """
    root, waiting = open_directory(top), [""]
    try:
        while waiting:
            above = waiting.pop()
            try:
                at = below(root, above)
            except OSError:
                continue  # without the right to search; or it is gone
            try:
                for name, status in _listed(at):
                    path = f"{above}/{name}" if above else name
                    yield Found(at, name, path, status)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(path)
            except PermissionError:
                if closed is not None:
                    closed.append(above)
            finally:
                os.close(at)
    finally:
        os.close(root)


def _listed(at: int) -> Iterator[tuple[str, os.stat_result]]:
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    except PermissionError:
        raise
    except OSError:
        return
    try:
        with os.scandir(readable) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(readable)


def open_file(top: str, path: str) -> int:
    """Open a file below the top for reading, without following a link."""
    above, _, name = path.rpartition("/")
    at = open_directory(f"{top}/{above}")
    try:
        return os.open(name, _READ, dir_fd=at)
    finally:
        os.close(at)


def scan(
    top: str,
    layer: int = 0,
    seen: dict[str, str] | None = None,
    closed: list[str] | None = None,
    with_attributes: bool = True,
) -> dict[str, Entry]:
    """The entries below the top. `layer`: its number; above 0 it may have marks of overlayfs.

    `seen` gets the identities of the entries. `closed`: see `walk`.
    """
    found: dict[str, Entry] = {}
    for one in walk(top, closed):
        if (entry := _entry(one, layer, with_attributes)) is not None:
            found[one.path] = entry
            if seen is not None:
                seen[one.path] = identity(one.status)
    return found


def identity(status: os.stat_result) -> str:
    """A text that differs for a later entry of the same name.

    A directory keeps its text when its entries change.
    """
    if stat.S_ISDIR(status.st_mode):
        return f"{DIRECTORY}:{status.st_ino}:{stat.S_IMODE(status.st_mode):o}"
    return f"{status.st_ino}:{status.st_mode:o}:{status.st_size}:{status.st_mtime_ns}"


def scan_one(top: str, path: str) -> Entry | None:
    """A single entry below the top."""
    above, _, name = path.rpartition("/")
    at = open_directory(f"{top}/{above}")
    try:
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        return _entry(Found(at, name, path, status), 0)
    finally:
        os.close(at)


def _entry(one: Found, layer: int, with_attributes: bool = True) -> Entry | None:
    status, has = one.status, attributes.read if with_attributes else _none
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
    if kind == stat.S_IFREG:
        return Entry(FILE, mode, status.st_size, "", layer, attributes=has(one.place))
    if kind == stat.S_IFDIR:
        opaque = _opaque(one) if layer else False
        return Entry(DIRECTORY, mode, 0, "", layer, opaque, has(one.place))
    if kind == stat.S_IFLNK:
        with contextlib.suppress(OSError):
            return Entry(LINK, 0o777, 0, os.readlink(one.name, dir_fd=one.at), layer)
    if kind == stat.S_IFIFO:
        return Entry(FIFO, mode, 0, "", layer)
    # In a layer also a socket or a device of the branch: the entry below is hidden.
    return Entry(WHITEOUT, 0, 0, "", layer) if layer else Entry(OTHER, mode, 0, "")


def _none(path: str) -> Attributes:
    return ()


def _opaque(one: Found) -> bool:
    with contextlib.suppress(OSError):
        fd = os.open(one.name, _READ | os.O_DIRECTORY, dir_fd=one.at)
        try:
            return os.getxattr(fd, _OPAQUE) == b"y"
        finally:
            os.close(fd)
    return False
