"""What the kernel says about a session's processes: who lives, who is whose child, what listens, what waits.

Owns the reading of /proc. It decides nothing (`core/attention.py` does), remembers nothing (each call looks
again: a session is described from the kernel, never from the last answer), and never raises because a
process vanished while it was being looked at: processes do that.

The tree is walked by `/proc/PID/task/TID/children`, from a root that is a subreaper, so that a daemon which
forked twice is the root's own child. The file may miss children of a process whose other children exit
during the read, and an orphan may move up to the root (or to an init in between) after that one's list was
read. So the lists of all parents are read once more at the end; when they name somebody new, or a process
vanished or died under the walk, the walk is done again, and what is still alive of all passes is the
answer. A scan of all of /proc by
parent costs 25 times as much (34 ms against 1.3 ms for 1000 processes) and misses the same moves; it is
used where the kernel has no `children` file. psutil was measured at 5 to 10 times the cost of reading
directly.

Sockets are read from /proc/PID/net of a member of each network namespace involved, since /proc/net is the
reader's own. The inode joins a socket to the descriptors that hold it. A member whose descriptors are
closed to us (another user's, after sudo) is in `unreadable`: for it "does not listen" would be a guess.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.core import graph
from holdfast.core.attention import Attention, TaskFact, TerminalFacts, TtyWait, classify
from holdfast.host.process import (
    Liveness,
    Process,
    ProcessId,
    Stat,
    alive,
    boot_id,
    half,
    identify,
    liveness,
    parse_stat,
    process,
    read_short,
    read_stat,
)
from holdfast.host.sockets import Table, table
from holdfast.host.ttywait import blocked_on_tty, tty_rdev_of

__all__ = [
    "TICKS",
    "Liveness",
    "Process",
    "ProcessId",
    "Socket",
    "Stat",
    "TerminalMode",
    "alive",
    "attention",
    "blocked_on_tty",
    "boot_id",
    "descendants",
    "foreground",
    "group",
    "identify",
    "listening",
    "liveness",
    "parse_stat",
    "port_listening",
    "process",
    "terminal_facts",
    "terminal_mode",
    "terminal_rdev",
    "tty_rdev_of",
    "unreadable",
]

WALK_PASSES_MAX = 4  # walks of a tree that keeps changing; the last one stands
PROCESSES_MAX = 65_536  # of one session that are looked at
SERVERS_LOOKED_AT_MAX = (
    64  # processes outside the terminal's session that may serve it (a tmux server)
)

TICKS = os.sysconf("SC_CLK_TCK")  # of the kernel's start times, in a second

_UNIX98_SLAVE_MAJOR = 136
_TIOCGPTN = 0x80045430


# --- the tree -----------------------------------------------------------------------------------------------


def descendants(root_pid: int, with_argv: bool = True) -> list[Process]:
    """Every process below `root_pid` (itself left out), parents before their children; zombies included."""
    found: dict[int, Process] = {}
    for _ in range(WALK_PASSES_MAX):
        seen, calm = _walk(root_pid, with_argv, known=found)
        for (
            pid,
            known,
        ) in found.items():  # what this pass missed stays if it is still the same process
            again = process(pid, with_argv) if pid not in seen else None
            if again is not None and again.start == known.start:
                seen[pid] = again
        found = seen
        if calm:
            break
    return list(found.values())


def _walk(
    root_pid: int, with_argv: bool, known: dict[int, Process]
) -> tuple[dict[int, Process], bool]:
    """One pass, and whether nothing moved during it that the pass could have missed."""
    seen: dict[int, Process] = {}
    calm = True
    children_of = _children_reader()
    parents: list[int] = []
    todo = [root_pid]
    listed = {root_pid}
    for pid in todo:  # grows while it is walked: breadth first
        children = children_of(
            pid
        )  # before the stat: who lives after it had not lost its children yet
        if pid != root_pid:
            one = process(pid, with_argv)
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
    """`_children`, or one scan of all of /proc where the kernel has no such file."""
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
        except OSError:  # a thread ended; its children are another thread's now
            continue
    return found


def _all_by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := read_stat(int(name))) is not None:
            found.setdefault(one.ppid, []).append(one.pid)
    return found


# --- sockets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Socket:
    """A listening socket and a process that holds it. Of a unix socket `address` is the path, `port` None."""

    pid: int
    proto: str  # "tcp", "tcp6", "unix"
    address: str
    port: int | None


def listening(pids: Iterable[int]) -> list[Socket]:
    """The listening sockets that these processes hold, in every network namespace they live in."""
    tables: dict[str, Table] = {}
    found: list[Socket] = []
    for pid in pids:
        inodes = _socket_inodes(pid)
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
    return Socket(
        pid,
        one.kind,
        one.local.rpartition(":")[0].strip("[]") if one.port is not None else one.local,
        one.port,
    )


def port_listening(root_pid: int, port: int) -> Socket | None:
    """The TCP socket on `port` of a process below `root_pid`. None is "not seen": compare `unreadable`."""
    pids = [one.pid for one in descendants(root_pid, with_argv=False)]
    return next((one for one in listening(pids) if one.port == port), None)


def unreadable(pids: Iterable[int]) -> list[int]:
    """Those that live and whose descriptors are closed to us: what they listen on or wait for is unknown."""
    closed = []
    for pid in pids:
        try:
            os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            closed.append(pid)
        except OSError:
            continue
    return closed


def _socket_inodes(pid: int) -> set[int]:
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


# --- the terminal -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TerminalMode:
    icanon: bool | None
    echo: bool | None
    fg_pgrp: int | None


def terminal_mode(fd: int) -> TerminalMode:
    """Mode and foreground group by either end of the terminal; the master needs no controlling terminal."""
    try:
        local = termios.tcgetattr(fd)[3]
        icanon, echo = bool(local & termios.ICANON), bool(local & termios.ECHO)
    except (OSError, termios.error):
        return TerminalMode(None, None, None)
    try:
        return TerminalMode(icanon, echo, os.tcgetpgrp(fd) or None)
    except OSError:
        return TerminalMode(icanon, echo, None)


def terminal_rdev(master_fd: int) -> int:
    """The device number of the slave end."""
    number = struct.unpack("I", fcntl.ioctl(master_fd, _TIOCGPTN, b"\0" * 4))[0]
    return os.makedev(_UNIX98_SLAVE_MAJOR, number)


def foreground(root_pid: int, fg_pgrp: int) -> list[Process]:
    """What runs in the foreground process group below `root_pid`, its leader first."""
    return group(descendants(root_pid), fg_pgrp)


def group(processes: Iterable[Process], pgrp: int) -> list[Process]:
    return sorted((one for one in processes if one.pgrp == pgrp), key=lambda one: one.pid != pgrp)


def terminal_facts(
    mode: TerminalMode,
    tty_rdev: int,
    root_pid: int,
    shell_pid: int | None,
    shell_at_prompt: bool | None,
    everyone: list[Process] | None = None,
) -> TerminalFacts:
    """What `classify` wants. `shell_pid` leads its own session and group; None: no shell in charge. `everyone`: who is below `root_pid`, if that was just read."""
    tasks: list[TaskFact] = []
    if mode.fg_pgrp is not None:
        everyone = descendants(root_pid, with_argv=False) if everyone is None else everyone
        front = group(everyone, mode.fg_pgrp)
        tasks = [TaskFact(one.pid, one.comm, blocked_on_tty(one.pid, tty_rdev)) for one in front]
        if not mode.icanon and front and not any(task.wait in _WAITS for task in tasks):
            outside = [one for one in everyone if one.session != front[0].session][
                :SERVERS_LOOKED_AT_MAX
            ]
            served = [
                TaskFact(one.pid, one.comm, blocked_on_tty(one.pid, tty_rdev)) for one in outside
            ]
            tasks += [task for task in served if task.wait in _WAITS]
    return TerminalFacts(
        icanon=mode.icanon,
        echo=mode.echo,
        fg_pgrp=mode.fg_pgrp,
        shell_pgrp=shell_pid,
        shell_at_prompt=shell_at_prompt,
        fg_tasks=tuple(tasks),
    )


_WAITS = (TtyWait.READ, TtyWait.POLL, TtyWait.POLL_ANY)


def attention(
    master_fd: int, root_pid: int, shell_pid: int | None, shell_at_prompt: bool | None
) -> Attention:
    """One look: what the terminal waits for now, and why.

    `shell_at_prompt` must reflect the output up to this moment: a prompt mark still unread makes a prompt
    look like a program that asks for input.
    """
    mode = terminal_mode(master_fd)
    return classify(
        terminal_facts(mode, terminal_rdev(master_fd), root_pid, shell_pid, shell_at_prompt)
    )
