"""The files that a task sees: mounts, root directory and user namespace.

A path means a program of the system only for a task that sees the session's own files. A program
may make a user namespace, and in it a mount namespace or another root directory, and put any file
at the path `/usr/bin/git`. In a user namespace of its own it may also tell the kernel to run
another program for every file of a kind (binfmt_misc), without other mounts.

The mounts of a contained session are named by a descriptor that its keeper opened before the
session's first program. A plain session has the mounts and the root of its keeper. The root of a
contained session is that of its first process, at the time when the gate begins: before that
process executes a program, or when a new host takes over.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from holdfast.host.processes import stat_nowait
from holdfast.host.session.session import Session


class FileView(NamedTuple):
    mounts: str  # the mount namespace
    users: str  # the user namespace
    root: tuple[int, int, int]  # device, inode and mount of the root directory


def of_task(pid: int) -> FileView | None:
    """Return what a task sees; None if the host cannot tell."""
    try:
        return FileView(
            os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/ns/user"), _root(pid)
        )
    except (OSError, ValueError):
        return None


def sees(pid: int, own: FileView | None) -> bool:
    """Say whether the task certainly sees these files."""
    return own is not None and of_task(pid) == own


def of_session(session: Session) -> FileView | None:
    """Return what programs of the session see from its beginning; None if that is not known."""
    if session.layout.get("layout") != "contained":
        return of_task(session.keeper_pid)
    first = of_task(session.record.root_pid)
    return first if first is not None and first.mounts in _held(session.keeper_pid) else None


def _root(pid: int) -> tuple[int, int, int]:
    found = stat_nowait.known(f"/proc/{pid}/root")
    fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
        return found.device, found.inode, int(facts["mnt_id"])
    except KeyError as e:
        raise ValueError("the kernel does not tell the mount of a descriptor") from e
    finally:
        os.close(fd)


def _held(keeper: int) -> set[str]:
    """Return the mount namespaces that the keeper has descriptors of."""
    found = set[str]()
    try:
        for name in os.listdir(f"/proc/{keeper}/fd"):
            target = os.readlink(f"/proc/{keeper}/fd/{name}")
            if target.startswith("mnt:["):
                found.add(target)
    except OSError:
        pass
    return found
