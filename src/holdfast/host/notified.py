"""One exec that waits at the gate: who it is and what it would run, read from the memory of the task itself while the kernel holds it.

What is read is what the task's memory says now; whoever shares that memory may change it before the kernel reads it again (host/execgate.py looks afterwards at what really ran). Everything is
bounded, nothing waits on a file system, and whatever cannot be read is said to be unread: the policy then asks rather than guesses.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Final, NamedTuple

from holdfast.core.execution import Program
from holdfast.wire import notification as wire

WORDS_MAX: Final = 131_072
SOON_WORDS, SOON_BYTES = 512, 64 << 10                 # read on the loop; more takes milliseconds, and others wait
LATER: Final = "it was not read to its end"            # of a program that has more than that
ARGV_BYTES_MAX: Final = 2 << 20                        # what the kernel itself takes, as machines mostly are
PATH_BYTES_MAX: Final = 4096
_CHUNK: Final = 4096
_FIRST_LINE: Final = 256                              # of a script, as the kernel reads it
_SCRIPTS_MAX: Final = 5                               # that run each other, likewise
_POINTERS: Final = 64                                 # read at once at first
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_X86_64, _I386, _ARM, _X32 = 0xC000_003E, 0x4000_0003, 0x4000_0028, 0x4000_0000
_EXECVEAT: Final = {_X86_64: (322, _X32 | 545, _X32 | 322), _I386: (358,), 0xC000_00B7: (281,), _ARM: (387,)}
SELF: Final = ("/proc/self/", "/proc/thread-self/")


class Notified(NamedTuple):
    id: int
    thread: int                  # as this process numbers it
    nr: int
    arch: int
    args: tuple[int, ...]


def parse(data: bytes | bytearray) -> Notified:
    id, thread, _, nr, arch, _, *args = wire.NOTIFICATION.unpack(data)
    return Notified(id, thread, nr & 0xFFFF_FFFF, arch, tuple(args))


def read(one: Notified, soon: bool = False) -> Program:
    """What it would run; `soon`: only if that is quick, else its words are LATER. Never raises: of a task that is gone nothing is known, and the kernel says so to whoever asks."""
    at = one.nr in _EXECVEAT.get(one.arch, ())
    path_at, argv_at = (one.args[1], one.args[2]) if at else (one.args[0], one.args[1])
    small = one.arch in (_I386, _ARM) or one.nr in (_X32 | 520, _X32 | 545)
    try:
        memory = os.open(f"/proc/{one.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        return Program("?", (), f"its memory cannot be read: {e.strerror}")
    try:
        reader = _Reader(memory)
        path = os.fsdecode(reader.text(path_at, PATH_BYTES_MAX))
        dirfd = struct.unpack("<i", (one.args[0] & 0xFFFF_FFFF).to_bytes(4, "little"))[0] if at else _AT_FDCWD
        file, way = _file(one.thread, path, dirfd, at and bool(one.args[4] & _AT_EMPTY_PATH))
        try:
            return Program(file, tuple(os.fsdecode(word) for word in reader.words(argv_at, small, soon)), way=way)
        except _Unread as e:
            return Program(file, (), LATER if soon else str(e), way)
    except (OSError, _Unread, OverflowError, ValueError) as e:
        return Program("?", (), f"its memory cannot be read: {e}")
    finally:
        os.close(memory)


def cwd_of(thread: int) -> str | None:
    """None where it means nothing here: deleted, or below another root."""
    try:
        path = os.readlink(f"/proc/{thread}/cwd")
        return path if path.startswith("/") and not path.endswith(" (deleted)") and os.readlink(f"/proc/{thread}/root") == "/" else None
    except OSError:
        return None


def process_of(thread: int) -> tuple[int, int] | None:
    """The process that a thread belongs to, and its parent."""
    try:
        fd = os.open(f"/proc/{thread}/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 4096)
        finally:
            os.close(fd)
        found = {name: int(value.split()[0]) for name, _, value in (line.partition(b":") for line in text.splitlines()) if name in (b"Tgid", b"PPid")}
        return found[b"Tgid"], found[b"PPid"]
    except (OSError, KeyError, ValueError, IndexError):
        return None


def ran(pid: int) -> Program | None:
    """What a process is now: its file and its words."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        fd = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, ARGV_BYTES_MAX)
        finally:
            os.close(fd)
    except OSError:
        return None
    if not data:
        return None
    return Program(path, tuple(os.fsdecode(data).split("\0")[:-1]))


class _Unread(Exception):
    pass


class _Reader:
    """Strings of another process, a page or so at a time: those of one argv mostly lie together."""

    def __init__(self, fd: int) -> None:
        self._fd, self._base, self._data = fd, 0, b""

    def text(self, at: int, limit: int) -> bytes:
        offset = at - self._base
        if 0 <= offset < len(self._data) and (end := self._data.find(b"\0", offset)) >= 0:
            return self._data[offset:end]
        found = b""
        while len(found) <= limit:
            piece = os.pread(self._fd, _CHUNK, at + len(found))
            if not piece:
                raise _Unread("it ends without an end")
            self._base, self._data = at + len(found), piece
            end = piece.find(b"\0")
            if end >= 0:
                return found + piece[:end]
            found += piece
        raise _Unread(f"a word has more than {limit} bytes")

    def words(self, at: int, small: bool, soon: bool = False) -> list[bytes]:
        if not at:
            return []
        size, layout = (4, "I") if small else (8, "Q")
        found, total = list[bytes](), 0
        while True:
            block = os.pread(self._fd, size * _POINTERS, at + size * len(found))
            count = len(block) // size
            if not count:
                raise _Unread("its words cannot be read")
            for pointer in struct.unpack_from(f"<{count}{layout}", block):
                if not pointer:
                    return found
                word = self.text(pointer, ARGV_BYTES_MAX if not soon else SOON_BYTES)
                found.append(word)
                total += len(word) + 1
                if soon and (len(found) > SOON_WORDS or total > SOON_BYTES):
                    raise _Unread(LATER)
                if len(found) > WORDS_MAX or total > ARGV_BYTES_MAX:
                    raise _Unread(f"more than {WORDS_MAX} words or {ARGV_BYTES_MAX} bytes")


def _file(thread: int, path: str, dirfd: int, empty: bool) -> tuple[str, str]:
    """The path, absolute; of a descriptor, what it is. And by which way it is found from here."""
    if path.startswith(SELF):
        path = f"/proc/{thread}/{path.split('/', 3)[3]}"
    if path.startswith("/dev/fd/"):
        path = f"/proc/{thread}/fd/{path[8:]}"
    if path.startswith(f"/proc/{thread}/fd/") or path == f"/proc/{thread}/exe":
        return _link(path), path
    if path.startswith("/"):
        return os.path.normpath(path), f"/proc/{thread}/root{path}"
    start = f"/proc/{thread}/cwd" if dirfd == _AT_FDCWD else f"/proc/{thread}/fd/{dirfd}"
    base = _link(start)
    return (base, start) if empty and not path else (os.path.normpath(os.path.join(base, path)), f"{start}/{path}")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"


class Script(NamedTuple):
    """What runs a script."""

    by: tuple[str, ...]          # as its first line says; of a script that runs a script, that one's first
    file: str                    # what that leads to


def script(thread: int, way: str) -> Script | None:
    """What the kernel would run in place of this file; None: the file itself, or nothing. Asks the file system: in a thread."""
    by, file = tuple[str, ...](), ""
    for _ in range(_SCRIPTS_MAX):
        line = _first_line(way)
        if not line.startswith(b"#!"):
            break
        name, _, rest = line[2:].strip(b" \t").replace(b"\t", b" ").partition(b" ")
        if not name:
            break
        words = tuple(os.fsdecode(word) for word in (name, rest.strip(b" ")) if word)
        by = (*words, *((by[0], *by[1:]) if by else ()))
        file, way = _file(thread, words[0], _AT_FDCWD, False)
    return Script(by, resolved(file, way) or file) if by else None


def _first_line(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
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


def resolved(path: str, way: str) -> str | None:
    """The file behind links, as the task would find it; None: there is none. Asks the file system: in a thread."""
    try:
        fd = os.open(way, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return path if _leads_away(way) else None
    except OSError:
        return path
    try:
        return _link(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _leads_away(way: str) -> bool:
    """Whether a link on it is told from the root: that is another one for the task, perhaps."""
    for end in (*[at for at, letter in enumerate(way) if letter == "/"][4:], len(way)):       # behind /proc/PID/root
        try:
            if os.readlink(way[:end]).startswith("/"):
                return True
        except FileNotFoundError:
            return False
        except OSError:
            continue                                         # no link
    return False
