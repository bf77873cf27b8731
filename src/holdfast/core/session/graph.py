"""The live tuple of a session as a value (S2): processes, files, pipes, sockets and the terminal.

This module owns the types and the queries; `host/processes/graph.py` collects the facts. A graph
describes one moment and keeps no earlier state. A comparison of two graphs (`changes`)
therefore compares two answers of the kernel.

A graph lists the unobservable parts. `unreadable` are processes whose descriptors are closed to
us (of another account, after sudo). For these, "holds no such file" or "does not listen" would be a
guess. `cut` counts the entries of each kind that were left out because the graph was full.

A process is identified by (pid, start), because pids are reused. A descriptor is identified by
(pid, fd) together with its target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from holdfast.core.originators.lineage import Lineage

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting",
    "I": "idle",
    "T": "stopped",  # by a signal; FROZEN: by the kernel's freezer
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "x": "dead",
}
FROZEN = "frozen"  # by a halt; the kernel calls such a process sleeping
LISTS = ("processes", "sockets", "pipes", "files")  # in order of importance
CUT_BYTES = 1024  # reserved for the counts of omitted entries
Kind = Literal["file", "directory", "device", "fifo", "terminal", "other"]
Facts = dict[str, Any]  # JSON


class Process(NamedTuple):
    pid: int
    ppid: int
    start: int  # ticks since boot; identifies the process together with the pid
    started: float  # the start as a wall-clock time
    argv: tuple[str, ...]  # empty: a zombie, or closed to us
    comm: str
    state: str
    cwd: str | None
    exe: str | None
    uid: int
    pgrp: int
    sid: int
    on_terminal: bool  # the controlling terminal is the session's
    threads: int
    cpu_s: float
    memory: int  # resident bytes
    inside: int | None = None  # the pid as programs in a contained session see it


class Lock(NamedTuple):
    kind: str  # "posix", "flock", "ofd", "lease"
    write: bool
    start: int
    end: int | None  # None: to the end of the file


class File(NamedTuple):
    pid: int
    fd: int
    path: str
    kind: Kind
    mode: str  # "r", "w", "rw", and "a" for append-only
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
    kind: str  # "tcp", "tcp6", "udp", "udp6", "unix", "raw", "raw6", or "other" (another family)
    local: str
    remote: str
    state: str  # "listen", "established", ...; "" if the kind has no state
    port: int | None = None
    unsent: int = 0  # bytes that the peer has not acknowledged
    unread: int = 0
    inode: int = 0


class Terminal(NamedTuple):
    cols: int
    rows: int
    mode: str  # "line", "raw"
    echo: bool
    foreground: int | None  # process group
    command: str  # of the foreground group
    waiting: str  # idle, working, input, secret, unknown
    why: str


@dataclass(frozen=True, slots=True)
class Graph:
    at: float
    members: str  # how membership is determined: "cgroup" or "tree"
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()
    pipes: tuple[Pipe, ...] = ()
    sockets: tuple[Socket, ...] = ()
    terminal: Terminal | None = None
    unreadable: tuple[int, ...] = ()
    cut: dict[str, int] = field(default_factory=dict)


# ------------------------------------------------------------ questions


def subtree(
    processes: Iterable[Process], tops: Mapping[int, int], started_by: Callable[[int], int | None]
) -> list[Process]:
    """Return these processes (pid -> start) and all processes below them, parents first.

    A process is below its starter, even after an adoption. A
    pid may have been reused: the kernel's parent is the present process with that pid, but the
    starter is the process that had the pid at that time.
    """
    now = {one.pid: one for one in processes}
    below: dict[tuple[int, int], list[Process]] = {}
    for one in now.values():
        parents = {
            (above.pid, above.start)
            for above in (now.get(one.ppid),)
            if above is not None and above.start <= one.start
        }
        if (pid := started_by(one.pid)) is not None:
            had = [
                start
                for start in {
                    tops.get(pid, one.start + 1),
                    now[pid].start if pid in now else one.start + 1,
                }
                if start <= one.start
            ]
            parents |= {(pid, max(had))} if had else set()
        for parent in parents:
            below.setdefault(parent, []).append(one)
    found = [one for one in now.values() if tops.get(one.pid) == one.start]
    seen = {one.pid for one in found}
    for top in tops.items():  # tops that have exited
        if top[0] not in seen:
            found += [child for child in below.get(top, ()) if child.pid not in seen]
            seen.update(child.pid for child in found)
    for one in found:
        for child in below.get((one.pid, one.start), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
    return found


# ------------------------------------------------------------ JSON


def as_json(graph: Graph, lineage: Lineage, ref: str) -> Facts:
    """Return the JSON of `holdfast graph`: keys are added, never renamed.

    `ref` is the reference to the session, from which references to acts are made.
    """
    return {
        "time": graph.at,
        "members": graph.members,
        "processes": [_process(one, lineage, ref) for one in graph.processes],
        "files": [_file(one) for one in graph.files],
        "pipes": [
            {
                "id": p.id,
                "writers": [e._asdict() for e in p.writers],
                "readers": [e._asdict() for e in p.readers],
            }
            for p in graph.pipes
        ],
        "sockets": [one._asdict() for one in graph.sockets],
        "terminal": None if graph.terminal is None else _terminal(graph.terminal),
        "unreadable": list(graph.unreadable),
        "cut": graph.cut,
    }


def fitted(facts: Facts, most: int) -> Facts:
    """Limit the result of `as_json` to this many bytes of JSON; `cut` counts omitted entries.

    Processes come first, their open files last.
    """
    cut = dict(facts["cut"])
    left = (
        most - _bytes({key: value for key, value in facts.items() if key not in LISTS}) - CUT_BYTES
    )
    kept: Facts = {}
    for key in LISTS:
        items, fits = facts[key], 0
        for one in items:
            if (left := left - _bytes(one) - 1) < 0:
                break
            fits += 1
        kept[key] = items[:fits]
        if fits < len(items):
            cut[key] = cut.get(key, 0) + len(items) - fits
    return facts | kept | {"cut": cut}


def _bytes(value: object) -> int:
    return len(
        json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
    )


def _process(one: Process, lineage: Lineage, ref: str) -> Facts:
    cause = lineage.of(one.pid)
    return one._asdict() | {
        "argv": list(one.argv),
        "started": round(one.started, 2),
        "cpu_s": round(one.cpu_s, 2),
        "actor": cause.actor,
        "act": cause.ref(ref),
        "originators": list(lineage.originators(cause)),
        "started_by": lineage.parent_of(one.pid),
    }


def _file(one: File) -> Facts:
    return one._asdict() | {"locks": [lock._asdict() for lock in one.locks]}


def _terminal(one: Terminal) -> Facts:
    return {
        "size": {"cols": one.cols, "rows": one.rows},
        "mode": one.mode,
        "echo": one.echo,
        "foreground": {"pgrp": one.foreground, "command": one.command},
        "waiting": {"for": one.waiting, "why": one.why},
    }
