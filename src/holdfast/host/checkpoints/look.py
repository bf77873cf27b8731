"""Reads the facts for the preflight, and the namespaces of a session, from /proc.

The namespaces come from the keeper: processes inside could show false namespaces.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from holdfast.core.checkpoint.preflight import Process
from holdfast.core.session.connections import inner
from holdfast.core.session.graph import Socket
from holdfast.host.connections.held import sockets_of
from holdfast.host.processes import proc_scan, sockets
from holdfast.host.processes.process import Stat, read_proc
from holdfast.model.errors import Impossible
from holdfast.wire.checkpointing import DELETED, NAMESPACES, is_deleted_file

# Descriptors of these kinds hinder no checkpoint, so their targets are not kept.
_HARMLESS: Final = (
    *("socket:", "pipe:", "/dev/null", "/dev/pts/", "/dev/tty", "/dev/zero", "/dev/full"),
    *("anon_inode:[eventfd]", "anon_inode:[eventpoll]", "anon_inode:[timerfd]"),
    *("anon_inode:[signalfd]", "anon_inode:[pidfd]", "anon_inode:inotify"),
)
_PIDFD: Final = "anon_inode:[pidfd]"
_SYSV: Final = "/SYSV"
MAPS_BYTES: Final = 1 << 20


def processes(keeper: int, root: int) -> tuple[Process, ...]:
    """The processes that a checkpoint saves: all but init, hf-root of a plain session, zombies."""
    found = [one for one in proc_scan.of_session(keeper) if one.state not in "ZX"]
    top = proc_scan.hf_root(keeper)
    inside = [one for one in found if top or not _is_init(one.pid)]
    top = top or (inside[0].pid if inside else 0)  # hf-root in any case
    around, filters = _namespaces(top), _filters(_status(top))
    return tuple(_process(one, around, filters) for one in inside)


def _filters(status: dict[str, str]) -> int:
    return int(status.get("Seccomp_filters", "1"))


def _process(one: Stat, around: dict[str, str], filters: int) -> Process:
    status = _status(one.pid)
    own = _namespaces(one.pid)
    return Process(
        one.pid,
        status.get("Name", "?"),
        tuple(t for t in targets(one.pid) if t[:1] in "/a" and not t.startswith(_HARMLESS)),
        _tracer(int(status.get("TracerPid", "0"))),
        _filters(status) - filters,
        bool(own) and own != around,
        sum(int(status.get(k, "0 kB").split()[0]) << 10 for k in ("RssAnon", "VmSwap")),
        tuple(sorted(_unlinked(one.pid))),
    )


def _tracer(pid: int) -> int:
    """The tracer of a process; not init, which holds all during a halt."""
    return 0 if pid and _is_init(pid) else pid


def _is_init(pid: int) -> bool:
    return pid_inside(pid) == 1


def pid_inside(pid: int) -> int:
    """The number of a process in its own pid namespace; 0 if it is gone."""
    return int((_status(pid).get("NSpid", "").split() or ["0"])[-1])


def _status(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        lines = read_proc(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()
        return {k: v.strip() for k, _, v in (line.partition(":") for line in lines)}
    return {}


def _namespaces(pid: int) -> dict[str, str]:
    try:
        return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}
    except OSError:
        return {}


def targets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def shared_memory(found: tuple[Process, ...]) -> int:
    """The number of System V segments that the processes have mapped."""
    return len({inode for one in found for inode, path in _mapped(one.pid) if _SYSV in path})


def _unlinked(pid: int) -> set[str]:
    """Deleted files that a process has mapped."""
    return {path.removesuffix(DELETED) for _, path in _mapped(pid) if is_deleted_file(path)}


def _mapped(pid: int) -> Iterator[tuple[str, str]]:
    """Inode and path of the files that a process has mapped."""
    with contextlib.suppress(OSError):
        for line in read_proc(f"/proc/{pid}/maps").decode("utf-8", "replace").splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                yield fields[4], fields[5]


def connections(root: int, found: tuple[Process, ...], own_network: bool) -> tuple[str, ...]:
    """Established TCP connections of the processes that a restored session will not have."""
    if not (holders := sockets_of(one.pid for one in found)):
        return ()
    table = sockets.table(root).items()
    mine = [one for inode, one in table if inode in holders and _established(one)]
    pairs = {(one.local, one.remote) for one in mine}
    lost = pairs - inner(pairs) if own_network else pairs
    return tuple(sorted(f"{local} -> {remote}" for local, remote in lost))


def _established(one: Socket) -> bool:
    return one.kind.startswith("tcp") and one.state == "established"


def held(keeper: int) -> tuple[int, list[int]]:
    """The pid of init, and descriptors of the session's namespaces; the caller closes them.

    A plain session has neither: 0 and none.
    """
    if proc_scan.hf_root(keeper):
        return 0, []
    links = dict[str, str]()
    try:
        for name in os.listdir(f"/proc/{keeper}/fd"):
            with contextlib.suppress(FileNotFoundError):
                link = os.readlink(f"/proc/{keeper}/fd/{name}")
                links["pidfd" if link == _PIDFD else link.partition(":")[0]] = name
        notes = read_proc(f"/proc/{keeper}/fdinfo/{links['pidfd']}").decode()
        init = int(notes.partition("Pid:")[2].split()[0])
        opened = [
            os.open(f"/proc/{keeper}/fd/{links[name]}", os.O_RDONLY | os.O_CLOEXEC)
            for name in NAMESPACES
        ]
    except (OSError, KeyError, ValueError, IndexError) as e:
        raise Impossible(f"the keeper does not show the session's namespaces: {e}") from e
    return init, opened
