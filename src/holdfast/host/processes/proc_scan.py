"""Reads the processes of a session from /proc: the tree, listening sockets, terminal waits.

This module decides nothing (`core/session/attention.py` does) and stores nothing: each call reads
the kernel again. It never raises because a process vanished during the read: processes do that.

The walk of the tree uses `/proc/PID/task/TID/children`. The root is a subreaper, so a daemon that
forked twice is a child of the root. The file may miss children of a process if other children exit
during the read. An orphan may also move up to the root, or to an init in between, after that list
was read. So the lists of all parents are read again at the end. If a list names a new process, or a
process vanished or died during the walk, the walk is repeated. The answer is every process of all
passes that is still alive.

A scan of all of /proc by parent costs 25 times as much (34 ms against 1.3 ms for 1000 processes)
and misses the same moves. It is used where the kernel has no `children` file. psutil was measured
at 5 to 10 times the cost of reading directly.

Sockets are read from /proc/PID/net of a member of each network namespace, since /proc/net is the
reader's own. The inode joins a socket to the descriptors that hold the socket. A member may have
descriptors that are closed to us (of a different user, after sudo). That member is in `unreadable`:
for that member, "does not listen" would be a guess.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.core.session import graph
from holdfast.core.session.attention import TaskFact, TerminalFacts, TtyWait
from holdfast.host.processes.process import Stat, half, read_short, read_stat
from holdfast.host.processes.sockets import Table, table
from holdfast.host.processes.tty_wait import blocked_on_tty
from holdfast.wire.spawning import HF_ROOT_NAME

WALK_PASSES_MAX = 4  # walks of a tree that keeps changing; the last walk counts
PROCESSES_MAX = 65_536  # read per session
# Processes outside the terminal's session that may serve the terminal (a tmux server).
SERVERS_LOOKED_AT_MAX = 64

_HF_ROOT = HF_ROOT_NAME.decode()
TICKS = os.sysconf("SC_CLK_TCK")  # of the kernel's start times, in a second


# --- the tree -------------------------------------------------------------------------------------


def of_session(keeper_pid: int) -> list[Stat]:
    """Every process of a session, parents first; zombies included.

    A child that stayed in the keeper's kernel session belongs to the keeper: the connector of a
    contained session's network (keeper/network.py). No program of a session can get there. hf-root
    of a plain session is left out too.
    """
    return [
        one
        for one in descendants(keeper_pid)
        if one.session != keeper_pid and not is_hf_root(one, keeper_pid)
    ]


def hf_root(keeper_pid: int) -> int:
    """hf-root of a plain session of root (keeper/plain.py); 0 if there is none."""
    children = map(read_stat, _children_reader()(keeper_pid))
    return next((one.pid for one in children if one and is_hf_root(one, keeper_pid)), 0)


def is_hf_root(one: Stat, keeper_pid: int) -> bool:
    """Only root can pass for it, and root can reach the host in any case."""
    if one.ppid != keeper_pid or one.comm != _HF_ROOT or os.geteuid():
        return False
    try:
        return not os.stat(f"/proc/{one.pid}").st_uid
    except OSError:
        return False


def descendants(root_pid: int) -> list[Stat]:
    """Every process below `root_pid` (without the root), parents first; zombies included."""
    found: dict[int, Stat] = {}
    for _ in range(WALK_PASSES_MAX):
        seen, calm = _walk(root_pid, known=found)
        # A process that this pass missed stays, if it is still the same process.
        for pid, known in found.items():
            again = read_stat(pid) if pid not in seen else None
            if again is not None and again.start == known.start:
                seen[pid] = again
        found = seen
        if calm:
            break
    return list(found.values())


def _walk(root_pid: int, known: dict[int, Stat]) -> tuple[dict[int, Stat], bool]:
    """A pass, and whether no process moved that the pass could have missed."""
    seen: dict[int, Stat] = {}
    calm = True
    children_of = _children_reader()
    parents: list[int] = []
    todo = [root_pid]
    listed = {root_pid}
    for pid in todo:  # the list grows during the loop: breadth first
        # Before the stat: a process that is alive after this read had not lost its children.
        children = children_of(pid)
        if pid != root_pid:
            one = read_stat(pid)
            if one is None:
                calm = False
                continue
            seen[pid] = one
            if one.state == "Z" and not (pid in known and known[pid].state == "Z"):
                calm = False
        if children:
            parents.append(pid)
            fresh = [child for child in children if child not in listed]
            todo += fresh[: max(PROCESSES_MAX - len(todo), 0)]
            listed.update(fresh)
    moved = any(child not in listed for pid in parents for child in children_of(pid))
    return seen, calm and not moved


def _children_reader() -> Callable[[int], list[int]]:
    """`_children`, or one scan of all of /proc where the kernel has no `children` file."""
    if os.path.exists("/proc/thread-self/children"):
        return _children
    by_parent = _all_by_parent()
    return lambda pid: by_parent.get(pid, [])


def _children(pid: int) -> list[int]:
    """Empty when the process is gone."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for tid in tids:
        try:
            found += map(int, read_short(f"/proc/{pid}/task/{tid}/children").split())
        except OSError:  # the thread ended; its children moved to a different thread
            continue
    return found


def _all_by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := read_stat(int(name))) is not None:
            found.setdefault(one.ppid, []).append(one.pid)
    return found


# --- sockets --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Socket:
    """A listening socket and a process that holds the socket.

    Of a unix socket, `address` is the path and `port` None.
    """

    pid: int
    proto: str  # "tcp", "tcp6", "unix"
    address: str
    port: int | None


def listening(pids: Iterable[int]) -> list[Socket]:
    """The listening sockets of these processes, in all their network namespaces."""
    tables: dict[str, Table] = {}
    found: list[Socket] = []
    for pid in pids:
        inodes = socket_inodes(pid)
        if not inodes:
            continue
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            namespace = f"pid {pid}"
        if namespace not in tables:
            tables[namespace] = {
                inode: one for inode, one in table(pid).items() if one.state == "listen"
            }
        found += [
            _listener(pid, tables[namespace][inode])
            for inode in sorted(inodes & tables[namespace].keys())
        ]
    return found


def _listener(pid: int, one: graph.Socket) -> Socket:
    address = one.local.rpartition(":")[0].strip("[]") if one.port is not None else one.local
    return Socket(pid, one.kind, address, one.port)


def unreadable(pids: Iterable[int]) -> list[int]:
    """Living processes with descriptors closed to us: their sockets and waits are unknown."""
    closed = []
    for pid in pids:
        try:
            os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            closed.append(pid)
        except OSError:
            continue
    return closed


def socket_inodes(pid: int) -> set[int]:
    inodes = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd") if not half(pid) else ():
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(int(link[8:-1]))
    except OSError:
        pass
    return inodes


# --- the terminal ---------------------------------------------------------------------------------


_WAITS = (TtyWait.READ, TtyWait.POLL, TtyWait.POLL_ANY)


@dataclass(frozen=True, slots=True)
class TerminalMode:
    icanon: bool
    echo: bool
    fg_pgrp: int | None


def group(processes: Iterable[Stat], pgrp: int) -> list[Stat]:
    """The processes of a process group, the leader first."""
    return sorted((one for one in processes if one.pgrp == pgrp), key=lambda one: one.pid != pgrp)


def terminal_facts(
    mode: TerminalMode,
    tty_rdev: int,
    shell_pid: int | None,
    shell_at_prompt: bool | None,
    everyone: list[Stat],
) -> TerminalFacts:
    """The input of `classify`. `everyone`: the processes of the session, as just read.

    `shell_pid` leads its own session and group; None: no shell in charge. `shell_at_prompt` must
    reflect the output up to this moment: an unread prompt mark makes a prompt look like a program
    that asks for input.
    """

    def tasks_of(processes: list[Stat]) -> list[TaskFact]:
        return [TaskFact(p.pid, p.comm, blocked_on_tty(p.pid, tty_rdev)) for p in processes]

    tasks: list[TaskFact] = []
    if mode.fg_pgrp is not None:
        front = group(everyone, mode.fg_pgrp)
        tasks = tasks_of(front)
        if not mode.icanon and front and not any(task.wait in _WAITS for task in tasks):
            outside = [one for one in everyone if one.session != front[0].session]
            served = tasks_of(outside[:SERVERS_LOOKED_AT_MAX])
            tasks += [task for task in served if task.wait in _WAITS]
    return TerminalFacts(
        icanon=mode.icanon,
        echo=mode.echo,
        fg_pgrp=mode.fg_pgrp,
        shell_pgrp=shell_pid,
        shell_at_prompt=shell_at_prompt,
        fg_tasks=tuple(tasks),
    )
