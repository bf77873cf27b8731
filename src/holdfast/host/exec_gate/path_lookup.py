"""Finds the file that a path leads to for a waiting task: from the task's root and directory.

The kernel resolves the path inside the task's root (`RESOLVE_IN_ROOT`), so an absolute link is
followed in that root and not in ours. A path that `openat2` cannot resolve is resolved step by step
in host/exec_gate/path_walk.py. Two questions are answered here:

1. On the event loop, which must not block: is the file certainly absent (`absent_now`)? A search
   along PATH tries many names that do not exist, each with an exec, and gets the kernel's own
   error. The kernel answers from the caches (`RESOLVE_CACHED`), or says that the answer needs a
   file system. That file system may be slow, remote or a program of the session. Links are not
   followed: the link `/proc/self` would lead to this process instead of the task.
2. In a thread, which may wait for file systems: which file is behind all links, and which
   interpreter runs that file if the file is a script?

A `proc_path` is the path that the task gave, behind a start in `/proc`:
`/proc/THREAD/root/usr/bin/ls`, `/proc/THREAD/cwd/run.sh` or `/proc/THREAD/fd/3/run.sh`.
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from holdfast.host.exec_gate.isolated_read import read_beginning
from holdfast.host.exec_gate.path_walk import (
    ABSENT,
    CACHED,
    IN_ROOT,
    NO_LINKS,
    PATH_ONLY,
    Uncertain,
    openat2,
    search_rights,
    searchable,
    walk,
)

AT_FDCWD: Final = -100
SELF: Final = ("/proc/self/", "/proc/thread-self/")
_FIRST_LINE: Final = 256  # bytes of a script that the kernel reads
_SCRIPTS_MAX: Final = 5  # scripts that run each other: the kernel's limit


class Script(NamedTuple):
    """The interpreter of a script."""

    by: tuple[str, ...]  # the interpreter's words; of nested scripts, the innermost comes first
    file: str  # the interpreter's file, behind links


def named(thread: int, path: str, dirfd: int = AT_FDCWD, empty: bool = False) -> tuple[str, str]:
    """The absolute path that rules and people are shown, and the `proc_path` that opens the file.

    `empty`: with an empty path, `dirfd` itself is the file (AT_EMPTY_PATH).
    """
    if path.startswith("/"):
        return _shown(thread, path), f"/proc/{thread}/root{path}"
    start = f"/proc/{thread}/cwd" if dirfd == AT_FDCWD else f"/proc/{thread}/fd/{dirfd}"
    base = _link(start)
    if empty and not path:
        return base, start
    return os.path.normpath(os.path.join(base, path)), f"{start}/{path}"


def is_literal(thread: int, path: str, proc_path: str) -> bool:
    """Whether the task gave exactly this path.

    A path that was normalised, or that led through a link of a process, may lead elsewhere.
    """
    return proc_path == f"/proc/{thread}/root{path}"


def absent_now(thread: int, proc_path: str) -> int:
    """The errno that the task gets for an absent file; 0 if that is uncertain. Never blocks."""
    root = f"/proc/{thread}/root"
    if not proc_path.startswith(f"{root}/"):
        return 0
    try:
        top = os.open(root, PATH_ONLY)
    except OSError:
        return 0
    path = proc_path[len(root) :]
    try:
        os.close(openat2(top, path, NO_LINKS | IN_ROOT | CACHED))
        return 0
    except OSError as e:
        return e.errno if e.errno in ABSENT and _may_know(thread, top, path) else 0
    finally:
        os.close(top)


def _may_know(thread: int, top: int, path: str) -> bool:
    """Whether the kernel would tell the task too that the file is absent."""
    try:
        rights = search_rights(thread)
    except Uncertain:
        return False
    return rights.all or (
        "/../" not in path and searchable(top, path, rights, NO_LINKS | IN_ROOT | CACHED)
    )


def resolved(thread: int, path: str, proc_path: str) -> str | int:
    """The file behind links, an errno if the file certainly does not exist, `path` if uncertain.

    Waits for file systems: call it in a thread.
    """
    found = certain(thread, proc_path)
    return path if found is None else found


def certain(thread: int, proc_path: str) -> str | int | None:
    """The file behind links, or an errno if it certainly does not exist; None if uncertain.

    Waits for file systems: call it in a thread.
    """
    try:
        fd = _open(thread, proc_path)
    except Uncertain:
        return None
    except OSError as e:
        return e.errno if e.errno in ABSENT else None
    try:
        return _link(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def script(thread: int, proc_path: str) -> Script | None:
    """The interpreter that the kernel would run for this file; None if the file is no script.

    Waits for file systems: call it in a thread.
    """
    by, file = tuple[str, ...](), ""
    for _ in range(_SCRIPTS_MAX):
        line = _first_line(thread, proc_path)
        if not line.startswith(b"#!"):
            break
        name, _, rest = line[2:].strip(b" \t").replace(b"\t", b" ").partition(b" ")
        if not name:
            break
        words = tuple(os.fsdecode(word) for word in (name, rest.strip(b" ")) if word)
        by = (*words, *by)
        file, proc_path = named(thread, words[0])
    if not by:
        return None
    found = resolved(thread, file, proc_path)
    return Script(by, found if isinstance(found, str) else file)


def _first_line(thread: int, proc_path: str) -> bytes:
    try:
        fd = _open(thread, proc_path)
        try:
            if not stat.S_ISREG((info := os.fstat(fd)).st_mode):
                return b""
            data = read_beginning(fd, info.st_dev, _FIRST_LINE)
            return data.partition(b"\n")[0].partition(b"\0")[0]
        finally:
            os.close(fd)
    except (OSError, Uncertain):
        return b""


def _open(thread: int, proc_path: str) -> int:
    """An O_PATH descriptor of the file. Raises the task's own OSError, or Uncertain."""
    start, path = _split(thread, proc_path)
    if start == "root":
        try:
            top = os.open(f"/proc/{thread}/root", PATH_ONLY)
        except OSError as e:
            raise Uncertain(str(e)) from e
        try:
            return openat2(top, path, IN_ROOT)
        except OSError:
            pass  # absent, or behind a magic link, or behind `/proc/self`: walk() finds out which
        finally:
            os.close(top)
    return walk(thread, start, path)


def _split(thread: int, proc_path: str) -> tuple[str, str]:
    """Where a `proc_path` begins (`root`, `cwd`, `fd/N`), and the path from there."""
    rest = proc_path.removeprefix(f"/proc/{thread}/")
    head, slash, path = rest.partition("/")
    if head == "root":
        return head, slash + path
    if head == "fd":
        number, _, path = path.partition("/")
        return f"fd/{number}", path
    return head, path


def _shown(thread: int, path: str) -> str:
    """The path shown to rules and people; for `/proc/self/exe` and `fd/N`, the target."""
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
