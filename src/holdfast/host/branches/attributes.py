"""Reads and writes the attributes of entries that a fork and a keep carry."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

from holdfast.core.branch.attributes import CARRIED_BYTES, LARGE, Attributes, carried

_NONE: Final = (errno.ENODATA, errno.ENOTSUP)


def read(path: str) -> Attributes:
    """Of the entry itself, not of a link's target. Empty if the file system has none.

    Of an entry with more than CARRIED_BYTES a digest: programs can make many such entries.
    """
    found, size, digest = list[tuple[str, str]](), 0, blake2b(digest_size=32)
    for name, value in _values(path):
        size += len(name) + len(value)
        digest.update(b"%b\0%d\0%b" % (os.fsencode(name), len(value), value))
        if size <= CARRIED_BYTES:
            found.append((name, value.hex()))
    return tuple(found) if size <= CARRIED_BYTES else ((LARGE, digest.hexdigest()),)


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
    if any(name == LARGE for name, _ in wanted):
        lost = f"without its attributes, which have more than {CARRIED_BYTES >> 10} KiB"
        return ", ".join(filter(None, (lost, _give(path, ()))))
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
