"""Compares this machine with the one that made a checkpoint, before anything starts."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.core.checkpoint import processor
from holdfast.host.processes.process import read_stat
from holdfast.host.runtime import criu
from holdfast.model.errors import Impossible
from holdfast.wire import protobuf_fields as pb
from holdfast.wire.checkpointing import Criu
from holdfast.wire.spawning import (
    HF_ROOT_NAME,
    MOUNT_DEVICE,
    MOUNT_FIXED,
    MOUNT_READ,
    MOUNT_WRITE,
    Containment,
)

_LENGTH: Final = struct.Struct("<I")
_MAGIC_BYTES: Final = 8
_REGULAR: Final = 3  # of file_entry: a file with a name
_ID, _NAME, _SIZE, _MODE = 1, 6, 8, 10  # of reg_file_entry
_ORIGINAL: Final = 1  # of remap_file_path_entry: the file that was deleted
_BINDS: Final = (MOUNT_READ, MOUNT_WRITE, MOUNT_DEVICE, MOUNT_FIXED)
_LEFT_OUT: Final = (MOUNT_READ, MOUNT_DEVICE)
_KERNEL: Final = ("/proc/", "/sys/")
_HF_ROOT: Final = HF_ROOT_NAME.decode()
_NUMBERS: Final = (1, 3, 4, 5)  # of pstree_entry: process, group, kernel session, threads
GONE_S: Final = 5.0  # for the processes of the last incarnation to be gone
LOOK_S: Final = 0.02
_REGULAR_MODE: Final = 0o100000
_KIND_MODE: Final = 0o170000


def facts(tool: Criu, boot: str) -> dict[str, str]:
    """The facts about this machine that a manifest keeps."""
    return {
        "boot": boot,
        "kernel": os.uname().release,
        "processor": os.uname().machine,
        "features": " ".join(_features()),
        "criu": tool.version,
    }


@cache
def _features() -> tuple[str, ...]:
    return tuple(processor.features(Path("/proc/cpuinfo").read_text()))


@cache
def _kernel_says(tool: Criu) -> str:
    return criu.check(tool, ordinary=os.geteuid() != 0)


def obstacle(made: Mapping[str, str], tool: Criu) -> str:
    """Why programs of the other machine cannot be restored here; empty if they can."""
    here = os.uname()
    if made.get("processor") != here.machine:
        return f"it was made on {made.get('processor')}; this machine is {here.machine}"
    if lacking := processor.missing(made.get("features", ""), [*_features()]):
        return processor.explain(lacking)
    if made.get("kernel") != here.release and (said := _kernel_says(tool)):
        return f"this kernel ({here.release}) cannot restore programs: {said}"
    return ""


class OpenFile(NamedTuple):
    """A regular file that programs have open or mapped, by its path inside."""

    path: str
    size: int


def open_files(images: Path) -> list[OpenFile]:
    """The files with a name; files that were deleted while they were open are left out."""
    remapped = _entries(images / "remap-fpath.img")
    deleted = {pb.number_of(one, _ORIGINAL) for one in remapped}
    found = list[OpenFile]()
    for entry in _entries(images / "files.img"):
        one = pb.decode(pb.bytes_of(entry, _REGULAR))
        mode = pb.number_of(one, _MODE) & _KIND_MODE
        if mode == _REGULAR_MODE and pb.number_of(one, _ID) not in deleted:
            path = os.fsdecode(pb.bytes_of(one, _NAME))
            found.append(OpenFile(path, pb.number_of(one, _SIZE)))
    return found


def still_there(containment: Containment) -> Containment:
    """Without the places that were only read and have been removed or replaced by a link.

    A program that uses a file there cannot be restored (`check_files`). Guards (MOUNT_FIXED) stay:
    without one, the session could write there.
    """
    mounts = (
        one for one in containment.mounts if one.kind not in _LEFT_OUT or _in_place(one.source)
    )
    return containment._replace(mounts=tuple(mounts))


def _in_place(source: bytes) -> bool:
    """Whether the keeper, which follows no link, finds it."""
    return os.path.realpath(source) == os.path.normpath(source) and os.path.exists(source)


def check_files(images: Path, containment: Containment | None, written: tuple[str, ...]) -> None:
    """Impossible, with the name, if a file has changed that programs hold or were started from.

    `written`: files that get their saved content back.
    """
    for path, size in open_files(images):
        outside = _outside(path, containment)
        if not outside or path in written:
            continue
        try:
            now = os.stat(outside).st_size
        except OSError as e:
            raise _changed(f"{path} is missing ({e.strerror})") from e
        if now != size:
            raise _changed(f"{path} has changed since the checkpoint ({size} bytes, now {now})")


def _changed(what: str) -> Impossible:
    return Impossible(
        f"{what}, and running programs cannot be given another one",
        "put the file back, for example by installing the former version",
    )


def _outside(path: str, containment: Containment | None) -> str:
    """The path on this machine of a path inside; empty if it is not a file of the machine."""
    if containment is None:  # the nursery makes hf-root's file if it is missing
        return "" if path.startswith(_KERNEL) or os.path.basename(path) == _HF_ROOT else path
    best, kind, source = "", 0, ""
    for mount in containment.mounts:
        target = os.fsdecode(mount.target)
        if (path == target or path.startswith(f"{target}/")) and len(target) >= len(best):
            best, kind, source = target, mount.kind, os.fsdecode(mount.source)
    return source + path[len(best) :] if kind in _BINDS else ""


def check_numbers(images: Path) -> None:
    """Impossible, with the name, if a process has the number of a process of a plain session.

    The processes of the last incarnation may take a moment to be gone.
    """
    wanted = _numbers(images)
    until = time.monotonic() + GONE_S
    while taken := _takers(wanted):
        if time.monotonic() > until:
            number, name = min(taken.items())
            raise Impossible(
                f"process {number} ({name}) has the number of a process of the session",
                "end that process, then restore the session again",
            )
        time.sleep(LOOK_S)


def _numbers(images: Path) -> set[int]:
    """The numbers of the processes, threads, groups and kernel sessions in the images."""
    found = set[int]()
    for one in _entries(images / "pstree.img"):
        for number, _, value in one:
            if number in _NUMBERS:
                found |= {value} if isinstance(value, int) else {*pb.varints(value)}
    return found - {0}


def _takers(wanted: set[int]) -> dict[int, str]:
    """Processes of the machine that have one of these numbers, or are in a group that has."""
    taken = {n: one.comm for n in wanted if (one := read_stat(n)) is not None}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := read_stat(int(name))) is not None:
            taken |= dict.fromkeys({one.pgrp, one.session} & wanted, one.comm)
    return taken


def _entries(path: Path) -> Iterator[list[pb.Field]]:
    """The entries of an image; none if the file is missing or of an unknown form."""
    try:
        data = path.read_bytes()
        at = _MAGIC_BYTES
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            yield pb.decode(data[at : at + length])
            at += length
    except (OSError, ValueError, IndexError, struct.error):
        return
