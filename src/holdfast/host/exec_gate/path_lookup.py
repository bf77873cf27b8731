"""Which file a path leads to, as another task would find it: from its own root and directory, through its own links.

The kernel is asked to keep to the task's root (`RESOLVE_IN_ROOT`), so a link that is told from the root is followed there and not here; what it cannot be asked so is gone step by step
(host/walk.py). Two questions:

1. On the loop, where nothing may wait: is it certainly not there? (`absent_now`.) Whoever looks for a program along PATH tries many names that are not, each by an exec; they are answered as
   the kernel would. It answers from what it has in memory (`RESOLVE_CACHED`), or says that it would have to ask a file system, which may be slow, remote or a program of the session itself. Links are not
   followed, so what `/proc/self` is to this process is never taken for what it is to the task.
2. In a thread, where file systems may be asked: which file it is behind all links, and what runs it if it is a script.
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from holdfast.host.apart import beginning
from holdfast.host.walk import (
    CACHED,
    GONE,
    IN_ROOT,
    NO_LINKS,
    PATH_ONLY,
    Unsure,
    openat2,
    rights,
    searchable,
    walk,
)

AT_FDCWD: Final = -100
SELF: Final = ("/proc/self/", "/proc/thread-self/")
_FIRST_LINE: Final = 256  # of a script, as the kernel reads it
_SCRIPTS_MAX: Final = 5  # that run each other, likewise


class Script(NamedTuple):
    """What runs a script."""

    by: tuple[str, ...]  # as its first line says; of a script that runs a script, that one's first
    file: str  # what that leads to


def named(thread: int, path: str, dirfd: int = AT_FDCWD, empty: bool = False) -> tuple[str, str]:
    """The path, absolute; of a descriptor, what it is. And by which way it is found from here: a beginning of the task's, and the path as it was named."""
    if path.startswith("/"):
        return _shown(thread, path), f"/proc/{thread}/root{path}"
    start = f"/proc/{thread}/cwd" if dirfd == AT_FDCWD else f"/proc/{thread}/fd/{dirfd}"
    base = _link(start)
    return (
        (base, start)
        if empty and not path
        else (os.path.normpath(os.path.join(base, path)), f"{start}/{path}")
    )


def plain(thread: int, path: str, way: str) -> bool:
    """Whether that path is what was named, without a dot or a link of a process in it: not one that was tidied, and may lead elsewhere."""
    return way == f"/proc/{thread}/root{path}"


def absent_now(thread: int, way: str) -> int:
    """The error by which whoever runs it is told that it is not there; 0: that cannot be said at once. Waits for nothing."""
    root = f"/proc/{thread}/root"
    if not way.startswith(f"{root}/"):
        return 0
    try:
        top = os.open(root, PATH_ONLY)
    except OSError:
        return 0
    path = way[len(root) :]
    try:
        os.close(openat2(top, path, NO_LINKS | IN_ROOT | CACHED))
        return 0
    except OSError as e:
        return e.errno if e.errno in GONE and _may_know(thread, top, path) else 0
    finally:
        os.close(top)


def _may_know(thread: int, top: int, path: str) -> bool:
    """Whether the kernel would tell that task, too."""
    try:
        may = rights(thread)
    except Unsure:
        return False
    return may.all or (
        "/../" not in path and searchable(top, path, may, NO_LINKS | IN_ROOT | CACHED)
    )


def resolved(thread: int, path: str, way: str) -> str | int:
    """The file behind links; the error, if there certainly is none; the path itself where that cannot be said. Asks the file system: in a thread."""
    try:
        fd = _open(thread, way)
    except Unsure:
        return path
    except OSError as e:
        return e.errno if e.errno in GONE else path
    try:
        return _link(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def script(thread: int, way: str) -> Script | None:
    """What the kernel would run in place of this file; None: the file itself, or nothing. Asks the file system: in a thread."""
    by, file = tuple[str, ...](), ""
    for _ in range(_SCRIPTS_MAX):
        line = _first_line(thread, way)
        if not line.startswith(b"#!"):
            break
        name, _, rest = line[2:].strip(b" \t").replace(b"\t", b" ").partition(b" ")
        if not name:
            break
        words = tuple(os.fsdecode(word) for word in (name, rest.strip(b" ")) if word)
        by = (*words, *((by[0], *by[1:]) if by else ()))
        file, way = named(thread, words[0])
    if not by:
        return None
    found = resolved(thread, file, way)
    return Script(by, found if isinstance(found, str) else file)


def _first_line(thread: int, way: str) -> bytes:
    try:
        fd = _open(thread, way)
        try:
            if not stat.S_ISREG((info := os.fstat(fd)).st_mode):
                return b""
            return beginning(fd, info.st_dev, _FIRST_LINE).partition(b"\n")[0].partition(b"\0")[0]
        finally:
            os.close(fd)
    except (OSError, Unsure):
        return b""


def _open(thread: int, way: str) -> int:
    """OSError: as the kernel would say it to the task; Unsure."""
    start, path = _split(thread, way)
    if start == "root":
        try:
            top = os.open(f"/proc/{thread}/root", PATH_ONLY)
        except OSError as e:
            raise Unsure(str(e)) from e
        try:
            return openat2(top, path, IN_ROOT)
        except OSError:
            pass  # there is none; or a link that has no text, or that is another one to every process
        finally:
            os.close(top)
    return walk(thread, start, path)


def _split(thread: int, way: str) -> tuple[str, str]:
    """Where it begins (`root`, `cwd`, `fd/N`), and the path from there."""
    rest = way.removeprefix(f"/proc/{thread}/")
    head, slash, path = rest.partition("/")
    if head == "root":
        return head, slash + path
    if head == "fd":
        number, _, path = path.partition("/")
        return f"fd/{number}", path
    return head, path


def _shown(thread: int, path: str) -> str:
    """As rules and people are shown it."""
    if path.startswith("/dev/fd/"):
        path = f"/proc/self/fd/{path[8:]}"
    if path.startswith(SELF):
        rest = path.split("/", 3)[3]
        if rest == "exe" or rest.startswith("fd/"):
            return _link(f"/proc/{thread}/{rest}")
    return os.path.normpath(path)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"
