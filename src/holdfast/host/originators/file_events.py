"""The kernel's reports of which process wrote which file: fanotify marks on whole file systems.

Only root may place the marks. An event names a file by a handle (inode and generation on the file
system), not by a descriptor. No file is opened or held, file systems can be unmounted, and reading
costs two or three microseconds per event. `key_of` finds the handle of a path, so both are compared
as bytes. Descriptors were tried: they cost two more system calls per event, and keep the files of a
busy machine open until the events are read.

The kernel merges unread events with the same process and the same file. The host therefore reads
PAUSE_S after the first event, and thousands of writes to a file become a few events per second. A
caller that needs the present state reads all reported events at once (`read`). The pause is short
enough for the kernel's queue (16,384 events) during a build. If the queue overflows, the kernel
says so (`on_lost`).

Not seen: writes through a memory mapping until the file is closed, and writes by other machines to
a network file system. Only the file systems in `filesystems.LOCAL` are marked; network file systems
are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.host.runtime.file_key import Handle
from holdfast.host.runtime.file_key import key_of as key_of
from holdfast.host.runtime.notify import log_error

PAUSE_S: Final = 0.05
EVENTS_AT_ONCE: Final = 128  # before the loop goes on with other work
BYTES_AT_ONCE: Final = 12 << 10  # about 128 events
READ_MAX: Final = 8192  # events that one `read` takes

MODIFY, ATTRIB, CLOSE_WRITE, OPEN = 0x2, 0x4, 0x8, 0x20
MOVED_TO, CREATE, DELETE_SELF = 0x80, 0x100, 0x400
WRITES: Final = MODIFY | CLOSE_WRITE
TOUCHES: Final = ATTRIB | MOVED_TO
_OVERFLOW, ONDIR = 0x4000, 0x4000_0000
_MASK: Final = WRITES | TOUCHES | CREATE | DELETE_SELF | ONDIR
_CLOEXEC, _NONBLOCK = 0x1, 0x2
# FAN_REPORT_FID, _DIR_FID, _NAME, _TARGET_FID: the file, the directory, the name, the named file
_REPORT: Final = 0x200 | 0x400 | 0x800 | 0x1000
_MARK_ADD, _MARK_FLUSH, _MARK_FILESYSTEM = 0x1, 0x80, 0x100
_AT_FDCWD: Final = -100
_EVENT = struct.Struct("=IBBHQii")  # length, version, -, length of this header, mask, fd, pid
_INFO = struct.Struct("=BBH")  # kind, -, length
_FID, _VERSION = 1, 3

Event = tuple[int, int, bytes]  # mask, pid, key


_libc = ctypes.CDLL(None, use_errno=True)


class Events:
    """The kernel's queue of file events. One per host; callbacks run on the loop.

    `on_events` gets the next events, `on_empty` runs when the queue is empty, `on_lost` when the
    kernel dropped events.
    """

    def __init__(
        self,
        on_events: Callable[[list[Event]], None],
        on_empty: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Raises OSError with the reason if the kernel refuses."""
        self._on_events, self._on_empty, self._on_lost = on_events, on_empty, on_lost
        self.lost = 0
        self._own = os.getpid()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._fd = open_group()
        self._loop.add_reader(self._fd, self._readable)

    @property
    def open(self) -> bool:
        """Whether the kernel still reports."""
        return self._fd >= 0

    def mark(self, path: str) -> None:
        """Report all changes on the file system of this path from now on."""
        if self._fd < 0:
            raise OSError("closed")
        _mark(self._fd, path)

    def unmark(self) -> None:
        """Remove all marks: no change is reported until the next `mark`."""
        if self._fd >= 0:
            _unmark(self._fd)

    def watch(self, file: int) -> None:
        """Report each open of a file from now on."""
        if self._fd >= 0:
            watch(self._fd, file, OPEN)

    def forget_files(self) -> None:
        """Remove the marks of `watch`."""
        if self._fd >= 0:
            _fanotify_mark(self._fd, _MARK_FLUSH, 0, None)

    def marked(self) -> set[int]:
        """The devices of the marked file systems. Unmounting a file system removes the mark."""
        if self._fd < 0:
            return set()
        with open(f"/proc/self/fdinfo/{self._fd}") as facts:
            return {
                int(line.split("sdev:", 1)[1].split()[0], 16)
                for line in facts
                if line.startswith("fanotify sdev:")
            }

    def read(self, most: int = READ_MAX) -> bool:
        """Take at most so many reported events. Returns whether the queue is empty now."""
        if self._fd < 0:
            return True
        left = most
        while left > 0:
            try:
                data = os.read(self._fd, BYTES_AT_ONCE)
            except BlockingIOError:
                self._on_empty()
                return True
            except OSError:
                self.close()
                self._missed()
                return True
            count, found, lost = parsed(data, self._own)
            left -= count
            try:
                if found:
                    self._on_events(found)
            except Exception as e:  # the next events must still be read; these count as lost
                log_error("file events", e)
                lost = True
            if lost:
                self._missed()
        return False

    def _readable(self) -> None:
        """Wait a moment before reading: the kernel merges events meanwhile."""
        self._loop.remove_reader(self._fd)
        self._timer = self._loop.call_later(PAUSE_S, self._read_some)

    def _read_some(self) -> None:
        self._timer = None
        if self.read(EVENTS_AT_ONCE):
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._readable)
        else:
            self._timer = self._loop.call_later(0, self._read_some)

    def _missed(self) -> None:
        self.lost += 1
        self._on_lost()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def open_group() -> int:
    """A descriptor for file events that name the writing process.

    Raises OSError with the reason if the kernel refuses. An ordinary user gets a descriptor, but no
    marks on whole file systems and no process ids.
    """
    fd = _checked(
        "fanotify_init",
        _libc.fanotify_init(_CLOEXEC | _NONBLOCK | _REPORT, os.O_RDONLY | os.O_CLOEXEC),
    )
    try:
        _mark(fd, "/")
        _unmark(fd)
    except PermissionError:
        os.close(fd)
        raise
    except OSError:
        pass  # this file system cannot be marked; others may
    return fd


def watch(fd: int, file: int, mask: int = OPEN | WRITES | ATTRIB) -> None:
    """Report each open and change of a file from now on. An O_PATH descriptor is enough."""
    _fanotify_mark(fd, _MARK_ADD, mask, b"/proc/self/fd/%d" % file)


def _mark(fd: int, path: str) -> None:
    _fanotify_mark(fd, _MARK_ADD | _MARK_FILESYSTEM, _MASK, os.fsencode(path))


def _unmark(fd: int) -> None:
    _fanotify_mark(fd, _MARK_FLUSH | _MARK_FILESYSTEM, 0, None)


def _fanotify_mark(fd: int, flags: int, mask: int, path: bytes | None) -> None:
    result = _libc.fanotify_mark(fd, ctypes.c_uint(flags), ctypes.c_uint64(mask), _AT_FDCWD, path)
    _checked("fanotify_mark", result)


def parsed(data: bytes, own: int) -> tuple[int, list[Event], bool]:
    """The number of events in `data`, the usable events, and whether the kernel dropped events.

    Usable events name a file and do not come from this process.
    """
    found, lost, count, at, end = list[Event](), False, 0, 0, len(data)
    event, info = _EVENT.unpack_from, _INFO.unpack_from
    while at + 24 <= end:
        length, version, _, head, mask, _, pid = event(data, at)
        count += 1
        if length < 24 or version != _VERSION:
            return count, found, True  # the rest cannot be parsed
        if mask & _OVERFLOW:
            lost = True
        elif pid != own:
            where, after = at + head, at + length
            while where < after:
                kind, _, size = info(data, where)
                if kind == _FID:
                    found.append((mask, pid, data[where + 4 : where + size]))
                    break
                where += size or length
        at += length
    return count, found, lost


def opened(mount: int, key: bytes) -> int:
    """An O_PATH descriptor of the file with this key. Root only.

    `mount`: any open descriptor on the same file system. Raises OSError if the file is gone, or if
    the file system cannot open files by handle.
    """
    size, kind = struct.unpack_from("=Ii", key, 8)
    handle = Handle(size, kind)
    handle.data[:size] = key[16 : 16 + size]
    flags = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
    result = _libc.open_by_handle_at(mount, ctypes.byref(handle), flags)
    return _checked("open_by_handle_at", result)


def found(mounts: Iterable[tuple[bytes, str]], key: bytes) -> tuple[str, int] | None:
    """The path and the mode of the file with this key; None: the file is gone. Root only.

    `mounts`: first bytes of the keys of a file system, and a path to it.
    """
    for system, path in mounts:
        if key.startswith(system):
            with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
                mount = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                closing.callback(os.close, mount)
                file = opened(mount, key)
                closing.callback(os.close, file)
                return os.readlink(f"/proc/self/fd/{file}"), os.fstat(file).st_mode
    return None


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def device_number(device: str) -> int:
    """A device number "major:minor" as `marked` gives it."""
    major, _, minor = device.partition(":")
    return int(major) << 20 | int(minor)


def device_name(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"
