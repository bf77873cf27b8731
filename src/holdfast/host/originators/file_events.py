"""Which process wrote which file, as the kernel tells it: fanotify with marks on whole file systems. Root's only.

Events name a file by its handle (inode and generation on its file system), not by a descriptor: nothing is opened, nothing is held, a file system can be unmounted, and reading costs
two or three microseconds per event. What a name means now is found the same way (`key_of`), so the two are compared as bytes. Descriptors were tried too: two system calls per event
more, and a busy machine's files kept open for as long as nobody reads.

The kernel joins events of one process on one file while they are unread. So they are not read at once but PAUSE_S after the first: thousands of writes to one file are then a few events
per second. Whoever needs to know asks for all that was told up to now (`read`). The pause is short enough for the kernel's queue (16,384 events) in a build; if there are more, the kernel
drops them and says so (`on_lost`).

Not seen: writes through a memory mapping until the file is closed; writes by other machines to a file system of the network: those kinds are not marked (`LOCAL` says what is).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from holdfast.host.telling import failed

PAUSE_S: Final = 0.05
EVENTS_AT_ONCE: Final = 128  # before the loop goes on with other things
BYTES_AT_ONCE: Final = 12 << 10  # some 128 events
MOUNTS_MAX: Final = 512
READ_MAX: Final = 8192  # events, for whoever needs to know all that was told

MODIFY, ATTRIB, CLOSE_WRITE, OPEN, MOVED_TO, CREATE, DELETE_SELF = (
    0x2,
    0x4,
    0x8,
    0x20,
    0x80,
    0x100,
    0x400,
)
WRITES: Final = MODIFY | CLOSE_WRITE
TOUCHES: Final = ATTRIB | MOVED_TO
_OVERFLOW, _ONDIR = 0x4000, 0x4000_0000
_MASK: Final = WRITES | TOUCHES | CREATE | DELETE_SELF | _ONDIR
_CLOEXEC, _NONBLOCK = 0x1, 0x2
_REPORT: Final = (
    0x200 | 0x400 | 0x800 | 0x1000
)  # the file, its directory, its name, and the file that a new name stands for
_MARK_ADD, _MARK_FLUSH, _MARK_FILESYSTEM = 0x1, 0x80, 0x100
_AT_FDCWD, _AT_EMPTY_PATH, _AT_HANDLE_FID = -100, 0x1000, 0x200
_EVENT = struct.Struct("=IBBHQii")  # length, version, -, length of this, mask, fd, pid
_INFO = struct.Struct("=BBH")  # kind, -, length
_FID, _VERSION = 1, 3
_HANDLE_BYTES = 128

LOCAL: Final = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "f2fs",
        "tmpfs",
        "ramfs",
        "overlay",
        "zfs",
        "bcachefs",
        "vfat",
        "exfat",
        "ntfs3",
        "jfs",
        "reiserfs",
        "nilfs2",
        "erofs",
    )
)

Event = tuple[int, int, bytes]  # mask, pid, key


class _Handle(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_uint),
        ("kind", ctypes.c_int),
        ("data", ctypes.c_ubyte * _HANDLE_BYTES),
    )


_libc = ctypes.CDLL(None, use_errno=True)


class Events:
    """One per host. Callbacks come on the loop: `on_events` with some that are next, `on_empty` when all that were told are known, `on_lost`."""

    def __init__(
        self,
        on_events: Callable[[list[Event]], None],
        on_empty: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """OSError with the reason if the kernel refuses."""
        self._on_events, self._on_empty, self._on_lost = on_events, on_empty, on_lost
        self.lost = 0
        self._own = os.getpid()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._fd = group()
        self._loop.add_reader(self._fd, self._some)

    @property
    def open(self) -> bool:
        """Whether the kernel tells still."""
        return self._fd >= 0

    def mark(self, path: str) -> None:
        """Everything on the file system that is mounted there, from now on."""
        if self._fd < 0:
            raise OSError("closed")
        _mark(self._fd, path)

    def unmark(self) -> None:
        """Nothing more is told, until something is marked again."""
        if self._fd >= 0:
            _unmark(self._fd)

    def marked(self) -> set[int]:
        """The devices of the file systems that are marked still: who unmounts one takes its mark with it."""
        if self._fd < 0:
            return set()
        with open(f"/proc/self/fdinfo/{self._fd}") as facts:
            return {
                int(line.split("sdev:", 1)[1].split()[0], 16)
                for line in facts
                if line.startswith("fanotify sdev:")
            }

    def read(self, most: int = READ_MAX) -> bool:
        """What was told up to now; whether that is all."""
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
            except Exception as e:  # what comes next must be read still, and this is known no more
                failed("what was written", e)
                lost = True
            if lost:
                self._missed()
        return False

    def _some(self) -> None:
        """There are events: later, they may become fewer."""
        self._loop.remove_reader(self._fd)
        self._timer = self._loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if self.read(EVENTS_AT_ONCE):
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._some)
        else:
            self._timer = self._loop.call_later(0, self._go_on)

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


def group() -> int:
    """Where the kernel tells of files, and who it was. OSError with the reason if it does not: an ordinary user may ask, but not for whole file systems, and is not told who."""
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
        pass  # this one cannot be marked: others may
    return fd


def watch(fd: int, file: int) -> None:
    """This one file (O_PATH is enough), from now on: who opens it, too."""
    _checked(
        "fanotify_mark",
        _libc.fanotify_mark(
            fd,
            ctypes.c_uint(_MARK_ADD),
            ctypes.c_uint64(OPEN | WRITES | ATTRIB),
            _AT_FDCWD,
            b"/proc/self/fd/%d" % file,
        ),
    )


def _mark(fd: int, path: str) -> None:
    _checked(
        "fanotify_mark",
        _libc.fanotify_mark(
            fd,
            ctypes.c_uint(_MARK_ADD | _MARK_FILESYSTEM),
            ctypes.c_uint64(_MASK),
            _AT_FDCWD,
            os.fsencode(path),
        ),
    )


def _unmark(fd: int) -> None:
    _checked(
        "fanotify_mark",
        _libc.fanotify_mark(
            fd, ctypes.c_uint(_MARK_FLUSH | _MARK_FILESYSTEM), ctypes.c_uint64(0), _AT_FDCWD, None
        ),
    )


def parsed(data: bytes, own: int) -> tuple[int, list[Event], bool]:
    """How many there are, those that name a file and are not this process's, and whether some were lost."""
    found, lost, count, at, end = list[Event](), False, 0, 0, len(data)
    event, info = _EVENT.unpack_from, _INFO.unpack_from
    while at + 24 <= end:
        length, version, _, head, mask, _, pid = event(data, at)
        count += 1
        if length < 24 or version != _VERSION:
            return count, found, True  # nothing after it can be read
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


def key_of(fd: int) -> bytes | None:
    """The file that is open here (O_PATH is enough), as events name it; None if its file system cannot say."""
    handle, mount = _Handle(_HANDLE_BYTES), ctypes.c_int()
    for flags in (
        _AT_EMPTY_PATH | _AT_HANDLE_FID,
        _AT_EMPTY_PATH,
    ):  # before Linux 6.5 only the second is known
        if _libc.name_to_handle_at(fd, b"", ctypes.byref(handle), ctypes.byref(mount), flags) == 0:
            size: int = handle.bytes
            data = bytes(handle.data[:size]) + b"\0" * (-size % 4)
            return (
                (os.fstatvfs(fd).f_fsid & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
                + struct.pack("=Ii", size, handle.kind)
                + data
            )
        handle.bytes = _HANDLE_BYTES
    return None


def opened(mount: int, key: bytes) -> int:
    """A descriptor of that file, for looking only; `mount`: any that is open on its file system. Root's only. OSError if it is gone, or its file system cannot find files so."""
    size, kind = struct.unpack_from("=Ii", key, 8)
    handle = _Handle(size, kind)
    handle.data[:size] = key[16 : 16 + size]
    return _checked(
        "open_by_handle_at",
        _libc.open_by_handle_at(
            mount, ctypes.byref(handle), os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
        ),
    )


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


class Mount(NamedTuple):
    device: str
    point: str  # as its namespace names it
    kind: str
    source: str


def writable(lines: Iterable[str]) -> list[Mount]:
    """The file systems of a mount table that somebody may write and whose changes are made on this machine, with each place where they are: one may lie below another."""
    found = list[Mount]()
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(more) < 3:
            continue
        device, point, options = fields[2], fields[4], fields[5]
        if (
            more[0] in LOCAL
            and "rw" in options.split(",")
            and "rw" in more[2].rstrip().split(",")
            and len(found) < MOUNTS_MAX
        ):
            found.append(Mount(device, _plain(point), more[0], more[1]))
    return found


def device_number(device: str) -> int:
    """As the kernel writes it among the marks."""
    major, _, minor = device.partition(":")
    return int(major) << 20 | int(minor)


def device_name(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"


def _plain(field: str) -> str:
    """Blanks, tabs, newlines and backslashes are written as octal numbers there."""
    parts = field.split("\\")
    return parts[0] + "".join(
        chr(int(part[:3], 8)) + part[3:] if part[:3].isdigit() and len(part) >= 3 else "\\" + part
        for part in parts[1:]
    )
