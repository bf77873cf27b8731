"""The way of another task along a path, step by step as the kernel would go it for that task: what `openat2` cannot be asked.

From its own root and directory; a link that is told from the root is followed in that root, whatever this process has there; `/proc/self` is that task; and links that have no text (`/proc/PID/root`,
`cwd`, `exe`, `fd/N`) are followed like any other. And that nothing is there is said only to a task that may look there: one that may not search a directory on the way is told something else by
the kernel, and must not learn from here what is in it.

Asks file systems: in a thread. Where the kernel's answer is not certain, `Unsure`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Final, NamedTuple

from holdfast.host.process import read_short

GONE: Final = (errno.ENOENT, errno.ENOTDIR)
PATH_ONLY: Final = os.O_PATH | os.O_CLOEXEC
NO_LINKS, IN_ROOT, CACHED = 0x04, 0x10, 0x20
_NO_MAGIC: Final = 0x02
_STEP: Final = PATH_ONLY | os.O_NOFOLLOW
_LINKS_MAX: Final = 40  # as the kernel's
_STEPS_MAX: Final = 4096
_OPENAT2: Final = 437  # on every machine
_HOW: Final = struct.Struct("=QQQ")
_PROC: Final = 0x9FA0  # its file systems' number
_PROC_TOP: Final = 1  # and the inode of their first directory
_STATFS_BYTES: Final = 256
_SEARCH: Final = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_USERS: Final = os.stat("/proc/self/ns/user").st_ino  # the namespace in which our own rights count
_libc = ctypes.CDLL(None, use_errno=True)


class Unsure(Exception):
    """What the task would find cannot be said from here."""


class Rights(NamedTuple):
    """Of a task, as far as searching directories goes."""

    all: bool
    uid: int

    def search(self, found: os.stat_result) -> bool:
        """For certain: what only a group may search counts as not."""
        wanted = 0o100 if found.st_uid == self.uid else 0o111
        return self.all or found.st_mode & wanted == wanted


def rights(thread: int) -> Rights:
    """Unsure, if it is gone."""
    try:
        text = read_short(f"/proc/{thread}/status")
        uid = text[text.index(b"\nUid:") + 5 :].split(None, 4)[3]
        at = text.index(b"\nCapEff:") + 8
        mighty = (
            int(text[at : text.index(b"\n", at)], 16) & _SEARCH
            and os.stat(f"/proc/{thread}/ns/user").st_ino == _USERS
        )
        return Rights(bool(mighty), int(uid))
    except (OSError, ValueError, IndexError) as e:
        raise Unsure(str(e)) from e


def openat2(top: int, path: str, resolve: int) -> int:
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
    """A descriptor of what is there, for looking only. `start`: from where, of `/proc/THREAD`. OSError: as the kernel would say it; Unsure."""
    one = _Walk(thread)
    try:
        return one.go(start, path)
    except (ValueError, KeyError, IndexError) as e:
        raise Unsure(str(e)) from e
    finally:
        one.close()


class _Walk:
    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._open = list[int]()
        self._passed = list[os.stat_result]()
        self._links = 0

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)

    def go(self, start: str, path: str) -> int:
        try:
            self._top = self._kept(os.open(f"/proc/{self._thread}/root", PATH_ONLY))
            at = (
                self._top
                if path.startswith("/")
                else self._kept(os.open(f"/proc/{self._thread}/{start}", PATH_ONLY))
            )
        except OSError as e:
            raise Unsure(str(e)) from e
        todo = _steps(path)
        for _ in range(_STEPS_MAX):
            if not todo:
                return os.dup(at)
            at = self._step(at, todo)
        raise Unsure("it has too many steps")

    def _step(self, at: int, todo: list[str]) -> int:
        """One name further; a link's text comes in its place."""
        name = todo.pop()
        here = os.fstat(at)
        if not stat.S_ISDIR(here.st_mode):
            self._gone(errno.ENOTDIR)
        self._passed.append(here)
        if name in ("", "."):
            return at
        if name == "..":
            return at if self._is_top(at, here) else self._kept(os.open("..", PATH_ONLY, dir_fd=at))
        fd = self._named(at, name, bool(todo))
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd
        self._links += 1
        if self._links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if _type(at) == _PROC:
            if here.st_ino == _PROC_TOP and name in ("self", "thread-self"):
                todo.extend(reversed(self._self(at, name)))
                return at
            if _magic(at, name):
                return self._kept(os.open(name, PATH_ONLY, dir_fd=at))
        text = os.readlink("", dir_fd=fd)
        todo.extend(_steps(text))
        return self._top if text.startswith("/") else at

    def _named(self, at: int, name: str, more: bool) -> int:
        """With O_DIRECTORY what is mounted only when it is needed is mounted, as for the task."""
        try:
            if more:
                try:
                    return self._kept(os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at))
                except NotADirectoryError:
                    pass
            return self._kept(os.open(name, _STEP, dir_fd=at))
        except OSError as e:
            if e.errno not in GONE or _type(at) == _PROC:
                raise Unsure(str(e)) from e
            self._gone(e.errno)
            raise

    def _gone(self, error: int) -> None:
        may = rights(self._thread)
        if not all(may.search(each) for each in self._passed):
            raise Unsure("it may not look there")
        raise OSError(error, os.strerror(error))

    def _is_top(self, at: int, here: os.stat_result) -> bool:
        top = os.fstat(self._top)
        return (here.st_dev, here.st_ino) == (top.st_dev, top.st_ino) and _mount(at) == _mount(
            self._top
        )

    def _self(self, proc: int, name: str) -> list[str]:
        """How that `/proc`, which may be of another namespace, calls the task."""
        own = _status(f"/proc/{self._thread}/status")
        for n, (process, thread) in enumerate(zip(own["NStgid"], own["NSpid"], strict=True)):
            steps = [process, "task", thread]
            try:
                other = _status("/".join((f"/proc/self/fd/{proc}", *steps, "status")))
            except OSError:
                continue
            if other["NSpid"] == own["NSpid"][n:] and other["NStgid"] == own["NStgid"][n:]:
                return steps[:1] if name == "self" else steps
        raise Unsure("it is no process there")

    def _kept(self, fd: int) -> int:
        self._open.append(fd)
        return fd


def _steps(path: str) -> list[str]:
    """Its names, the first at the end. A slash at the end means a directory."""
    return [
        *reversed([name for name in path.split("/") if name] + ([""] if path.endswith("/") else []))
    ]


def _magic(directory: int, name: str) -> bool:
    try:
        os.close(openat2(directory, name, _NO_MAGIC))
        return False
    except OSError as e:
        return e.errno == errno.ELOOP


def _mount(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}") as facts:
        return next((line for line in facts if line.startswith("mnt_id:")), "")


def _status(path: str) -> dict[str, list[str]]:
    return {
        name: value.split()
        for name, _, value in (
            line.partition(":") for line in read_short(path).decode("utf-8", "replace").splitlines()
        )
    }


def _type(fd: int) -> int:
    """Of the file system."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(fd), found):
        raise OSError(ctypes.get_errno(), "fstatfs")
    return int(struct.unpack_from("@l", found)[0])


def searchable(top: int, path: str, may: Rights, resolve: int) -> bool:
    """Whether a task with these rights may search each directory on the way to what is not there; the path has no links and no dots. Waits for nothing if `resolve` says so."""
    at = ""
    for name in path.rstrip("/").split("/")[:-1]:
        at += f"{name}/"
        try:
            fd = openat2(top, at, resolve)
        except OSError as e:
            return e.errno in GONE
        try:
            if not may.search(os.fstat(fd)):
                return False
        finally:
            os.close(fd)
    return True
