"""The values of this room: an entry of the tree, and questions about the machine's files."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol


class Kind(IntEnum):
    """The kinds of wire/spawning.py, with the same numbers."""

    READ = 1
    WRITE = 2
    DEVICE = 3
    LINK = 4
    EMPTY = 5
    MEMORY = 6
    FIXED = 7


class Entry(NamedTuple):
    """One entry of the tree; later entries cover earlier ones. A source is a path without links."""

    kind: Kind
    target: str
    source: str = ""


class Files(Protocol):
    """The questions of the decisions about the machine's files. No method raises for a bad path."""

    def kind(self, path: str) -> str:
        """`dir`, `file`, `link`, `socket`, `fifo`, `device`, or "" if there is none."""
        ...

    def link(self, path: str) -> str:
        """The text of a symbolic link, or ""."""
        ...

    def real(self, path: str) -> str:
        """The path with every symbolic link followed."""
        ...

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted and at most a stated number."""
        ...

    def public(self, path: str) -> bool:
        """Whether every user may read the file, or list and enter the directory."""
        ...

    def read(self, path: str) -> str:
        """The text of a small regular file, or ""."""
        ...


def within(path: str, top: str) -> bool:
    """Whether `path` is `top` or lies below it. Both are absolute and normal."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def overlap(one: str, other: str) -> bool:
    """Whether either path contains the other path."""
    return within(one, other) or within(other, one)


def shares(path: str, writable: bool = False) -> Entry:
    """The entry that shows a path of the machine at the same place."""
    return Entry(Kind.WRITE if writable else Kind.READ, path, path)
