"""Reads how much a checkpoint will store beside the private memory of processes: each thing once.

Processes share memory and open files, so that sums over processes would count them many times.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.core.checkpoint.preflight import HeldFile, Process
from holdfast.host.processes.process import read_proc

_DELETED: Final = " (deleted)"
_MEMFD: Final = "/memfd:"
_ANONYMOUS: Final = ("/dev/zero", _MEMFD)  # and deleted files: memory that processes share
_BLOCK_BYTES: Final = 512
_SMAPS_BYTES: Final = 4 << 20


def held(root: int, found: Iterable[Process], memory: Iterable[str]) -> tuple[HeldFile, ...]:
    """Shared memory, deleted files, files open for writing, and memory file systems, once each.

    `memory`: where the session has memory file systems. A thing that cannot be read is left out.
    """
    places, devices = list[HeldFile](), set[int]()
    for place in memory:
        with contextlib.suppress(OSError):
            path = f"/proc/{root}/root{place}"
            devices.add(os.stat(path).st_dev)
            disk = os.statvfs(path)
            places.append(HeldFile(place, (disk.f_blocks - disk.f_bfree) * disk.f_frsize))
    opened, mapped = dict[tuple[int, int], HeldFile](), list[HeldFile]()
    for one in found:
        for known, file in _opened(one, devices):
            opened.setdefault(known, file)
    inodes = {inode for _, inode in opened}
    for one in found:
        if size := sum(pss for inode, pss in _shared(one.pid) if inode not in inodes):
            mapped.append(HeldFile("shared memory", size))
    return (*places, *opened.values(), *mapped)


def _opened(one: Process, devices: set[int]) -> Iterator[tuple[tuple[int, int], HeldFile]]:
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{one.pid}/fd"):
            path = f"/proc/{one.pid}/fd/{number}"
            with contextlib.suppress(OSError):
                target, written = os.readlink(path), os.lstat(path).st_mode & stat.S_IWUSR
                gone = target.endswith(_DELETED)
                if target[:1] != "/" or not (gone or written):
                    continue
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                memfd = target.startswith(_MEMFD)
                size = status.st_blocks * _BLOCK_BYTES if gone else status.st_size
                file = HeldFile(
                    target.removesuffix(_DELETED),
                    0 if status.st_dev in devices else size,  # counted with its file system
                    f"{one.name} ({one.pid})",
                    size if gone and not memfd else 0,
                    not gone,
                )
                yield (status.st_dev, status.st_ino), file


def _shared(pid: int) -> Iterator[tuple[int, int]]:
    """Inode, and this process's part, of memory that processes share."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if not any(_is_shared(line.split()) for line in _lines(pid, "maps")):
            return
        inode = 0
        for line in _lines(pid, "smaps"):
            fields = line.split()
            if not fields[0].endswith(":"):
                inode = int(fields[4]) if _is_shared(fields) else 0
            elif inode and fields[0] == "Pss:":
                yield inode, int(fields[1]) << 10


def _is_shared(fields: list[str]) -> bool:
    if len(fields) < 6 or not fields[1].endswith("s"):
        return False
    return fields[5].startswith(_ANONYMOUS) or fields[-1] == _DELETED.strip()


def _lines(pid: int, name: str) -> list[str]:
    return read_proc(f"/proc/{pid}/{name}", _SMAPS_BYTES).decode("utf-8", "replace").splitlines()
