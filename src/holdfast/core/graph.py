"""The live tuple of a session as one value (S2), and what can be asked of it.

Owns the types and the questions; how the facts were got is `host/graph.py`. A graph is a look at one moment, never a memory: nothing in it is carried
over from an earlier look, so whoever compares two of them (`changes`) compares two answers of the kernel.

What could not be seen is said: `unreadable` are processes whose descriptors are closed to us (another account's, after sudo); of them "holds no such file" or
"does not listen" would be a guess. `cut` says how many of each kind were left out because there were more than a graph may hold.

Identity of a process is (pid, start): a pid alone is reused. Identity of a descriptor is (pid, fd) together with what it is open on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from holdfast.core.lineage import Lineage

STATES = {"R": "running", "S": "sleeping", "D": "waiting", "I": "idle", "T": "stopped", "t": "traced", "Z": "zombie", "X": "dead", "x": "dead"}
Kind = Literal["file", "directory", "device", "fifo", "terminal", "other"]


class Process(NamedTuple):
    pid: int
    ppid: int
    start: int                     # ticks since boot: with the pid, its identity
    started: float                 # the same as a time
    argv: tuple[str, ...]          # empty: a zombie, or closed to us
    comm: str
    state: str
    cwd: str | None
    exe: str | None
    uid: int
    pgrp: int
    sid: int
    on_terminal: bool              # its controlling terminal is the session's
    threads: int
    cpu_s: float
    memory: int                    # resident bytes
    inside: int | None = None      # its pid as programs in a contained session see it


class Lock(NamedTuple):
    kind: str                      # "posix", "flock", "ofd", "lease"
    write: bool
    start: int
    end: int | None                # None: to the end of the file


class File(NamedTuple):
    pid: int
    fd: int
    path: str
    kind: Kind
    mode: str                      # "r", "w", "rw", and "a" if it only appends
    offset: int
    deleted: bool = False
    locks: tuple[Lock, ...] = ()


class End(NamedTuple):
    pid: int
    fd: int


class Pipe(NamedTuple):
    id: int
    writers: tuple[End, ...]
    readers: tuple[End, ...]


class Socket(NamedTuple):
    pid: int
    fd: int
    kind: str                      # "tcp", "tcp6", "udp", "udp6", "unix", "raw", "raw6", or "other": of another family
    local: str
    remote: str
    state: str                     # "listen", "established", ... ; "" where there is none
    port: int | None = None
    unsent: int = 0                # bytes that the other side has not acknowledged
    unread: int = 0
    inode: int = 0


class Terminal(NamedTuple):
    cols: int
    rows: int
    mode: str                      # "line", "raw"
    echo: bool
    foreground: int | None         # process group
    command: str                   # of it
    waiting: str                   # idle, working, input, secret, unknown
    why: str


@dataclass(frozen=True, slots=True)
class Graph:
    at: float
    members: str                   # how it is known who belongs: "cgroup", or "tree"
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()
    pipes: tuple[Pipe, ...] = ()
    sockets: tuple[Socket, ...] = ()
    terminal: Terminal | None = None
    unreadable: tuple[int, ...] = ()
    cut: dict[str, int] = field(default_factory=dict)


# ------------------------------------------------------------ questions

def subtree(processes: Iterable[Process], tops: Collection[int], started_by: Callable[[int], int | None]) -> list[Process]:
    """Those processes and everything below them, parents first. Below is also what one of them started and what has another parent by now."""
    below: dict[int, list[Process]] = {}
    found: list[Process] = []
    for one in processes:
        for parent in {one.ppid, started_by(one.pid)}:
            if parent is not None:
                below.setdefault(parent, []).append(one)
        if one.pid in tops:
            found.append(one)
    found += [child for top in tops if top not in {p.pid for p in found} for child in below.get(top, ()) if child.pid not in tops]       # of one that is gone
    seen = {one.pid for one in found}
    for one in found:
        for child in below.get(one.pid, ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
    return found


# ------------------------------------------------------------ as it is told

def told(graph: Graph, lineage: Lineage, ref: str) -> dict[str, Any]:
    """The JSON of `holdfast graph`: keys are added, never renamed. `ref`: of the session, for references to its acts."""
    return {
        "time": graph.at, "members": graph.members,
        "processes": [_process(one, lineage, ref) for one in graph.processes],
        "files": [_file(one) for one in graph.files],
        "pipes": [{"id": p.id, "writers": [e._asdict() for e in p.writers], "readers": [e._asdict() for e in p.readers]} for p in graph.pipes],
        "sockets": [one._asdict() for one in graph.sockets],
        "terminal": None if graph.terminal is None else _terminal(graph.terminal),
        "unreadable": list(graph.unreadable), "cut": graph.cut,
    }


def _process(one: Process, lineage: Lineage, ref: str) -> dict[str, Any]:
    cause = lineage.of(one.pid)
    return one._asdict() | {
        "argv": list(one.argv), "started": round(one.started, 2), "cpu_s": round(one.cpu_s, 2), "actor": cause.actor,
        "act": None if cause.act is None else f"{ref}#{cause.act}", "originators": [*cause.others, "unknown"], "started_by": lineage.parent_of(one.pid)}


def _file(one: File) -> dict[str, Any]:
    return one._asdict() | {"locks": [lock._asdict() for lock in one.locks]}


def _terminal(one: Terminal) -> dict[str, Any]:
    return {"size": {"cols": one.cols, "rows": one.rows}, "mode": one.mode, "echo": one.echo,
            "foreground": {"pgrp": one.foreground, "command": one.command}, "waiting": {"for": one.waiting, "why": one.why}}
