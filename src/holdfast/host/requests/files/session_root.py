"""Opens files of a session as its programs would, in a process of its own.

- Below the root. Each path is resolved by openat2 with RESOLVE_IN_ROOT, below the root directory of
  the session's first process. The kernel resolves `..` and absolute links within that root, also if
  another process exchanges directories meanwhile. Links of /proc that lead elsewhere (magic links)
  are refused.
- With the rights of the session. A worker of a root host takes the accounts, groups and
  capabilities of the session's first process before it opens any file.
- Without side effects. A file is first opened with O_PATH, which neither waits for the other end of
  a FIFO nor touches a device. Only a regular file or a directory is opened further.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator

PATH_BYTES = 4096
_OPENAT2 = 437  # on every architecture
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
_AGAIN = 32  # tries, if directories on the way are moved meanwhile
_HOW = struct.Struct("=QQQ")
_CAPABILITY_HEADER = struct.pack("Ii", 0x2008_0522, 0)
_libc = ctypes.CDLL(None, use_errno=True)


class Refusal(Exception):
    """An answer for the caller: the name of an error of the contract, and the message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name, self.message = name, message


class SessionRoot:
    """The root of the process `pid`, which started at `start` ticks since the boot."""

    def __init__(self, pid: int, start: int) -> None:
        self._pid = pid
        self._root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with open(f"/proc/{pid}/status") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        with open(f"/proc/{pid}/stat", "rb") as stats:
            if int(stats.read().rpartition(b")")[2].split()[19]) != start:
                raise ProcessLookupError(errno.ESRCH, "the session's first process is gone")
        if os.geteuid() == 0:
            _become(status)

    def absolute(self, path: str) -> str:
        """A path in the session; a relative path begins in the directory of its first process."""
        if not path or "\0" in path or len(os.fsencode(path)) > PATH_BYTES:
            raise Refusal("usage", "a path has 1 to 4096 bytes and no NUL")
        if path.startswith("/"):
            return path
        try:
            here = os.readlink(f"/proc/{self._pid}/cwd")
            there = os.stat(f"/proc/{self._pid}/cwd").st_nlink > 0
            plain = os.readlink(f"/proc/{self._pid}/root") == "/" and here.startswith("/")
        except OSError:
            plain = there = False
        if not (plain and there):
            raise Refusal("impossible", "the session's current directory has no path here")
        return here if path == "." else f"{here.rstrip('/')}/{path.removeprefix('./')}"

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        """A descriptor of the file at an absolute path of the session."""
        how = _HOW.pack(flags | os.O_CLOEXEC, mode, _IN_ROOT | _NO_MAGICLINKS)
        for _ in range(_AGAIN):
            fd: int = _libc.syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_long(self._root),
                os.fsencode(path),
                how,
                ctypes.c_size_t(len(how)),
            )
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        if code == errno.ENOSYS:
            raise Refusal("impossible", "this kernel has no openat2 (Linux 5.6 has it)")
        raise OSError(code, os.strerror(code), path)

    @contextlib.contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def readable(self, path: str) -> int:
        """A descriptor to read a regular file."""
        with self.opened(path, os.O_PATH) as fd:
            kind = kind_of(os.fstat(fd).st_mode)
            if kind != "file":
                raise Refusal("impossible", f"{path} is no regular file ({kind})")
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def directory(self, path: str) -> int:
        """A descriptor to list a directory."""
        return self.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)


def kind_of(mode: int) -> str:
    for test, name in (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "link"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
    ):
        if test(mode):
            return name
    return "device"


def version_of(facts: os.stat_result) -> str:
    """Changes with the content and the attributes of the file."""
    parts = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return "-".join(f"{part:x}" for part in parts)


def _become(status: dict[str, str]) -> None:
    """Takes the accounts, groups and capabilities of the session's first process."""
    uids, gids = status["Uid"].split(), status["Gid"].split()
    effective = int(status["CapEff"], 16)
    os.setgroups([int(one) for one in status["Groups"].split()])
    os.setresgid(*(int(gids[1]),) * 3)
    os.setresuid(*(int(uids[1]),) * 3)
    if os.geteuid() == 0:
        low, high = effective & 0xFFFF_FFFF, effective >> 32
        data = struct.pack("6I", low, low, 0, high, high, 0)
        if _libc.capset(_CAPABILITY_HEADER, data):
            raise OSError(ctypes.get_errno(), "capset")
