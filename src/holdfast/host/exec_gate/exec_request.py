"""One exec that waits at the gate: who it is and what it would run, read from the memory of the task itself while the kernel holds it.

What is read is what the task's memory says now; whoever shares that memory may change it before the kernel reads it again (host/compared.py looks afterwards at what really ran). Everything is
bounded, and whatever cannot be read is said to be unread: the policy then asks rather than guesses.

Memory may be a file's, and that file system slow, or a program of the session that does not answer: who reads such a page waits for it, and no signal helps. So on the loop (`soon`) only pages that the task
has in memory are read; the rest is read in a thread, which nobody else waits for.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from holdfast.core.execution import Program
from holdfast.host import lookup
from holdfast.host.process import half, read_short
from holdfast.model.probe import probe
from holdfast.wire import notification as wire

WORDS_MAX: Final = 131_072
SOON_WORDS, SOON_BYTES = 512, 64 << 10  # read on the loop; more takes milliseconds, and others wait
LATER: Final = "it was not read to its end"  # of a program that has more than that
ARGV_BYTES_MAX: Final = 2 << 20  # what the kernel itself takes, as machines mostly are
PATH_BYTES_MAX: Final = 4096
_CHUNK: Final = 4096
_PAGE: Final = os.sysconf("SC_PAGESIZE")
_PRESENT: Final = 1 << 63
_POINTERS: Final = 64  # read at once at first
_AT_EMPTY_PATH: Final = 0x1000
_X86_64, _I386, _ARM, _X32 = 0xC000_003E, 0x4000_0003, 0x4000_0028, 0x4000_0000
_EXECVEAT: Final = {
    _X86_64: (322, _X32 | 545, _X32 | 322),
    _I386: (358,),
    0xC000_00B7: (281,),
    _ARM: (387,),
}


class Notified(NamedTuple):
    id: int
    thread: int  # as this process numbers it
    nr: int
    arch: int
    args: tuple[int, ...]


def parse(data: bytes | bytearray) -> Notified:
    id, thread, _, nr, arch, _, *args = wire.NOTIFICATION.unpack(data)
    return Notified(id, thread, nr & 0xFFFF_FFFF, arch, tuple(args))


def read(one: Notified) -> Program:
    """What it would run, to its last word."""
    with Reading(one) as reading:
        return reading.program()


class Reading:
    """What it would run, as far as somebody wants to know: first the file. Never raises: of a task that is gone nothing is known, and the kernel says so to whoever asks."""

    def __init__(self, one: Notified, soon: bool = False) -> None:
        """`soon`: without waiting for anything; what would have to be waited for is LATER."""
        at = one.nr in _EXECVEAT.get(one.arch, ())
        path_at, self._argv_at = (one.args[1], one.args[2]) if at else (one.args[0], one.args[1])
        self._small = one.arch in (_I386, _ARM) or one.nr in (_X32 | 520, _X32 | 545)
        self.file, self.way, self._why = "?", "", ""
        self._memory = self._pages = -1
        try:
            self._memory = os.open(f"/proc/{one.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
            if soon:
                self._pages = _pages(one.thread)
            self._reader = _Reader(self._memory, self._pages)
            path = os.fsdecode(self._reader.text(path_at, PATH_BYTES_MAX))
            dirfd = (
                struct.unpack("<i", (one.args[0] & 0xFFFF_FFFF).to_bytes(4, "little"))[0]
                if at
                else lookup.AT_FDCWD
            )
            self.file, self.way = lookup.named(
                one.thread, path, dirfd, at and bool(one.args[4] & _AT_EMPTY_PATH)
            )
        except (OSError, _Unread, OverflowError, ValueError) as e:
            self._why = (
                LATER
                if str(e) == LATER
                else f"its memory cannot be read: {e.strerror if isinstance(e, OSError) else e}"
            )

    def program(self, soon: bool = False) -> Program:
        """With its words; `soon`: only if that is quick, else they are LATER."""
        if self._why:
            return Program("?", (), self._why)
        try:
            return Program(
                self.file,
                tuple(
                    os.fsdecode(word)
                    for word in self._reader.words(self._argv_at, self._small, soon)
                ),
                way=self.way,
            )
        except _Unread as e:
            return Program(self.file, (), LATER if soon else str(e), self.way)
        except (OSError, OverflowError, ValueError) as e:
            return Program("?", (), f"its memory cannot be read: {e}")

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._memory, self._pages):
            if fd >= 0:
                os.close(fd)


def cwd_of(thread: int) -> str | None:
    """None where it means nothing here: deleted, or below another root; and of one that nobody may look at now."""
    if half(thread):
        return None
    try:
        path = os.readlink(f"/proc/{thread}/cwd")
        return (
            path
            if path.startswith("/")
            and not path.endswith(" (deleted)")
            and os.readlink(f"/proc/{thread}/root") == "/"
            else None
        )
    except OSError:
        return None


def process_of(thread: int) -> tuple[int, int] | None:
    """The process that a thread belongs to, and its parent."""
    try:
        text = read_short(f"/proc/{thread}/status")
        found = {
            name: int(value.split()[0])
            for name, _, value in (line.partition(b":") for line in text.splitlines())
            if name in (b"Tgid", b"PPid")
        }
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


def _pages(thread: int) -> int:
    try:
        return os.open(f"/proc/{thread}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:  # a kernel that does not say
        raise _Unread(LATER) from e


class _Reader:
    """Strings of another process, a page or so at a time: those of one argv mostly lie together."""

    def __init__(self, fd: int, pages: int = -1) -> None:
        """`pages`: tells which of them are in memory; no others are read then."""
        self._fd, self._pages, self._base, self._data = fd, pages, 0, b""

    def _piece(self, count: int, at: int) -> bytes:
        if self._pages < 0:
            return os.pread(self._fd, count, at)
        first, last = at // _PAGE, (at + count - 1) // _PAGE
        there = os.pread(self._pages, 8 * (last - first + 1), 8 * first)
        end = first
        for (entry,) in struct.iter_unpack("=Q", there[: len(there) & ~7]):
            if not entry & _PRESENT:
                break
            end += 1
        if end == first:
            raise _Unread(LATER)
        probe("host.exec.paged")
        return os.pread(self._fd, min(count, end * _PAGE - at), at)

    def text(self, at: int, limit: int) -> bytes:
        offset = at - self._base
        if 0 <= offset < len(self._data) and (end := self._data.find(b"\0", offset)) >= 0:
            return self._data[offset:end]
        found = b""
        while len(found) <= limit:
            piece = self._piece(_CHUNK, at + len(found))
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
            block = self._piece(size * _POINTERS, at + size * len(found))
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
