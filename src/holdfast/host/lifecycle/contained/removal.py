"""Removes a directory tree that hostile code filled.

No link is followed. A tree of any depth needs two descriptors: subdirectories are moved up to the
top before the parent is removed. Directories without permissions are opened first. Entries that
cannot be removed are counted and left.
"""

from __future__ import annotations

import contextlib
import os
import secrets

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def remove(path: str) -> int:
    """Remove a directory with its content; return how many entries resisted."""
    try:
        top = os.open(path, _PLACE)
    except FileNotFoundError:
        return 0
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        return int(os.path.lexists(path))
    try:
        resisted = _empty(top)
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError:
        return resisted or 1
    return 0


def _empty(place: int) -> int:
    """Remove the content of the top directory."""
    resisted = set[bytes]()
    while directories := _clear(place, place, resisted):
        for name in directories:
            try:
                one = os.open(name, _PLACE, dir_fd=place)
            except OSError:
                resisted.add(name)
                continue
            try:
                _clear(one, place, set(), up=True)
            finally:
                os.close(one)
            try:
                os.rmdir(name, dir_fd=place)
            except OSError:
                resisted.add(name)
    return len(resisted)


def _clear(place: int, top: int, resisted: set[bytes], up: bool = False) -> list[bytes]:
    """Unlink all but directories; return the directories, or move them up to the top."""
    directories = list[bytes]()
    with contextlib.suppress(OSError):
        os.chmod(f"/proc/self/fd/{place}", 0o700)
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    except OSError:
        return directories
    try:
        with os.scandir(readable) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if name in resisted:
                    continue
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(name, dir_fd=place)
                    elif up:
                        _move_up(name, place, top)
                    else:
                        directories.append(name)
                except OSError:
                    resisted.add(name)
    finally:
        os.close(readable)
    return directories


def _move_up(name: bytes, place: int, top: int) -> None:
    try:
        os.rmdir(name, dir_fd=place)
        return
    except OSError:
        pass
    one = os.open(name, _PLACE, dir_fd=place)
    try:  # moving a directory needs the right to write there
        os.chmod(f"/proc/self/fd/{one}", 0o700)
    finally:
        os.close(one)
    fresh = b".moved-" + secrets.token_hex(8).encode()
    os.rename(name, fresh, src_dir_fd=place, dst_dir_fd=top)
