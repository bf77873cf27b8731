"""The TCP connections that the processes of a session hold now. Runs in a thread.

A socket may be held by several processes. The first one counts, parents before children.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from holdfast.core.originators.lineage import Cause
from holdfast.core.session.connections import LIVE, Connection, inner
from holdfast.host.processes import sockets
from holdfast.host.processes.process import read_stat

FDS_EACH = 4096  # descriptors read per process


def sockets_of(pids: Iterable[int]) -> dict[int, int]:
    """The inodes of the TCP sockets that the processes hold, each with its first holder."""
    found = dict[int, int]()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd")[:FDS_EACH]:
                with contextlib.suppress(OSError):
                    target = os.readlink(path := f"/proc/{pid}/fd/{name}")
                    if target.startswith("socket:[") and _may_be_tcp(path):
                        found.setdefault(int(target[8:-1]), pid)
    return found


def _may_be_tcp(path: str) -> bool:
    """False spares the kernel's table: to read it takes 10 to 50 ms on a machine with much memory.

    A kernel that does not name the protocol leaves it open.
    """
    try:
        return b"TCP" in os.getxattr(path, "system.sockprotoname")
    except OSError:
        return True


def of_session(
    root: int,
    pids: Iterable[int],
    own_network: bool,
    cause_of: Callable[[int], Cause],
    ref: str,
) -> tuple[Connection, ...]:
    """`root`: the first process; its network namespace counts. `ref`: of the session."""
    holders = sockets_of(pids)
    if not holders:
        return ()
    found = [
        (holders[inode], one)
        for inode, one in sockets.table(root).items()
        if inode in holders and one.kind in ("tcp", "tcp6") and one.state in LIVE
    ]
    both = inner((one.local, one.remote) for _, one in found) if own_network else set()
    made = list[Connection]()
    for pid, one in found:
        cause, stat = cause_of(pid), read_stat(pid)
        made.append(
            Connection(
                one.kind,
                one.local,
                one.remote,
                pid,
                stat.comm if stat is not None else "",
                cause.actor,
                cause.ref(ref),
                one.unsent,
                (one.local, one.remote) in both,
            )
        )
    return tuple(made)
