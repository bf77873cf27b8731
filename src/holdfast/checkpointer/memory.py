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
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
    entry.uid, entry.gid = status.st_uid, status.st_gid
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
            _add(archive, path, {})
            carried.append(path)
    return carried, left_out


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
        changed = list[tuple[str, tarfile.TarInfo, IO[bytes]]]()
        with tarfile.open(fileobj=replaced, mode="w", format=tarfile.PAX_FORMAT) as kept:
            for entry in archive:
                path, saved = f"/{entry.name}", archive.extractfile(entry)
                if saved is not None and not _same(path, saved):
                    changed.append((path, entry, saved))
                    if os.path.lexists(path):
                        _add(kept, path, {})
        replaced.flush()
        os.fsync(replaced.fileno())
        try:
            for path, entry, saved in changed:
                if not os.path.lexists(path):
                    made.append(path)
                saved.seek(0)
                _fill(path, entry, saved)
        except BaseException:
            take_back(replaced, made)
            raise
    return made


def _fill(path: str, entry: tarfile.TarInfo, content: IO[bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, entry.mode)
    with open(fd, "wb") as out:
        if os.getuid() == 0:
            os.fchown(out.fileno(), entry.uid, entry.gid)
        with contextlib.suppress(PermissionError):  # CRIU compares it
            os.fchmod(out.fileno(), entry.mode)
        while piece := content.read(_PIECE_BYTES):
            out.write(piece)
        out.flush()
        os.fsync(fd)


def take_back(replaced: BinaryIO, made: list[str]) -> None:
    """Undo `put_back`, after a restore that failed; `replaced` is empty then."""
    replaced.seek(0)
    with tarfile.open(fileobj=replaced, mode="r") as archive:
        for entry in archive:
            if entry.isreg() and (content := archive.extractfile(entry)) is not None:
                _fill(f"/{entry.name}", entry, content)
    for path in made:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    replaced.truncate(0)


def _same(path: str, saved: IO[bytes]) -> bool:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as now:
            while True:
                piece = now.read(_PIECE_BYTES)
                if piece != saved.read(_PIECE_BYTES):
                    return False
                if not piece:
                    return True
    except OSError:
        return False
