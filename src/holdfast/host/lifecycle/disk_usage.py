"""The disk space of a session's own directories, also of those that its programs closed.

Programs of a session can take all permissions from a directory (`chmod 000`). An ordinary user's
host cannot read such a directory, although it belongs to the same account. In a user namespace
that maps this account, a process may (CAP_DAC_READ_SEARCH). A process with threads cannot enter
one, so `main` of this file runs as a program of its own, and only if a directory is closed.

No import of this package: the program starts without site packages.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

STEP_ENTRIES, STEP_S = 500, 0.005  # a walk pauses after so many files
ENTRIES_MAX = 5_000_000
STOP_LOOK_S = 0.5
_PIECE_BYTES = 2048  # the kernel takes paths of less than 4096 bytes
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEWUSER = 0x1000_0000


@dataclass(slots=True)
class Measured:
    """The size of some directories; `closed`: the first one that could not be read."""

    size: int = 0
    closed: str = ""


def measure(paths: Iterable[str], stop: Callable[[], bool] = lambda: False) -> Measured:
    """The disk space of directories: blocks, each inode once, no links followed."""
    tops = [*paths]
    found = _walk(tops, stop)
    if found.closed and os.geteuid() and not stop():
        return _measured_inside(tops, stop) or found
    return found


def _walk(paths: list[str], stop: Callable[[], bool]) -> Measured:
    found, seen, todo, count = Measured(), set[int](), [*paths], 0
    while todo and count < ENTRIES_MAX:
        path = todo.pop()
        try:
            fd = _open(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            found.closed = found.closed or path
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    count += 1
                    if count % STEP_ENTRIES == 0:
                        if stop():
                            return found
                        time.sleep(STEP_S)
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
                        if info.st_ino in seen:
                            continue
                        seen.add(info.st_ino)
                    found.size += info.st_blocks * 512
                    if stat.S_ISDIR(info.st_mode):
                        todo.append(f"{path}/{entry.name}")
        except OSError:
            found.closed = found.closed or path
        finally:
            os.close(fd)
    return found


def _open(path: str) -> int:
    """Open a directory, also below a path that is too long for the kernel."""
    left, at = os.fsencode(path), -1
    try:
        while len(left) > _PIECE_BYTES:
            piece = left[:_PIECE_BYTES].rpartition(b"/")[0]
            left = left[len(piece) + 1 :]
            below = os.open(piece, os.O_PATH | _DIRECTORY, dir_fd=None if at < 0 else at)
            if at >= 0:
                os.close(at)
            at = below
        return os.open(left, os.O_RDONLY | _DIRECTORY, dir_fd=None if at < 0 else at)
    finally:
        if at >= 0:
            os.close(at)


# ---------------------------------------------------------------- in a user namespace


def _measured_inside(paths: list[str], stop: Callable[[], bool]) -> Measured | None:
    """Measure in a program of its own; None if this machine allows no user namespace."""
    try:
        program = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
        )
    except OSError:
        return None
    with program:
        while True:
            try:
                said, _ = program.communicate(timeout=STOP_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if stop():
                    program.kill()
    return Measured(**json.loads(said)) if program.returncode == 0 else None


def main(paths: list[str]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    host = os.getppid()
    print(json.dumps(asdict(_walk(paths, lambda: os.getppid() != host))))


if __name__ == "__main__":
    main(sys.argv[1:])
