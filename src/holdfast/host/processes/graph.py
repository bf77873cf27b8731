"""Reads the graph of a session from /proc, without stored state and without asking any program.

Every file of /proc costs some microseconds. So the code opens each file once, and reads it with a
single call where that is enough. Call this in a thread: a thousand processes take a tenth of a
second, which is too long for the host's loop.

The members are the processes of the session's cgroup, if there is a cgroup: a daemon that forked
twice is still in the cgroup. Otherwise the members are the tree below the keeper. The keeper is a
subreaper, so a daemon is then a child of the keeper, or of the session's init.

- A process or file that vanishes during the read counts as absent. A process of a different
  account, closed to us, is listed and named as unreadable.
- A descriptor's direction, offset and locks come from fdinfo. Sockets are joined to /proc/PID/net
  by inode; that table is read once for each network namespace.
- A path that ends in " (deleted)" may be a real name, so the link count of the file decides.
- The code queries no file system: people look at the graph just when a file system hangs.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.session.graph import (
    FROZEN,
    STATES,
    End,
    File,
    Graph,
    Kind,
    Lock,
    Pipe,
    Process,
    Socket,
)
from holdfast.host.processes import proc_scan
from holdfast.host.processes.process import read_argv, read_short, read_stat, stat_line
from holdfast.host.processes.sockets import Table, table
from holdfast.host.processes.stat_nowait import known
from holdfast.host.processes.tty_wait import tty_rdev_of

if TYPE_CHECKING:
    from holdfast.host.processes.cgroups import Groups
    from holdfast.host.processes.interfaces import SessionProcesses

PROCESSES_MAX = 4096  # in a graph
DESCRIPTORS_MAX = 32_768
DESCRIPTORS_EACH = 4096  # read per process
ARGV_CHARS_MAX = 1024  # of a process's arguments in a graph
LOCKS_EACH = 64  # per descriptor

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOCK_KINDS = {b"POSIX": "posix", b"FLOCK": "flock", b"OFDLCK": "ofd", b"LEASE": "lease"}
_ACCESS = ("r", "w", "rw", "rw")


def of_session(
    groups: Groups,
    session: SessionProcesses,
    files: bool = True,
    most: int = PROCESSES_MAX,
    words: bool = True,
) -> Graph:
    group = groups.find(session.id, session.record.root_pid)
    found = look(
        session.keeper_pid,
        session.record.root_pid,
        (lambda: groups.pids(group)) if group else None,
        session.layout["layout"] == "contained",
        files,
        most,
        words,
    )
    frozen = groups.frozen_pids(group) if group else set[int]()
    if not frozen:
        return found
    shown = (p._replace(state=FROZEN) if p.pid in frozen else p for p in found.processes)
    return replace(found, processes=tuple(shown))


def members(groups: Groups, session: SessionProcesses) -> list[int]:
    """The pids of the session's processes."""
    group = groups.find(session.id, session.record.root_pid)
    inside = groups.pids(group) - {proc_scan.hf_root(session.keeper_pid)} if group else set()
    found = {one.pid for one in proc_scan.of_session(session.keeper_pid)}
    return sorted(inside | found)[:PROCESSES_MAX]


def look(
    keeper: int,
    root: int,
    inside: Callable[[], set[int]] | None = None,
    contained: bool = False,
    files: bool = True,
    most: int = PROCESSES_MAX,
    words: bool = True,
) -> Graph:
    """Reads the graph.

    `keeper`: pid of the keeper; `root`: the session's first process; `inside`: pids of the
    session's cgroup. Without `files`, the graph has only processes, at most `most`. Without
    `words`, the graph has no command lines, and no program can delay the read.
    """
    at = time.time()
    pids = inside() - {proc_scan.hf_root(keeper)} if inside is not None else set()
    pids |= {one.pid for one in proc_scan.of_session(keeper)}
    chosen = sorted(pids)[:most]
    cut = {"processes": len(pids) - len(chosen)} if len(pids) > len(chosen) else {}
    boot = _boot_time()
    terminal = tty_rdev_of(first.tty_nr) if (first := read_stat(root)) is not None else 0
    processes = [
        one
        for pid in chosen
        if (one := _process(pid, boot, terminal, contained, words)) is not None
    ]
    members = "cgroup" if inside is not None else "tree"
    if not files:
        return Graph(at, members, tuple(processes), cut=cut)
    return _descriptors(Graph(at, members, tuple(processes), cut=cut))


# ------------------------------------------------------------ processes


def _process(pid: int, boot: float, terminal: int, contained: bool, words: bool) -> Process | None:
    top = f"/proc/{pid}"
    try:
        data = stat_line(pid)
        head, _, rest = data.rpartition(b")")
        field = rest.split()
        start = int(field[19])
        uid = os.stat(top).st_uid
    except (OSError, ValueError, IndexError, KeyError):
        return None
    secret = _link if start else _nothing
    tty = int(field[4])
    return Process(
        pid=pid,
        ppid=int(field[1]),
        start=start,
        started=boot + start / _TICKS,
        argv=_short(read_argv(pid)) if words else (),
        comm=head.partition(b"(")[2].decode("utf-8", "replace"),
        state=STATES.get(field[0].decode(), "unknown"),
        cwd=secret(f"{top}/cwd"),
        exe=secret(f"{top}/exe"),
        uid=uid,
        pgrp=int(field[2]),
        sid=int(field[3]),
        on_terminal=tty != 0 and tty_rdev_of(tty) == terminal,
        threads=int(field[17]),
        cpu_s=(int(field[11]) + int(field[12])) / _TICKS,
        memory=int(field[21]) * _PAGE,
        inside=_pid_inside(top) if contained else None,
    )


def _short(argv: tuple[str, ...]) -> tuple[str, ...]:
    if sum(map(len, argv)) <= ARGV_CHARS_MAX:
        return argv
    left, kept = ARGV_CHARS_MAX, list[str]()
    for word in argv:
        if left <= 0:
            break
        kept.append(word[:left])
        left -= len(word)
    return (*kept, "...")


def _pid_inside(top: str) -> int | None:
    try:
        for line in read_short(f"{top}/status").splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return None


def _boot_time() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


# ------------------------------------------------------------ descriptors


def _descriptors(graph: Graph) -> Graph:
    files: list[File] = []
    sockets: list[Socket] = []
    writers: dict[int, list[End]] = {}
    readers: dict[int, list[End]] = {}
    unreadable: list[int] = []
    tables: dict[str, Table] = {}
    left, cut = DESCRIPTORS_MAX, 0
    for one in graph.processes:
        if one.state == "zombie" or not one.start:
            continue
        try:
            names = os.listdir(f"/proc/{one.pid}/fd")
        except PermissionError:
            unreadable.append(one.pid)
            continue
        except OSError:
            continue
        take = min(left, DESCRIPTORS_EACH)
        cut += max(0, len(names) - take)
        left -= min(len(names), take)
        for fd, target in _open(one.pid, names[:take]):
            if target.startswith("socket:["):
                inode = int(target[8:-1])
                known = _table(one.pid, tables).get(inode)
                sockets.append(
                    Socket(one.pid, fd, "other", "", "", "", inode=inode)
                    if known is None
                    else known._replace(pid=one.pid, fd=fd)
                )
            elif target.startswith("pipe:["):
                bits = _access(one.pid, fd)
                if bits & stat.S_IWUSR:
                    writers.setdefault(int(target[6:-1]), []).append(End(one.pid, fd))
                if bits & stat.S_IRUSR:
                    readers.setdefault(int(target[6:-1]), []).append(End(one.pid, fd))
            elif target.startswith("/"):
                files.append(_file(one.pid, fd, target))
    pipes = tuple(
        Pipe(i, tuple(writers.get(i, ())), tuple(readers.get(i, ())))
        for i in sorted(writers.keys() | readers.keys())
    )
    return Graph(
        graph.at,
        graph.members,
        graph.processes,
        tuple(files),
        pipes,
        tuple(sockets),
        None,
        tuple(unreadable),
        graph.cut | ({"descriptors": cut} if cut else {}),
    )


def _open(pid: int, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    for name in names:
        try:
            yield int(name), os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue


def _access(pid: int, fd: int) -> int:
    """The mode bits of the link, which are the descriptor's; a third of the cost of fdinfo."""
    try:
        return os.lstat(f"/proc/{pid}/fd/{fd}").st_mode
    except OSError:
        return 0


def _table(pid: int, tables: dict[str, Table]) -> Table:
    namespace = _link(f"/proc/{pid}/ns/net") or f"pid {pid}"
    if namespace not in tables:
        tables[namespace] = table(pid)
    return tables[namespace]


def _file(pid: int, fd: int, target: str) -> File:
    mode, offset, directory, locks = _fdinfo(pid, fd)
    kind: Kind = "file"
    deleted = False
    if directory:
        kind = "directory"
    elif target.startswith(("/dev/pts/", "/dev/tty")):
        kind = "terminal"
    else:
        try:
            info = known(f"/proc/{pid}/fd/{fd}")
        except OSError:
            kind = "other"
        else:
            kind = _kind(info.mode)
            deleted = target.endswith(" (deleted)") and info.links == 0
    path = target.removesuffix(" (deleted)") if deleted else target
    return File(pid, fd, path, kind, mode, offset, deleted, locks)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    if stat.S_ISDIR(mode):
        return "directory"
    return "other"


def _fdinfo(pid: int, fd: int) -> tuple[str, int, bool, tuple[Lock, ...]]:
    """The mode, the offset, whether the file is a directory, and the locks of a descriptor."""
    try:
        data = read_short(f"/proc/{pid}/fdinfo/{fd}")
        _, offset, _, flags = data.split(None, 4)[:4]  # pos: N flags: N ...
        bits = int(flags, 8)
    except (OSError, ValueError):
        return "?", 0, False, ()
    locks: list[Lock] = []
    if b"\nlock:" in data:
        locks = [
            lock
            for line in data.splitlines()
            if line.startswith(b"lock:") and (lock := _lock(line)) is not None
        ][:LOCKS_EACH]
    return (
        _ACCESS[bits & os.O_ACCMODE] + ("a" if bits & os.O_APPEND else ""),
        int(offset),
        bool(bits & os.O_DIRECTORY),
        tuple(locks),
    )


def _lock(line: bytes) -> Lock | None:
    """`lock:\t1: POSIX  ADVISORY  WRITE 4711 08:01:1234 0 EOF`"""
    field = line.split()
    try:
        return Lock(
            _LOCK_KINDS.get(field[2], field[2].decode().lower()),
            field[4] == b"WRITE",
            int(field[7]),
            None if field[8] == b"EOF" else int(field[8]),
        )
    except (IndexError, ValueError):
        return None


def _nothing(path: str) -> str | None:
    """Replaces `_link` for a process that must not be read now (`process.half`)."""


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
