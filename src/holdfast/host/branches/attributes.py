"""Reads and writes the attributes of entries that a fork and a keep carry."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from holdfast.core.branch.attributes import Attributes, carried

_NONE: Final = (errno.ENODATA, errno.ENOTSUP)


def read(path: str) -> Attributes:
    """Of the entry itself, not of a link's target. Empty if the file system has none."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listxattr(path, follow_symlinks=False):
            if carried(name):
                with contextlib.suppress(OSError):  # gone meanwhile, or not readable
                    found.append((name, os.getxattr(path, name, follow_symlinks=False).hex()))
    return tuple(sorted(found))


def write(path: str | int, wanted: Attributes) -> str:
    """Give an entry exactly these; a fresh one may have inherited access control lists.

    Returns why some are missing, or are too many. A path must not end in a link.
    """
    try:
        there = [name for name in os.listxattr(path) if carried(name)]
    except OSError:
        there = []
    failed = list[str]()
    for name in (one for one in there if one not in dict(wanted)):
        try:
            os.removexattr(path, name)
        except OSError as e:
            if e.errno not in _NONE:
                failed.append(f"with {name} ({e.strerror})")
    for name, value in wanted:
        try:
            os.setxattr(path, name, bytes.fromhex(value))
        except OSError as e:
            failed.append(f"without {name} ({e.strerror})")
    return ", ".join(failed)
