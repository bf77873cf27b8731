"""Carry the files of a session's memory file systems, which end with its mount namespace.

The archive is written and read inside the session's tree, without libraries of the tree: names of
users would load some.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterable
from typing import BinaryIO


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
