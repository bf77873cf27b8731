"""The pieces of a session's path: links and directories on the way, and the file.

A contained session has a different root and different mounts. In `/proc/PID/root/...` the kernel
follows an absolute link in the host's own root. The path is therefore walked here, name by name,
with O_PATH descriptors. No file is opened for reading, and no automount is triggered. Only a dead
file system can block the walk, so the walk belongs into a thread with a time limit.

The target of a link in /proc depends on the reader, so that target is unknown here. Files in /proc
and /sys are the kernel's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.core.originators.writers import Stamp
from holdfast.host.originators.file_events import key_of, opened
from holdfast.host.processes import process
from holdfast.host.runtime import filesystems

LINKS_MAX: Final = 40
NAMES_MAX: Final = 512
# File systems of the kernel itself, with no author.
_OF_KERNEL: Final = frozenset(
    (
        filesystems.PROC,
        0x62656572,  # sysfs
        0x63677270,  # cgroup2
        0x27E0EB,  # cgroup
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0xCAFE4A11,  # bpf
        0x1CD1,  # devpts
    )
)


class Piece(NamedTuple):
    # "link", "directory" (on the way), "folder" (a directory at the end of the path), "file" (the
    # end of the path, of any other type), "unknown" (cannot be resolved)
    kind: str
    key: bytes | None = None
    stamp: Stamp = Stamp(0, 0)
    ours: bool = True  # this account can write or replace the file
    ages: bool = True  # the change time tells when the file got its present content


UNKNOWN: Final = Piece("unknown")


def pieces(pid: int, start: int, path: str) -> list[Piece]:
    """The pieces of a path in the root of process `pid`, which started at `start`.

    Empty if the path does not exist, or leads to a file of the kernel.
    """
    found: dict[str, list[Piece]] = {}
    pieces_of_all(pid, start, [path], found)
    return found[path]


def pieces_of_all(
    pid: int, start: int, wanted: Sequence[str], found: dict[str, list[Piece]]
) -> None:
    """Add the pieces of each wanted path to `found`.

    Most files that programs look for do not exist. A missing directory is looked up once.
    """
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return found.update((path, [UNKNOWN]) for path in wanted)
    missing: set[str] = set()
    try:
        facts = process.read_stat(pid)
        same = facts is not None and facts.start == start
        for path in wanted:
            found[path] = (
                _pieces(root, path, missing) if same and path.startswith("/") else [UNKNOWN]
            )
    finally:
        os.close(root)


def _pieces(root: int, path: str, missing: set[str]) -> list[Piece]:
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
    # The directories passed below the root; the flag: this account can replace the directory.
    stack: list[tuple[int, os.stat_result, bool]] = []
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
                if filesystems.type_of(fd) == filesystems.PROC:
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
    if (
        filesystems.type_of(fd) in _OF_KERNEL
        or stat.S_ISCHR(facts.st_mode)
        or stat.S_ISBLK(facts.st_mode)
    ):
        return []
    ours = replaceable or facts.st_uid == uid or os.access(f"/proc/self/fd/{fd}", os.W_OK)
    return [
        Piece(
            "folder" if stat.S_ISDIR(facts.st_mode) else "file",
            key_of(fd),
            Stamp(facts.st_ctime_ns, facts.st_size),
            ours,
            stat.S_ISREG(facts.st_mode),
        )
    ]


def _replaceable(directory: int, entry: os.stat_result, uid: int) -> bool:
    """Whether this account can replace an entry of that directory by a different file."""
    facts = os.fstat(directory)
    if facts.st_uid == uid:
        return True
    return os.access(f"/proc/self/fd/{directory}", os.W_OK) and not (
        facts.st_mode & stat.S_ISVTX and entry.st_uid != uid
    )


def _close(stack: list[tuple[int, os.stat_result, bool]]) -> None:
    while stack:
        with contextlib.suppress(OSError):
            os.close(stack.pop()[0])


def identified(paths: Iterable[str]) -> list[tuple[bytes, Stamp]]:
    """The keys of files, and their change times and sizes now; absent files are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                facts = os.fstat(fd)
                if (key := key_of(fd)) is not None:
                    found.append((key, Stamp(facts.st_ctime_ns, facts.st_size)))
            finally:
                os.close(fd)
    return found


def stamp(mount: int, key: bytes) -> Stamp | None:
    """The change time and size of the file with this key; None: the file is gone. Root only."""
    try:
        fd = opened(mount, key)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        return Stamp(facts.st_ctime_ns, facts.st_size)
    finally:
        os.close(fd)
