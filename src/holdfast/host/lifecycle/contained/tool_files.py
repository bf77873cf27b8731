"""Notices changes to files that a human's tools execute later (core/containment/workspace.py).

The host reads the files when a session starts and compares them at the end. No link is followed:
a link counts by its text. Large files, and files of large directories, count by the time of their
last change, which programs cannot set back. A directory that is too large even for that is always
reported.

A session that overlaps with an older one compares with the state at the start of the older one.
Otherwise one session could change a file, and restore it once the other has begun with the change.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from holdfast.host.lifecycle.contained import placeholders
from holdfast.host.lifecycle.contained.disk import read_regular

Placed = Mapping[str, str | None]
NONE_PLACED: Final[Placed] = MappingProxyType({})

FILE: Final = "tool_files.json"  # in the session's host-only directory
CONTENT_BYTES: Final = 1 << 20  # of a file; a larger file is not read
READ_FILES: Final = 256  # of a directory like .husky, with all levels; likewise
ENTRIES_MAX: Final = 20_000  # of a directory like .husky
DEPTH_MAX: Final = 64
ABSENT: Final = ""
UNREADABLE: Final = "?"
TOO_LARGE: Final = "large"


def digests(paths: Iterable[str], placed: Placed = NONE_PLACED) -> dict[str, str]:
    """A digest of the state of each path; ABSENT if there is none, or an intact placeholder."""
    return {path: _state_of(path, placed) for path in paths}


def changed(before: dict[str, str], placed: Placed = NONE_PLACED) -> list[str]:
    """The paths that have changed."""
    return [
        path for path, was in before.items() if was == TOO_LARGE or _state_of(path, placed) != was
    ]


def save(directory: str, found: dict[str, str]) -> None:
    with open(f"{directory}/{FILE}", "w") as file:
        json.dump(found, file)


def oldest(found: dict[str, str], directories: Iterable[str]) -> dict[str, str]:
    """The states, each as the oldest of the sessions with these directories began with it."""
    merged = dict(found)
    for directory in sorted(directories, key=_saved_at, reverse=True):
        merged |= {path: was for path, was in load(directory).items() if path in found}
    return merged


def _saved_at(directory: str) -> int:
    try:
        return os.stat(f"{directory}/{FILE}").st_mtime_ns
    except OSError:
        return 0


def load(directory: str) -> dict[str, str]:
    """The states that `save` wrote; none if there is no file."""
    try:
        with open(f"{directory}/{FILE}") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _state_of(path: str, placed: Placed) -> str:
    """Of the path's own entry, reached without following a link in the last two components."""
    if path in placed and placeholders.intact(path, placed[path]):
        return ABSENT
    above, name = os.path.split(path)
    try:
        place = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ABSENT
    except OSError:
        return UNREADABLE  # a link or a file where a directory is expected
    try:
        parts = list[list[bytes]]()
        _add(parts, name, place, DEPTH_MAX)
    except FileNotFoundError:
        return ABSENT
    except _TooLarge:
        return TOO_LARGE
    except OSError:
        return UNREADABLE
    finally:
        os.close(place)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


class _TooLarge(Exception):
    """A directory has too many entries, or too many levels."""


def _add(parts: list[list[bytes]], name: str, place: int, depth: int) -> None:
    info = os.stat(name, dir_fd=place, follow_symlinks=False)
    entry = [b"%d" % depth, os.fsencode(name), b"%o" % info.st_mode]
    parts.append(entry)
    if len(parts) > ENTRIES_MAX or not depth:
        raise _TooLarge
    if stat.S_ISLNK(info.st_mode):
        entry.append(os.fsencode(os.readlink(name, dir_fd=place)))
    elif stat.S_ISREG(info.st_mode):
        read = len(parts) <= READ_FILES and info.st_size <= CONTENT_BYTES
        changed = b"%d %d" % (info.st_ctime_ns, info.st_ino)
        entry += [b"%d" % info.st_size, _content(name, place) if read else changed]
    elif stat.S_ISDIR(info.st_mode):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        inside = os.open(name, flags, dir_fd=place)
        try:
            for one in sorted(os.listdir(inside)):
                _add(parts, one, inside, depth - 1)
        finally:
            os.close(inside)


def _content(name: str, place: int) -> bytes:
    return hashlib.blake2b(read_regular(name, CONTENT_BYTES, place), digest_size=16).digest()
