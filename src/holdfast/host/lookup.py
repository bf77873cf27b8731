"""Which file a path leads to, as another task would find it: from its own root and directory, through its own links.

The kernel is asked to keep to the task's root (`RESOLVE_IN_ROOT`), so a link that is told from the root is followed there and not here. Two questions:

1. On the loop, where nothing may wait: is it certainly not there? (`absent_now`.) Whoever looks for a program along PATH tries many names that are not, each by an exec; they are answered as
   the kernel would. It answers from what it has in memory (`RESOLVE_CACHED`), or says that it would have to ask a file system, which may be slow, remote or a program of the session itself. Links are not
   followed, so what `/proc/self` is to this process is never taken for what it is to the task.
2. In a thread, where file systems may be asked: which file it is behind all links, and what runs it if it is a script.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Final, NamedTuple

AT_FDCWD: Final = -100
SELF: Final = ("/proc/self/", "/proc/thread-self/")
_FIRST_LINE: Final = 256                              # of a script, as the kernel reads it
_SCRIPTS_MAX: Final = 5                               # that run each other, likewise
_OPENAT2: Final = 437                                 # on every machine
_HOW: Final = struct.Struct("=QQQ")
_NO_LINKS, _IN_ROOT, _CACHED = 0x04, 0x10, 0x20
_PATH: Final = os.O_PATH | os.O_CLOEXEC
_PROC: Final = 0x9FA0                                 # its file systems' number
_STATFS_BYTES: Final = 256
_GONE: Final = (errno.ENOENT, errno.ENOTDIR)
_libc = ctypes.CDLL(None, use_errno=True)


class Script(NamedTuple):
    """What runs a script."""

    by: tuple[str, ...]          # as its first line says; of a script that runs a script, that one's first
    file: str                    # what that leads to


def named(thread: int, path: str, dirfd: int = AT_FDCWD, empty: bool = False) -> tuple[str, str]:
    """The path, absolute; of a descriptor, what it is. And by which way it is found from here."""
    if path.startswith(SELF):
        path = f"/proc/{thread}/{path.split('/', 3)[3]}"
    if path.startswith("/dev/fd/"):
        path = f"/proc/{thread}/fd/{path[8:]}"
    if path.startswith(f"/proc/{thread}/fd/") or path == f"/proc/{thread}/exe":
        return _link(path), path
    if path.startswith("/"):
        return os.path.normpath(path), f"/proc/{thread}/root{path}"
    start = f"/proc/{thread}/cwd" if dirfd == AT_FDCWD else f"/proc/{thread}/fd/{dirfd}"
    base = _link(start)
    return (base, start) if empty and not path else (os.path.normpath(os.path.join(base, path)), f"{start}/{path}")


def absent_now(thread: int, way: str) -> int:
    """The error by which whoever runs it is told that it is not there; 0: that cannot be said at once. Waits for nothing."""
    root = f"/proc/{thread}/root"
    if not way.startswith(f"{root}/"):
        return 0
    try:
        top = os.open(root, _PATH)
    except OSError:
        return 0
    try:
        os.close(_openat2(top, way[len(root):], _NO_LINKS | _IN_ROOT | _CACHED))
        return 0
    except OSError as e:
        return e.errno if e.errno in _GONE else 0
    finally:
        os.close(top)


def resolved(thread: int, path: str, way: str) -> str | int:
    """The file behind links; the error, if there certainly is none; the path itself where that cannot be said. Asks the file system: in a thread."""
    try:
        fd = _open(thread, way)
    except OSError as e:
        return e.errno if e.errno in _GONE and _missing(thread, way) else path
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
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b""
            file = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return os.pread(file, _FIRST_LINE, 0).partition(b"\n")[0].partition(b"\0")[0]
            finally:
                os.close(file)
        finally:
            os.close(fd)
    except OSError:
        return b""


def _open(thread: int, way: str) -> int:
    root = f"/proc/{thread}/root"
    if not way.startswith(f"{root}/"):
        return os.open(way, _PATH)
    top = os.open(root, _PATH)
    try:
        return _openat2(top, way[len(root):], _IN_ROOT)
    finally:
        os.close(top)


def _missing(thread: int, way: str) -> bool:
    """Whether what was not found from here is not there for the task either: it ends at a name that its last directory does not have, not at a link that leads nowhere from here, and not in
    a `/proc`, which shows every process another self."""
    root = f"/proc/{thread}/root"
    if not way.startswith(f"{root}/"):
        start, _, rest = way.partition("/cwd/")
        base = _link(f"{start}/cwd")
        if start != f"/proc/{thread}" or not base.startswith("/") or base.endswith(" (deleted)") or _link(root) != "/":
            return False
        way = f"{root}{base}/{rest}"
    try:
        top = os.open(root, _PATH)
    except OSError:
        return False
    try:
        parent = way[len(root):].rstrip("/")
        while True:
            parent, _, last = parent.rpartition("/")
            try:
                fd = _openat2(top, f"{parent}/", _IN_ROOT)
            except OSError as e:
                if e.errno not in _GONE or not parent:
                    return False
                continue
            try:
                return _type(fd) != _PROC and not _is_link(fd, last)
            finally:
                os.close(fd)
    except OSError:
        return False
    finally:
        os.close(top)


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _type(fd: int) -> int:
    """Of the file system."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(fd), found):
        raise OSError(ctypes.get_errno(), "fstatfs")
    return int(struct.unpack_from("@l", found)[0])


def _openat2(top: int, path: str, resolve: int) -> int:
    fd: int = _libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(top), os.fsencode(path), _HOW.pack(_PATH, 0, resolve), ctypes.c_size_t(_HOW.size))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"
