"""Copies a directory while programs write to it, and completes the copy while they stand still.

`first` copies everything. `again` looks at every entry once more and copies what has changed since;
it runs while the programs stand still, so it must be quick. `finish` gives directories their modes,
which may forbid writing.

A file counts as changed if the kernel's facts about it differ. Two writes within one tick of the
kernel's clock look alike, so a file that was written just before it was copied is copied again. So
is a file that a program has mapped for writing: such writes leave no trace in time.

Where the file system can, a copy shares its blocks with the original (reflink). Owners are copied
by root only. Extended attributes of users and access control lists are copied where the file system
has them. Sockets and devices are not copied.

A directory may have become a link since it was copied, and its copy too. So entries of the copy are
reached from its top without following a link, like those of the source.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
import weakref
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from holdfast.core.branch.attributes import OVERLAY, Attributes
from holdfast.host.branches import attributes
from holdfast.host.branches.walk import Found, walk
from holdfast.host.lifecycle.contained.disk import below
from holdfast.model.errors import Impossible

_FICLONE: Final = 0x40049409
_TICK_NS: Final = 20_000_000  # above a tick of any kernel: 10 ms
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNABLE: Final = (errno.EACCES, errno.EPERM)
_GONE: Final = (FileNotFoundError, NotADirectoryError)  # also: a link is where a directory was


class Size(NamedTuple):
    """Of a directory with everything below."""

    bytes: int
    entries: int


def measure(top: str, bytes_max: int, entries_max: int) -> Size:
    """The size; stops counting beyond the bounds."""
    size = count = 0
    for one in walk(top):
        count, status = count + 1, one.status
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if size > bytes_max or count > entries_max:
            break
    return Size(size, count)


_Facts = tuple[int, int, int, int, int, int, int]


class Snapshot:
    """A copy of `source` in the new directory `target`. `marks`: the source is itself a layer."""

    def __init__(self, source: str, target: str, marks: bool = False) -> None:
        self.source, self.target, self._marks = source, target, marks
        self.unreadable: list[str] = []
        self.lacks: dict[str, str] = {}  # paths whose copies lack attributes, and what they lack
        self.bytes = self.copied_again = 0
        self._facts: dict[str, _Facts] = {}
        self._linked: dict[tuple[int, int], str] = {}  # files with several names
        self._doubtful = set[str]()
        self._attributes: dict[str, Attributes] = {}  # of directories: `finish` writes them
        os.mkdir(target, 0o700)
        self._top = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._top)

    @property
    def entries(self) -> int:
        return len(self._facts)

    def first(self) -> None:
        for one in walk(self.source):
            self._note(one)
            self._take(one)

    def _note(self, one: Found) -> None:
        """Entries that are made in a directory would inherit its access control list."""
        if stat.S_ISDIR(one.status.st_mode):
            self._attributes[one.path] = attributes.read(one.place)

    def again(self, mapped: Container[int]) -> None:
        """`mapped`: inodes of files that programs have mapped for writing."""
        seen = set[str]()
        for one in walk(self.source):
            path, status = one.path, one.status
            seen.add(path)
            self._note(one)
            if (
                self._facts.get(path) == _facts(status)
                and path not in self._doubtful
                and status.st_ino not in mapped
            ):
                continue
            if not (stat.S_ISDIR(status.st_mode) and os.path.isdir(f"{self.target}/{path}")):
                self.copied_again += 1
            self._take(one)
        for path in sorted(self._facts.keys() - seen, reverse=True):
            self._remove(path)
            self.lacks.pop(path, None)
            del self._facts[path]

    def finish(self) -> None:
        """Give the directories their modes, the deepest first."""
        for path in sorted(self._facts, reverse=True):
            mode = self._facts[path][0]
            if stat.S_ISDIR(mode):
                with contextlib.suppress(*_GONE), self._place(path) as target:
                    if (found := self._attributes.get(path)) and not os.path.islink(target):
                        self._lacking(path, attributes.write(target, found))
                    self._describe(target, self._facts[path])
        self._lacking("", describe(self.source, self.target))

    # ------------------------------------------------------------ one entry

    @contextlib.contextmanager
    def _place(self, path: str) -> Iterator[str]:
        """A path to an entry of the copy that leads through no link."""
        above, _, name = path.rpartition("/")
        at = below(self._top, above)
        try:
            yield f"/proc/self/fd/{at}/{name}"
        finally:
            os.close(at)

    def _take(self, one: Found) -> None:
        path, status = one.path, one.status
        self._facts[path] = facts = _facts(status)
        if status.st_ctime_ns > time.time_ns() - _TICK_NS:
            self._doubtful.add(path)
        try:
            with self._place(path) as target:
                self._copy(one, facts, target)
        except _GONE:
            self._facts.pop(path, None)  # removed meanwhile; `again` sees what there is then
        except OSError as e:
            if e.errno in _UNABLE:
                self._facts.pop(path, None)
                self.unreadable.append(f"{self.source}/{path}")
            elif e.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Impossible("the disk is full", "free disk space") from e
            else:
                raise

    def _copy(self, one: Found, facts: _Facts, target: str) -> None:
        path, status = one.path, one.status
        kind = stat.S_IFMT(status.st_mode)
        there = _lstat(target)
        if there is not None and stat.S_IFMT(there.st_mode) != kind:
            self._remove(path)
            there = None
        if kind == stat.S_IFDIR:
            if there is None:
                os.mkdir(target, 0o700)
            self._copy_marks(one, target)
            return
        if kind == stat.S_IFREG:
            self._copy_file(one, target, there is not None)
        elif kind == stat.S_IFLNK:
            if there is not None:
                os.unlink(target)
            os.symlink(os.readlink(one.name, dir_fd=one.at), target)
        elif kind == stat.S_IFIFO:
            if there is None:
                os.mkfifo(target, 0o600)
        elif self._marks and kind == stat.S_IFCHR and status.st_rdev == 0:
            if there is None:
                os.mknod(target, stat.S_IFCHR, 0)
            return
        else:
            self._facts.pop(path, None)
            return
        self._describe(target, facts)

    def _copy_file(self, one: Found, target: str, exists: bool) -> None:
        if one.status.st_nlink > 1:
            key = one.status.st_dev, one.status.st_ino
            first = self._linked.setdefault(key, one.path)
            if first != one.path and self._link(first, target, exists):
                return
        with open(one.open(), "rb", buffering=0) as content:
            if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
                raise FileNotFoundError(one.path)  # replaced meanwhile
            if exists:
                os.chmod(target, 0o600)
            how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(target, how, 0o600), "wb", buffering=0) as copy:
                self.bytes += copy_content(content.fileno(), copy.fileno())
                self._lacking(one.path, attributes.copy(one.place, copy.fileno()))

    def _lacking(self, path: str, what: str) -> None:
        self.lacks.pop(path, None)
        if what:
            self.lacks[path] = what

    def _link(self, first: str, target: str, exists: bool) -> bool:
        """Give an entry of the copy a second name; False if it is gone."""
        with contextlib.suppress(*_GONE), self._place(first) as place:
            if os.path.lexists(place):
                if exists:
                    os.unlink(target)
                os.link(place, target, follow_symlinks=False)
                return True
        return False

    def _copy_marks(self, one: Found, target: str) -> None:
        place = os.open(one.name, _DIRECTORY, dir_fd=one.at)
        try:
            self._marks_of(place, target)
        finally:
            os.close(place)

    def _marks_of(self, source: int, target: str) -> None:
        """Copy the marks of overlayfs, if the source is a layer."""
        with contextlib.suppress(OSError):
            for name in os.listxattr(source) if self._marks else ():
                if name.startswith(OVERLAY):
                    os.setxattr(target, name, os.getxattr(source, name), follow_symlinks=False)

    def _describe(self, target: str, facts: _Facts) -> None:
        mode, uid, gid, _, mtime, _, _ = facts
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IFMT(os.lstat(target).st_mode) != stat.S_IFMT(mode):
                return
            if os.geteuid() == 0:
                os.chown(target, uid, gid, follow_symlinks=False)
            if not stat.S_ISLNK(mode):
                os.chmod(target, stat.S_IMODE(mode))
            os.utime(target, ns=(mtime, mtime), follow_symlinks=False)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(*_GONE), self._place(path) as target:
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)


def _facts(status: os.stat_result) -> _Facts:
    directory = stat.S_ISDIR(status.st_mode)
    return (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        0 if directory else status.st_size,
        status.st_mtime_ns,
        0 if directory else status.st_ctime_ns,
        status.st_ino,
    )


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def describe(source: str, target: str) -> str:
    """Give a directory mode, owner, attributes and time of another; return what it lacks."""
    status = os.stat(source)
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    lacks = attributes.copy(source, target)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
    return lacks


def copy_content(source: int, target: int) -> int:
    """Copy a file; return the bytes that were really copied. Holes stay holes."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, _FICLONE, source)
        return 0
    size, at, copied = os.fstat(source).st_size, 0, 0
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, begin, os.SEEK_HOLE)
        except OSError as e:
            if e.errno == errno.ENXIO:
                break  # the rest is a hole
            raise
        os.lseek(source, begin, os.SEEK_SET)
        os.lseek(target, begin, os.SEEK_SET)
        while begin < end:
            count = os.sendfile(target, source, begin, end - begin)
            if not count:
                break
            begin += count
            copied += count
        at = end
    if os.fstat(target).st_size < size:
        os.ftruncate(target, size)
    return copied
