"""Follows links as programs of a session do.

A plain session has the host's own files. A contained session has mounts of its own: each name of a
path is looked up below a descriptor of the root of its first process, and an absolute link begins
there again. All functions may wait for file systems: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import Final

LINKS_MAX: Final = 40  # the kernel's own limit


def real(path: str) -> str:
    """The path with links followed, as far as the path exists."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def links_followed() -> Callable[[str], str]:
    """`real` for the many paths of a command: resolves each path and each directory once.

    `rm *` in a directory of 70,000 files names each file twice, as a path and as a written path.
    Resolving each path from the root took longer than JUDGE_S.
    """

    @functools.cache
    def directory(path: str) -> str | None:
        try:
            return os.path.realpath(path, strict=True).rstrip("/")
        except (OSError, ValueError):
            return None

    @functools.cache
    def resolve(path: str) -> str:
        head, slash, name = path.rpartition("/")
        if not path.startswith("/") or name in ("", ".", "..") or "\0" in name:
            return real(path)
        if (above := directory(head + slash)) is None:
            return real(path)
        found = f"{above}/{name}"
        return real(found) if os.path.islink(found) else found

    return resolve


@contextlib.contextmanager
def links_inside(pid: int, start: int, cwd: str | None) -> Iterator[Callable[[str], str]]:
    """Yield a function that follows the links of an absolute path of the session.

    `pid` and `start` identify the session's first process. `cwd`: what `/proc/self/cwd` means.
    A process that is gone raises ProcessLookupError.
    """
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as e:
        raise ProcessLookupError(errno.ESRCH, "the session's first process is gone") from e
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[19]) != start:
                raise ProcessLookupError(errno.ESRCH, "the session's first process is gone")
        yield _resolver(root, cwd)
    finally:
        os.close(root)


def _resolver(root: int, cwd: str | None) -> Callable[[str], str]:
    # The links of /proc/self lead elsewhere for this process.
    own: dict[str, str | None] = {}
    for task in ("/proc/self", "/proc/thread-self"):
        own |= {task: None, f"{task}/cwd": cwd, f"{task}/root": "/"}

    @functools.cache
    def link(path: str) -> str | None:
        if path in own:
            return own[path]
        try:
            return os.readlink(path.lstrip("/"), dir_fd=root)
        except (OSError, ValueError):
            return None

    @functools.cache
    def resolve(path: str) -> str:
        found, todo, links = "", path.split("/")[::-1], 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                found = found.rpartition("/")[0]
                continue
            target = link(f"{found}/{name}")
            if target is None:
                found = f"{found}/{name}"
                continue
            links += 1
            if links > LINKS_MAX:
                return path
            found = "" if target.startswith("/") else found
            todo += target.split("/")[::-1]
        return found or "/"

    return resolve
