"""Reads and writes the attributes of entries that a fork and a keep carry."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.core.branch.attributes import Attributes, carried

_NONE: Final = (errno.ENODATA, errno.ENOTSUP)


def read(path: str) -> Attributes:
    """Of the entry itself, not of a link's target. Empty if the file system has none."""
    return tuple((name, value.hex()) for name, value in _values(path))


def _values(path: str) -> Iterator[tuple[str, bytes]]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listxattr(path, follow_symlinks=False)):
            if carried(name):
                with contextlib.suppress(OSError):  # gone meanwhile, or not readable
                    yield name, os.getxattr(path, name, follow_symlinks=False)


def copy(source: str, target: str | int) -> str:
    """Give an entry exactly those of another; as `write`."""
    return _give(target, _values(source))


def write(path: str | int, wanted: Attributes) -> str:
    """Give an entry exactly these; a fresh one may have inherited access control lists.

    Returns why some are missing, or are too many. A path must not end in a link.
    """
    return _give(path, ((name, bytes.fromhex(value)) for name, value in wanted))


def _give(path: str | int, wanted: Iterable[tuple[str, bytes]]) -> str:
    try:
        there = [name for name in os.listxattr(path) if carried(name)]
    except OSError:
        there = []
    failed, given = list[str](), set[str]()
    for name, value in wanted:
        given.add(name)
        try:
            os.setxattr(path, name, value)
        except OSError as e:
            failed.append(f"without {name} ({e.strerror})")
    for name in (one for one in there if one not in given):
        try:
            os.removexattr(path, name)
        except OSError as e:
            if e.errno not in _NONE:
                failed.append(f"with {name} ({e.strerror})")
    return ", ".join(failed)
