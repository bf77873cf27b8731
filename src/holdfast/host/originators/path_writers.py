"""What stands under a path as a session sees it, piece by piece: each link on the way, each directory, and the file at the end.

A contained session has another root and other mounts. The kernel resolves `/proc/PID/root/...` there only up to the first absolute link, which it takes for the host's own: so the path is
walked here, one name at a time, by descriptors that only look (O_PATH). Nothing is opened, read, mounted or waited for but the file systems themselves; a dead one blocks, so this is for a
thread with a limit.

A link in /proc means something else to each process that reads it: what lies behind is not known. Files there and in /sys are the kernel's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.core.writers import Stamp
from holdfast.host import process
from holdfast.host.fileevents import key_of

LINKS_MAX: Final = 40
NAMES_MAX: Final = 512
_PROC: Final = 0x9FA0
_KERNELS: Final = frozenset(
    (
        _PROC,
        0x62656572,
        0x63677270,
        0x27E0EB,
        0x64626720,
        0x74726163,
        0x73636673,
        0xCAFE4A11,
        0x1CD1,
    )
)  # sysfs, cgroups, debugfs, tracefs, securityfs, bpf, devpts
_libc = ctypes.CDLL(None, use_errno=True)


class Piece(NamedTuple):
    kind: str  # "link", "directory", "file" (what stands at the end, whatever it is), "unknown" (nobody can say what does)
    key: bytes | None = None
    stamp: Stamp = Stamp(0, 0)
    ours: bool = True  # this account can write it, or replace it
    ages: bool = True  # its change time says when it became what it is


UNKNOWN: Final = Piece("unknown")


def look(pid: int, start: int, path: str) -> list[Piece]:
    """For the root of the process that began then. Empty: there is nothing, or it is the kernel's own."""
    found: dict[str, list[Piece]] = {}
    look_all(pid, start, [path], found)
    return found[path]


def look_all(pid: int, start: int, wanted: Sequence[str], found: dict[str, list[Piece]]) -> None:
    """The same for many, one after the other into `found`. Most of what programs look for does not exist: what lies in a directory that does not is not looked for."""
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return found.update((path, [UNKNOWN]) for path in wanted)
    missing: set[str] = set()
    try:
        facts = process.read_stat(pid)
        same = facts is not None and facts.start == start
        for path in wanted:
            found[path] = _look(root, path, missing) if same and path.startswith("/") else [UNKNOWN]
    finally:
        os.close(root)


def _look(root: int, path: str, missing: set[str]) -> list[Piece]:
    above = path
    while above := above.rpartition("/")[0]:
        if above in missing:
            return []
    try:
        return _walk(root, path, missing)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError):
        return [UNKNOWN]


def _walk(root: int, path: str, missing: set[str]) -> list[Piece]:
    todo, pieces, links, names = deque(path.split("/")), list[Piece](), 0, 0
    uid = os.geteuid()
    stack: list[
        tuple[int, os.stat_result, bool]
    ] = []  # below the root: descriptor, and whether this account can put something else in its place
    try:
        while todo:
            name, names = todo.popleft(), names + 1
            if names > NAMES_MAX:
                raise OSError(errno.ENAMETOOLONG, path)
            if name in ("", "."):
                continue
            if name == "..":
                if stack:
                    os.close(stack.pop()[0])
                continue
            above = stack[-1][0] if stack else root
            try:
                fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            except FileNotFoundError:
                if todo and not links and ".." not in path:
                    missing.add(path[: len(path) - sum(map(len, todo)) - len(todo)])
                raise
            try:
                facts = os.fstat(fd)
                replaceable = (
                    uid == 0 or (bool(stack) and stack[-1][2]) or _replaceable(above, facts, uid)
                )
                if not stat.S_ISLNK(facts.st_mode):
                    stack.append((os.dup(fd), facts, replaceable))
                    continue
                if _kind(fd) == _PROC:
                    return [UNKNOWN]
                pieces.append(
                    Piece("link", key_of(fd), Stamp(facts.st_ctime_ns, facts.st_size), replaceable)
                )
                target, links = os.readlink("", dir_fd=fd), links + 1
            finally:
                os.close(fd)
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, path)
            if target.startswith("/"):
                _close(stack)
            todo.extendleft(reversed(target.split("/")))
        if not stack:
            return pieces
        pieces += [
            Piece("directory", key_of(fd), Stamp(facts.st_ctime_ns, facts.st_size))
            for fd, facts, _ in stack[:-1]
        ]
        return pieces + _last(*stack[-1], uid)
    finally:
        _close(stack)


def _last(fd: int, facts: os.stat_result, replaceable: bool, uid: int) -> list[Piece]:
    if _kind(fd) in _KERNELS or stat.S_ISCHR(facts.st_mode) or stat.S_ISBLK(facts.st_mode):
        return []
    ours = replaceable or facts.st_uid == uid or os.access(f"/proc/self/fd/{fd}", os.W_OK)
    return [
        Piece(
            "file",
            key_of(fd),
            Stamp(facts.st_ctime_ns, facts.st_size),
            ours,
            stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode),
        )
    ]


def _replaceable(directory: int, entry: os.stat_result, uid: int) -> bool:
    """Whether this account can put something else under a name in that directory."""
    facts = os.fstat(directory)
    if facts.st_uid == uid:
        return True
    return os.access(f"/proc/self/fd/{directory}", os.W_OK) and not (
        facts.st_mode & stat.S_ISVTX and entry.st_uid != uid
    )


def _kind(fd: int) -> int:
    """Of its file system: f_type, the first word of struct statfs."""
    answer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(fd, answer):
        raise OSError(ctypes.get_errno(), "fstatfs")
    return int.from_bytes(answer.raw[: ctypes.sizeof(ctypes.c_long)], "little")


def _close(stack: list[tuple[int, os.stat_result, bool]]) -> None:
    while stack:
        with contextlib.suppress(OSError):
            os.close(stack.pop()[0])
