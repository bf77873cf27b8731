"""Files that CRIU does not save: files of memory file systems, and files open for writing.

A memory file system ends with the session's mount namespace, so all its files are carried. A file
that a program has open for writing may change after the checkpoint, while the program's memory is
of the moment of the checkpoint. So it is copied while the processes stand still, and a restore puts
the copy back. The content that it replaces is kept in an archive.

Archives are written and read inside the session's tree, without libraries of the tree: names of
users would load some.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO

_PIECE_BYTES = 1 << 20
_KERNEL = ("/proc/", "/sys/")  # to write such a file is an order to the kernel


def pack(directories: Iterable[str], file: BinaryIO) -> None:
    """Write all files below the directories; CRIU saves sockets and deleted files itself."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for top in directories:
            known: dict[int, str] = {}
            for above, folders, names in os.walk(top):
                for path in (above, *(os.path.join(above, n) for n in (*folders, *names))):
                    if path == above and above != top:
                        continue  # written with its parent's entries
                    _add(archive, path, known)


def _add(archive: tarfile.TarFile, path: str, known: dict[int, str]) -> None:
    status = os.lstat(path)
    entry = _entry(path, status)
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISFIFO(status.st_mode):
        entry.type = tarfile.FIFOTYPE
    elif not stat.S_ISREG(status.st_mode):
        return
    elif status.st_ino in known:
        entry.type, entry.linkname = tarfile.LNKTYPE, known[status.st_ino]
    else:
        known[status.st_ino], entry.size = entry.name, status.st_size
        with open(path, "rb") as content:
            return archive.addfile(entry, content)
    return archive.addfile(entry)


def _entry(path: str, status: os.stat_result) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
    entry.uid, entry.gid = status.st_uid, status.st_gid
    return entry


def unpack(file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="r") as archive:
        archive.extraction_filter = staticmethod(lambda member, path: member)
        archive.extractall("/", numeric_owner=True)


# ---------------------------------------------------------------- files open for writing


def pack_written(
    file: BinaryIO, spared: Iterable[str], most: int, pids: Iterable[int]
) -> tuple[list[str], list[str]]:
    """Write the files that processes have open for writing; return them, and those too large.

    `spared`: directories whose files are carried already. `most`: bytes in all.
    """
    carried, left_out = list[str](), list[str]()
    covered = tuple(f"{directory}/" for directory in spared)
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, size in sorted(_open_for_writing(pids).items()):
            if path.startswith(covered):
                continue
            if size > most:
                left_out.append(path)
                continue
            most -= size
            _keep(archive, path)
            carried.append(path)
    return carried, left_out


def _keep(archive: tarfile.TarFile, path: str) -> None:
    with open(_opened(path, os.O_RDONLY), "rb") as content:
        status = os.fstat(content.fileno())
        entry = _entry(path, status)
        entry.size = status.st_size
        archive.addfile(entry, content)


def _opened(path: str, flags: int, mode: int = 0) -> int:
    """Open a regular file at the path that /proc has named, without links and without waiting.

    Another account may have replaced the file, or a directory on the way, since then: by a link to
    a file that only root may write, or by a FIFO.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with _directory(path) as (above, name):
            fd = os.open(name, flags, mode, dir_fd=above)
    except OSError as e:
        e.filename = path
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


@contextlib.contextmanager
def _directory(path: str) -> Iterator[tuple[int, str]]:
    """Open the directory of a path, following no link; yields it and the last name."""
    *folders, name = path.lstrip("/").split("/")
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open("/", flags)
    try:
        for folder in folders:
            above, at = at, os.open(folder, flags, dir_fd=at)
            os.close(above)
        yield at, name
    finally:
        os.close(at)


def _open_for_writing(pids: Iterable[int]) -> dict[str, int]:
    """Regular files with a name, and their sizes."""
    found = dict[str, int]()
    for pid in pids:
        for path in _writable(f"/proc/{pid}"):
            try:
                status = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                found[path] = status.st_size
    return found


def _writable(process: str) -> Iterator[str]:
    try:
        numbers = os.listdir(f"{process}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            with open(f"{process}/fdinfo/{number}") as f:
                flags = next(int(line.split()[1], 8) for line in f if line.startswith("flags:"))
            path = os.readlink(f"{process}/fd/{number}")
            if flags & os.O_ACCMODE == os.O_RDONLY or path[:1] != "/" or path.startswith(_KERNEL):
                continue
            there, held = os.stat(path), os.stat(f"{process}/fd/{number}")
        except (OSError, StopIteration):
            continue
        if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
            yield path


def put_back(file: BinaryIO, replaced: BinaryIO) -> list[str]:
    """Give each file its saved content again; return the files that were missing.

    Content that differed is on the disk, in `replaced`, before a file changes. An error changes
    nothing.
    """
    made = list[str]()
    with tarfile.open(fileobj=file, mode="r") as archive:
        try:
            changed = _changed(archive, replaced)
        except BaseException:
            replaced.truncate(0)
            raise
        try:
            for path, entry, saved, missing in changed:
                saved.seek(0)
                if missing:
                    fd = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.mode)
                    made.append(path)
                else:
                    fd = _owned(path, entry)
                _fill(fd, entry, saved)
        except BaseException:
            take_back(replaced, made)
            raise
    return made


def _changed(
    archive: tarfile.TarFile, replaced: BinaryIO
) -> list[tuple[str, tarfile.TarInfo, IO[bytes], bool]]:
    """Return the files that differ, and whether they are missing; keep their present content."""
    changed = list[tuple[str, tarfile.TarInfo, IO[bytes], bool]]()
    with tarfile.open(fileobj=replaced, mode="w", format=tarfile.PAX_FORMAT) as kept:
        for entry in archive:
            path, saved = f"/{entry.name}", archive.extractfile(entry)
            if saved is None or _same(path, saved):
                continue
            missing = False
            try:
                _keep(kept, path)
            except FileNotFoundError:
                missing = True
            changed.append((path, entry, saved, missing))
    replaced.flush()
    os.fsync(replaced.fileno())
    return changed


def _owned(path: str, entry: tarfile.TarInfo) -> int:
    """Open a file for writing, if it has the owner that it had."""
    fd = _opened(path, os.O_WRONLY)
    if os.fstat(fd).st_uid != entry.uid:
        os.close(fd)
        raise PermissionError(errno.EPERM, "the file has another owner now", path)
    return fd


def _fill(fd: int, entry: tarfile.TarInfo, content: IO[bytes]) -> None:
    with open(fd, "wb") as out:
        os.ftruncate(fd, 0)
        if os.getuid() == 0:
            os.fchown(fd, entry.uid, entry.gid)
        with contextlib.suppress(PermissionError):  # CRIU compares it
            os.fchmod(fd, entry.mode)
        while piece := content.read(_PIECE_BYTES):
            out.write(piece)
        out.flush()
        os.fsync(fd)


def take_back(replaced: BinaryIO, made: list[str]) -> None:
    """Undo `put_back`, after a restore that failed; `replaced` is empty then."""
    replaced.seek(0)
    with tarfile.open(fileobj=replaced, mode="r") as archive:
        for entry in archive:
            if (content := archive.extractfile(entry)) is not None:
                _fill(_owned(f"/{entry.name}", entry), entry, content)
    for path in made:
        with contextlib.suppress(FileNotFoundError), _directory(path) as (above, name):
            os.unlink(name, dir_fd=above)
    replaced.truncate(0)


def _same(path: str, saved: IO[bytes]) -> bool:
    try:
        with open(_opened(path, os.O_RDONLY), "rb") as now:
            while True:
                piece = now.read(_PIECE_BYTES)
                if piece != saved.read(_PIECE_BYTES):
                    return False
                if not piece:
                    return True
    except OSError:
        return False
