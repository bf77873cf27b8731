"""An exec that waits at the gate: the task, and the program that the task would run.

The program is read from the task's memory while the kernel holds the task. A second task that
shares this memory can change the program before the kernel reads the memory again. Afterwards,
host/exec_gate/verify_exec.py therefore checks which program really ran. All reads are bounded. A
program that cannot be read is reported as unread, and the policy then asks instead of guessing.

A page of that memory can belong to a file. The file system may be slow, or may be a program of the
session that does not answer. The reader then blocks, and no signal ends the wait. The event loop
therefore reads only pages that are present in memory (`only_present`). A thread reads the rest.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.core.policy.execution import Program
from holdfast.host.exec_gate import path_lookup
from holdfast.host.processes.process import read_proc, read_short
from holdfast.model.probe import probe
from holdfast.wire import notification as wire

ARGUMENTS_MAX: Final = 131_072
ARGV_BYTES_MAX: Final = 2 << 20  # the kernel's own limit on most machines
# Limits of the event loop: more takes milliseconds, and every other client waits meanwhile.
LOOP_ARGUMENTS, LOOP_BYTES = 512, 64 << 10
UNFINISHED: Final = "it was not read to its end"  # why `unread`: left for a thread
PATH_BYTES_MAX: Final = 4096
_CHUNK: Final = 4096
_PAGE: Final = os.sysconf("SC_PAGESIZE")
_PRESENT: Final = 1 << 63
_POINTERS: Final = 64  # of the argument list, read at a time
_AT_EMPTY_PATH: Final = 0x1000
_X86_64, _I386, _ARM, _X32 = 0xC000_003E, 0x4000_0003, 0x4000_0028, 0x4000_0000
_EXECVEAT: Final = {
    _X86_64: (322, _X32 | 545, _X32 | 322),
    _I386: (358,),
    0xC000_00B7: (281,),
    _ARM: (387,),
}


class Notification(NamedTuple):
    """A seccomp notification: one system call that the kernel holds."""

    id: int
    thread: int  # the calling thread's number in this process's pid namespace
    nr: int
    arch: int
    args: tuple[int, ...]


def parse(data: bytes | bytearray) -> Notification:
    id, thread, _, nr, arch, _, *args = wire.NOTIFICATION.unpack(data)
    return Notification(id, thread, nr & 0xFFFF_FFFF, arch, tuple(args))


def read_program(exec: Notification) -> Program:
    """The program that the task would run, with all arguments. Can block: call it in a thread."""
    with ProgramReader(exec) as reader:
        return reader.program()


def read_environment(exec: Notification) -> list[tuple[str, bytes]] | None:
    """The variables for the program. Can block: call it in a thread."""
    with ProgramReader(exec) as reader:
        return reader.environment()


class ProgramReader:
    """Reads the program of a waiting exec: first the file, the arguments only on demand.

    Never raises. A task that is gone cannot be read, and the kernel rejects an answer to that task.
    """

    def __init__(self, exec: Notification, only_present: bool = False) -> None:
        """`only_present`: never block. A program that would need a wait is UNFINISHED."""
        at = exec.nr in _EXECVEAT.get(exec.arch, ())
        path_at, self._argv_at, self._envp_at = exec.args[1:4] if at else exec.args[:3]
        self._short_pointers = exec.arch in (_I386, _ARM) or exec.nr in (_X32 | 520, _X32 | 545)
        self.file, self.proc_path, self._error = "?", "", ""
        self._memory = self._pagemap = -1
        try:
            self._memory = os.open(f"/proc/{exec.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
            if only_present:
                self._pagemap = _open_pagemap(exec.thread)
            self._strings = _Strings(self._memory, self._pagemap)
            path = os.fsdecode(self._strings.read(path_at, PATH_BYTES_MAX))
            dirfd = (
                struct.unpack("<i", (exec.args[0] & 0xFFFF_FFFF).to_bytes(4, "little"))[0]
                if at
                else path_lookup.AT_FDCWD
            )
            self.file, self.proc_path = path_lookup.named(
                exec.thread, path, dirfd, at and bool(exec.args[4] & _AT_EMPTY_PATH)
            )
        except (OSError, _Unread, OverflowError, ValueError) as e:
            self._error = (
                UNFINISHED
                if str(e) == UNFINISHED
                else f"its memory cannot be read: {e.strerror if isinstance(e, OSError) else e}"
            )

    def program(self, brief: bool = False) -> Program:
        """The file with its arguments. `brief`: only a few; more of them are UNFINISHED."""
        if self._error:
            return Program("?", (), self._error)
        try:
            words = self._strings.read_list(self._argv_at, self._short_pointers, brief)
            return Program(self.file, tuple(map(os.fsdecode, words)), way=self.proc_path)
        except _Unread as e:
            return Program(self.file, (), UNFINISHED if brief else str(e), self.proc_path)
        except (OSError, OverflowError, ValueError) as e:
            return Program("?", (), f"its memory cannot be read: {e}")

    def environment(self) -> list[tuple[str, bytes]] | None:
        """The variables that the program gets, each as often as it occurs; None: not readable."""
        if self._error:
            return None
        try:
            entries = self._strings.read_list(self._envp_at, self._short_pointers)
        except (OSError, _Unread, OverflowError, ValueError):
            return None
        return _variables(entries)

    def __enter__(self) -> ProgramReader:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._memory, self._pagemap):
            if fd >= 0:
                os.close(fd)


def process_of(thread: int) -> tuple[int, int] | None:
    """The process that a thread belongs to, and the parent process."""
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


def running_program(pid: int) -> Program | None:
    """The program that a process runs now: the file and the arguments."""
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


def running_environment(pid: int) -> list[tuple[str, bytes]] | None:
    """The variables that a process was started with, unless it has overwritten them."""
    try:
        return _variables(read_proc(f"/proc/{pid}/environ", ARGV_BYTES_MAX).split(b"\0")[:-1])
    except OSError:
        return None


def _variables(entries: Iterable[bytes]) -> list[tuple[str, bytes]]:
    pairs = (entry.partition(b"=") for entry in entries)
    return [(os.fsdecode(name), value) for name, _, value in pairs]


class _Unread(Exception):
    """Why the program could not be read."""


def _open_pagemap(thread: int) -> int:
    try:
        return os.open(f"/proc/{thread}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:  # a kernel without pagemap: no page is known to be present
        raise _Unread(UNFINISHED) from e


class _Strings:
    """C strings in the memory of the waiting task.

    Reads about a page at a time, because the strings of an argument list mostly lie together.
    """

    def __init__(self, memory: int, pagemap: int = -1) -> None:
        """`pagemap`: if open, only the pages that the pagemap shows to be present are read."""
        self._memory, self._pagemap, self._base, self._data = memory, pagemap, 0, b""

    def _read_piece(self, count: int, at: int) -> bytes:
        if self._pagemap < 0:
            return os.pread(self._memory, count, at)
        first, last = at // _PAGE, (at + count - 1) // _PAGE
        entries = os.pread(self._pagemap, 8 * (last - first + 1), 8 * first)
        end = first
        for (entry,) in struct.iter_unpack("=Q", entries[: len(entries) & ~7]):
            if not entry & _PRESENT:
                break
            end += 1
        if end == first:
            raise _Unread(UNFINISHED)
        probe("host.exec.paged")
        return os.pread(self._memory, min(count, end * _PAGE - at), at)

    def read(self, at: int, limit: int) -> bytes:
        offset = at - self._base
        if 0 <= offset < len(self._data) and (end := self._data.find(b"\0", offset)) >= 0:
            return self._data[offset:end]
        found = b""
        while len(found) <= limit:
            piece = self._read_piece(_CHUNK, at + len(found))
            if not piece:
                raise _Unread("a string does not end")
            self._base, self._data = at + len(found), piece
            end = piece.find(b"\0")
            if end >= 0:
                return found + piece[:end]
            found += piece
        raise _Unread(f"an argument has more than {limit} bytes")

    def read_list(self, at: int, short_pointers: bool, brief: bool = False) -> list[bytes]:
        """The strings of a list of pointers that ends with a null pointer."""
        if not at:
            return []
        size, layout = (4, "I") if short_pointers else (8, "Q")
        found, total = list[bytes](), 0
        while True:
            block = self._read_piece(size * _POINTERS, at + size * len(found))
            count = len(block) // size
            if not count:
                raise _Unread("its arguments cannot be read")
            for pointer in struct.unpack_from(f"<{count}{layout}", block):
                if not pointer:
                    return found
                word = self.read(pointer, ARGV_BYTES_MAX if not brief else LOOP_BYTES)
                found.append(word)
                total += len(word) + 1
                if brief and (len(found) > LOOP_ARGUMENTS or total > LOOP_BYTES):
                    raise _Unread(UNFINISHED)
                if len(found) > ARGUMENTS_MAX or total > ARGV_BYTES_MAX:
                    raise _Unread(f"more than {ARGUMENTS_MAX} arguments or {ARGV_BYTES_MAX} bytes")
