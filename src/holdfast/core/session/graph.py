"""The live tuple of a session as one value (S2), and what can be asked of it.

Owns the types and the questions; how the facts were got is `host/graph.py`. A graph is a look at one moment, never a memory: nothing in it is carried
over from an earlier look, so whoever compares two of them (`changes`) compares two answers of the kernel.

What could not be seen is said: `unreadable` are processes whose descriptors are closed to us (another account's, after sudo); of them "holds no such file" or
"does not listen" would be a guess. `cut` says how many of each kind were left out because there were more than a graph may hold.

Identity of a process is (pid, start): a pid alone is reused. Identity of a descriptor is (pid, fd) together with what it is open on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from holdfast.core.lineage import Lineage

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting",
    "I": "idle",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "x": "dead",
}
LISTS = ("processes", "sockets", "pipes", "files")  # of a graph, by their worth
CUT_BYTES = 1024  # for saying what was left out
Kind = Literal["file", "directory", "device", "fifo", "terminal", "other"]


class Process(NamedTuple):
    pid: int
    ppid: int
    start: int  # ticks since boot: with the pid, its identity
    started: float  # the same as a time
    argv: tuple[str, ...]  # empty: a zombie, or closed to us
    comm: str
    state: str
    cwd: str | None
    exe: str | None
    uid: int
    pgrp: int
    sid: int
    on_terminal: bool  # its controlling terminal is the session's
    threads: int
    cpu_s: float
    memory: int  # resident bytes
    inside: int | None = None  # its pid as programs in a contained session see it


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
    mode: str  # "r", "w", "rw", and "a" if it only appends
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
    kind: str  # "tcp", "tcp6", "udp", "udp6", "unix", "raw", "raw6", or "other": of another family
    local: str
    remote: str
    state: str  # "listen", "established", ... ; "" where there is none
    port: int | None = None
    unsent: int = 0  # bytes that the other side has not acknowledged
    unread: int = 0
    inode: int = 0


class Terminal(NamedTuple):
    cols: int
    rows: int
    mode: str  # "line", "raw"
    echo: bool
    foreground: int | None  # process group
    command: str  # of it
    waiting: str  # idle, working, input, secret, unknown
    why: str


@dataclass(frozen=True, slots=True)
class Graph:
    at: float
    members: str  # how it is known who belongs: "cgroup", or "tree"
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
    """Those processes (pid -> start) and everything below them, parents first. Below is also what one of them started and what has another parent by now.

    A pid may have been another's: who is a child by the kernel's word is one of who has that pid now; who was started by that pid, of the one that had it then."""
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
    for top in tops.items():  # of those that are gone
        if top[0] not in seen:
            found += [child for child in below.get(top, ()) if child.pid not in seen]
            seen.update(child.pid for child in found)
    for one in found:
        for child in below.get((one.pid, one.start), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
    return found


# ------------------------------------------------------------ as it is told


def told(graph: Graph, lineage: Lineage, ref: str) -> dict[str, Any]:
    """The JSON of `holdfast graph`: keys are added, never renamed. `ref`: of the session, for references to its acts."""
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


def fitted(facts: dict[str, Any], most: int) -> dict[str, Any]:
    """What `told` gave, in at most so many bytes of JSON: of what is left out, `cut` says how many. Processes come first, what they have open last."""
    cut = dict(facts["cut"])
    left = (
        most - _bytes({key: value for key, value in facts.items() if key not in LISTS}) - CUT_BYTES
    )
    kept: dict[str, Any] = {}
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


def _bytes(value: Any) -> int:
    return len(
        json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )
    )


def _process(one: Process, lineage: Lineage, ref: str) -> dict[str, Any]:
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


def _file(one: File) -> dict[str, Any]:
    return one._asdict() | {"locks": [lock._asdict() for lock in one.locks]}


def _terminal(one: Terminal) -> dict[str, Any]:
    return {
        "size": {"cols": one.cols, "rows": one.rows},
        "mode": one.mode,
        "echo": one.echo,
        "foreground": {"pgrp": one.foreground, "command": one.command},
        "waiting": {"for": one.waiting, "why": one.why},
    }
