"""The values that the API returns about processes, the record and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.sdk.results import Size, Waiting


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a session, with the act and the operator that started it."""

    pid: int
    ppid: int = 0
    argv: tuple[str, ...] = ()
    state: str = ""
    actor: str | None = None
    act: str | None = None
    originators: tuple[str, ...] = ()
    started: float | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock on a file: posix, flock, ofd or lease. `end`: None for the end of the file."""

    kind: str
    write: bool = False
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that a process has open. `mode`: r, w or rw, and a for append-only."""

    pid: int
    fd: int
    path: str
    kind: str = "file"
    mode: str = ""
    offset: int = 0
    deleted: bool = False
    locks: tuple[Lock, ...] = ()


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket of a process. `state`: listen, established …; empty if the kind has no state."""

    pid: int
    fd: int
    kind: str
    local: str = ""
    remote: str = ""
    state: str = ""
    port: int | None = None
    unsent: int = 0
    unread: int = 0


@dataclass(frozen=True, slots=True)
class Foreground:
    """The process group in the foreground of a terminal, and its command."""

    pgrp: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class TerminalState:
    """The terminal of a session. `mode`: line or raw."""

    size: Size | None = None
    mode: str = ""
    echo: bool = False
    foreground: Foreground = Foreground()
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """The processes, files and sockets of a session, from the kernel.

    `unreadable`: processes whose files and sockets are closed to the host. `cut`: the number of
    entries that were left out, by kind. `raw` has every field of the host's answer.
    """

    processes: tuple[Process, ...] = ()
    files: tuple[OpenFile, ...] = ()
    sockets: tuple[Socket, ...] = ()
    terminal: TerminalState | None = None
    unreadable: tuple[int, ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Change:
    """A change in a session's graph.

    `change`: started or exited (a process), listening or closed (a port), blocked or unblocked (the
    session waits for input or a secret), or more (`count` changes came at once and are left out).
    `was`: the process or port was there when the iteration began.
    """

    change: str
    time: float = 0.0
    was: bool = False
    pid: int | None = None
    ppid: int | None = None
    argv: tuple[str, ...] = ()
    comm: str = ""
    started: float | None = None
    actor: str | None = None
    act: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    kind: str = ""
    local: str = ""
    port: int | None = None
    waiting: Waiting | None = None
    command: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a record (docs/reference/record.md). `seq`: its number in the record.

    `content`: the text of the act, if it was stored; `cut`: only its beginning is here.
    """

    seq: int
    time: float
    kind: str
    actor: str
    phase: str = ""
    session: str = ""
    epoch: int | None = None
    modality: str = ""
    device: str | None = None
    key: str | None = None
    client: str | None = None
    first: int | None = None
    number: int | None = None
    act: int | None = None
    originators: tuple[str, ...] = ()
    verdict: str | None = None
    reason: str | None = None
    intent: int | None = None
    outcome: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None
    cut: bool = False
    attestation: str = ""
    signed: bool = False
    late: bool = False
    kept: bool = False
    commit: str | None = None
    hash: str = ""
    prev: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the machine (docs/reference/events.md), with its facts by name.

    `session`: the id; empty for an event of the machine itself.
    """

    number: int
    time: float
    event: str
    session: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
