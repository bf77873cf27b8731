"""Walks a path step by step as the kernel would for a waiting task, where `openat2` cannot.

The walk starts from the task's own root or directory. An absolute link is followed in the task's
root, not in this process's root. `/proc/self` means the task. Magic links (`/proc/PID/root`, `cwd`,
`exe`, `fd/N`), which have no text, are followed like any other link.

A file is reported as absent only if the task may search every directory on the way. A task without
that right gets a different error from the kernel, and must not learn the content of such a
directory from the gate.

The walk waits for file systems: call `walk` in a thread. Where the kernel's answer is not certain,
`walk` raises `Uncertain`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Final, NamedTuple

from holdfast.host.processes.process import read_short
from holdfast.host.runtime import filesystems

ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)
PATH_ONLY: Final = os.O_PATH | os.O_CLOEXEC
# openat2's `resolve`: RESOLVE_NO_SYMLINKS, RESOLVE_IN_ROOT, RESOLVE_CACHED, RESOLVE_NO_MAGICLINKS
NO_LINKS, IN_ROOT, CACHED = 0x04, 0x10, 0x20
_NO_MAGIC: Final = 0x02
_STEP: Final = PATH_ONLY | os.O_NOFOLLOW
_LINKS_MAX: Final = 40  # the kernel's own limit
_STEPS_MAX: Final = 4096
_OPENAT2: Final = 437  # on every architecture
_HOW: Final = struct.Struct("=QQQ")
_PROC_ROOT_INODE: Final = 1
_SEARCH_CAPABILITIES: Final = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_USER_NAMESPACE: Final = os.stat("/proc/self/ns/user").st_ino
_libc = ctypes.CDLL(None, use_errno=True)


class Uncertain(Exception):
    """This process cannot say which file the task would find."""


class SearchRights(NamedTuple):
    """Which directories a task may search."""

    all: bool
    uid: int

    def allow(self, directory: os.stat_result) -> bool:
        """Whether the task may certainly search the directory. A group's right does not count."""
        wanted = 0o100 if directory.st_uid == self.uid else 0o111
        return self.all or directory.st_mode & wanted == wanted


def search_rights(thread: int) -> SearchRights:
    """The rights of a task. Capabilities count only in our own user namespace."""
    try:
        text = read_short(f"/proc/{thread}/status")
        uid = text[text.index(b"\nUid:") + 5 :].split(None, 4)[3]
        at = text.index(b"\nCapEff:") + 8
        capable = (
            int(text[at : text.index(b"\n", at)], 16) & _SEARCH_CAPABILITIES
            and os.stat(f"/proc/{thread}/ns/user").st_ino == _USER_NAMESPACE
        )
        return SearchRights(bool(capable), int(uid))
    except (OSError, ValueError, IndexError) as e:
        raise Uncertain(str(e)) from e


def openat2(top: int, path: str, resolve: int) -> int:
    """An O_PATH descriptor of the path below `top`."""
    fd: int = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(top),
        os.fsencode(path),
        _HOW.pack(PATH_ONLY, 0, resolve),
        ctypes.c_size_t(_HOW.size),
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd


def walk(thread: int, start: str, path: str) -> int:
    """An O_PATH descriptor of the file at `path`, which begins at `/proc/THREAD/start`.

    Raises the OSError that the kernel would give the task, or Uncertain.
    """
    one = _Walk(thread)
    try:
        return one.go(start, path)
    except (ValueError, KeyError, IndexError) as e:
        raise Uncertain(str(e)) from e
    finally:
        one.close()


class _Walk:
    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._open = list[int]()
        self._passed = list[os.stat_result]()  # directories on the way
        self._links = 0

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)

    def go(self, start: str, path: str) -> int:
        try:
            self._top = self._closed_later(os.open(f"/proc/{self._thread}/root", PATH_ONLY))
            at = (
                self._top
                if path.startswith("/")
                else self._closed_later(os.open(f"/proc/{self._thread}/{start}", PATH_ONLY))
            )
        except OSError as e:
            raise Uncertain(str(e)) from e
        todo = _names(path)
        for _ in range(_STEPS_MAX):
            if not todo:
                return os.dup(at)
            at = self._step(at, todo)
        raise Uncertain("the path has too many steps")

    def _step(self, at: int, todo: list[str]) -> int:
        """Take the next name of `todo`. A link's text replaces the link's name."""
        name = todo.pop()
        here = os.fstat(at)
        if not stat.S_ISDIR(here.st_mode):
            self._report_absent(errno.ENOTDIR)
        self._passed.append(here)
        if name in ("", "."):
            return at
        if name == "..":
            if self._is_top(at, here):
                return at
            return self._closed_later(os.open("..", PATH_ONLY, dir_fd=at))
        fd = self._open_name(at, name, bool(todo))
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd
        self._links += 1
        if self._links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if filesystems.type_of(at) == filesystems.PROC:
            if here.st_ino == _PROC_ROOT_INODE and name in ("self", "thread-self"):
                todo.extend(reversed(self._task_in(at, name)))
                return at
            if _is_magic_link(at, name):
                return self._closed_later(os.open(name, PATH_ONLY, dir_fd=at))
        text = os.readlink("", dir_fd=fd)
        todo.extend(_names(text))
        return self._top if text.startswith("/") else at

    def _open_name(self, at: int, name: str, more: bool) -> int:
        """Open a name in a directory. O_DIRECTORY triggers an automount, like the task's exec."""
        try:
            if more:
                try:
                    return self._closed_later(os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at))
                except NotADirectoryError:
                    pass
            return self._closed_later(os.open(name, _STEP, dir_fd=at))
        except OSError as e:
            if e.errno not in ABSENT or filesystems.type_of(at) == filesystems.PROC:
                raise Uncertain(str(e)) from e
            self._report_absent(e.errno)
            raise

    def _report_absent(self, error: int) -> None:
        rights = search_rights(self._thread)
        if not all(rights.allow(each) for each in self._passed):
            raise Uncertain("the task may not search a directory on the way")
        raise OSError(error, os.strerror(error))

    def _is_top(self, at: int, here: os.stat_result) -> bool:
        top = os.fstat(self._top)
        return (here.st_dev, here.st_ino) == (top.st_dev, top.st_ino) and (
            _mount_id(at) == _mount_id(self._top)
        )

    def _task_in(self, proc: int, name: str) -> list[str]:
        """The task's path for `self` or `thread-self` in a /proc of any pid namespace."""
        own = _status(f"/proc/{self._thread}/status")
        for n, (process, thread) in enumerate(zip(own["NStgid"], own["NSpid"], strict=True)):
            steps = [process, "task", thread]
            try:
                other = _status("/".join((f"/proc/self/fd/{proc}", *steps, "status")))
            except OSError:
                continue
            if other["NSpid"] == own["NSpid"][n:] and other["NStgid"] == own["NStgid"][n:]:
                return steps[:1] if name == "self" else steps
        raise Uncertain("the task has no number in that pid namespace")

    def _closed_later(self, fd: int) -> int:
        self._open.append(fd)
        return fd


def _names(path: str) -> list[str]:
    """The names of a path, in reverse. A final slash asks for a directory: a name ""."""
    names = [name for name in path.split("/") if name] + ([""] if path.endswith("/") else [])
    return names[::-1]


def _is_magic_link(directory: int, name: str) -> bool:
    try:
        os.close(openat2(directory, name, _NO_MAGIC))
        return False
    except OSError as e:
        return e.errno == errno.ELOOP


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}") as facts:
        return next((line for line in facts if line.startswith("mnt_id:")), "")


def _status(path: str) -> dict[str, list[str]]:
    lines = read_short(path).decode("utf-8", "replace").splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def searchable(top: int, path: str, rights: SearchRights, resolve: int) -> bool:
    """Whether a task may search each directory on the way to a missing file.

    The path has no links and no dots. The call never blocks if `resolve` contains CACHED.
    """
    at = ""
    for name in path.rstrip("/").split("/")[:-1]:
        at += f"{name}/"
        try:
            fd = openat2(top, at, resolve)
        except OSError as e:
            return e.errno in ABSENT
        try:
            if not rights.allow(os.fstat(fd)):
                return False
        finally:
            os.close(fd)
    return True
