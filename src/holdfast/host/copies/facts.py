"""Reads what decides whether saved processes can go on at a machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.core.checkpoint.copies import NEEDS_MAX, Machine, Need, within
from holdfast.host.lifecycle.contained.plan import account_home
from holdfast.host.processes import proc_scan
from holdfast.host.processes.process import read_proc
from holdfast.host.runtime import criu
from holdfast.model.errors import Impossible

_PIECE_BYTES: Final = 1 << 20
_KNOWN_MAX: Final = 20_000
_DELETED: Final = " (deleted)"
# By path: size, time of change and hash of a file that was read before.
_known: dict[str, tuple[int, int, str]] = {}


def machine(environment: Mapping[str, str], wanted_criu: str) -> Machine:
    system = os.uname()
    tool = ""
    with contextlib.suppress(Impossible):
        tool = criu.find(wanted_criu).version
    return Machine(
        system.machine,
        _flags(),
        system.release,
        os.geteuid(),
        os.getegid(),
        account_home(environment),
        tool,
    )


def _flags() -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return tuple(sorted(line.partition(":")[2].split()))
    return ()


def needs(keeper: int, travels: Iterable[str]) -> tuple[Need, ...]:
    """The files that the session's processes use and that do not travel with it."""
    own = tuple(travels)
    paths = {
        path
        for one in proc_scan.of_session(keeper)
        if not _is_init(one.pid)
        for path in _used(one.pid)
        if not any(within(path, top) for top in own)
    }
    found = list[Need]()
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.stat(path).st_mode):
                size, sha = hashed(path)
                found.append(Need(path, size, sha))
    if len(found) > NEEDS_MAX:
        raise Impossible(f"the processes use more than {NEEDS_MAX} files of the system")
    return tuple(found)


def _is_init(pid: int) -> bool:
    """Whether it is the session's process 1, which every machine makes itself."""
    with contextlib.suppress(OSError):
        for line in read_proc(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == "1"
    return False


def _used(pid: int) -> set[str]:
    found = set[str]()
    with contextlib.suppress(OSError):
        for line in read_proc(f"/proc/{pid}/maps").decode("utf-8", "surrogateescape").splitlines():
            path = line.split(maxsplit=5)[5:]
            found.update(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {
        path
        for path in found
        if path.startswith("/") and not path.endswith(_DELETED) and not within(path, "/dev")
    }


def changed(needed: Iterable[Need]) -> tuple[str, ...]:
    """What is missing or different here, in sentences."""
    found = list[str]()
    for one in needed:
        try:
            status = os.stat(one.path)
            if not stat.S_ISREG(status.st_mode):
                found.append(f"{one.path} is no file here")
                continue
            if status.st_size == one.size and hashed(one.path) == (one.size, one.sha256):
                continue
            found.append(f"{one.path} is another version here")
        except OSError:
            found.append(f"{one.path} is missing here")
    return tuple(found)


def hashed(path: str) -> tuple[int, str]:
    """Size and SHA-256 of a file; of an unchanged one from memory."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        before = _known.get(path)
        if before is not None and before[:2] == (status.st_size, status.st_ctime_ns):
            return before[0], before[2]
        digest, size = hashlib.sha256(), 0
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[path] = status.st_size, status.st_ctime_ns, digest.hexdigest()
    return size, digest.hexdigest()
