"""Sessions: make, list, rename, end, and refer to a session."""

from __future__ import annotations

from holdfast.core.contract.checkpoints import LeaseState
from holdfast.core.contract.copies import ArrivedFiles
from holdfast.core.contract.message import (
    ABSENT,
    Absent,
    Json,
    MachineAct,
    SessionAct,
    Size,
    checked,
    message,
)

# ------------------------------------------------------------ a session as replies show it


@message
class Liveness:
    """The state of a session's program, of the host, and of the way from other machines."""

    process: str
    host: str
    relay: str


@message
class Range:
    """Absolute offsets in a session's output."""

    start: int
    end: int


@message
class Attached:
    """A client that is attached to a session."""

    operator: str
    key: str
    modality: str
    observe: bool
    pid: int
    size: Size
    lagging: bool
    client: str | Absent = ABSENT
    device: str | Absent | None = ABSENT


@message
class TurnState:
    """The holder of the turn, and the operators that wait for the turn.

    `seized`: true if the holder keeps the turn until it is released.
    """

    holder: str
    since: float
    idle_s: float
    waiting: tuple[str, ...]
    device: str | Absent | None = ABSENT
    seized: bool | Absent = ABSENT


@message
class StoppedOperator:
    """An operator whose processes are frozen, and whose acts in the session are refused."""

    operator: str
    by: str
    since: float
    how: str
    processes: tuple[int, ...]


@message
class Cost:
    """What a session costs: bytes of memory, swap and disk, processor time, since when, for whom.

    `since` is the begin of this incarnation; `maker` is the operator that made the session.
    """

    memory: int
    swap: int
    cpu_s: float
    disk: int
    since: float
    maker: str


@message
class OnDisk:
    """The checkpoint of a session that is on the disk only.

    `by` is `host` if the host evicted the session, which then comes back with the next attach.
    """

    checkpoint: str
    at: float
    bytes: int
    by: str


@message
class Pinned:
    """The memory of all sessions, and of those that are detached and silent for an hour."""

    sessions: int
    memory: int
    idle: int
    idle_memory: int


@message
class Summary:
    """A session as `ls`, `get` and `new` show a session.

    For an ended session the layout is absent; if the keeper does not answer, most fields are.
    `limits` has, for each limited resource, the value and the way in which it is kept. `ended_by`
    is the operator whose act ended the first program, or `unknown`. `reap` is the choice for the
    reaper, if an operator made one. `lease`: of a re-homable session.
    """

    id: str
    name: str
    machine: str
    state: str
    liveness: Liveness
    epoch: int | None = None
    created: float | None = None
    idle_s: float | None = None
    size: Size | None = None
    operators: tuple[Attached, ...] = ()
    turn: TurnState | None = None
    stopped: tuple[StoppedOperator, ...] | Absent = ABSENT
    output: Range | None = None
    argv: tuple[str, ...] | Absent = ABSENT
    cwd: str | Absent = ABSENT
    pid: int | Absent = ABSENT
    started: int | Absent = ABSENT
    boot: str | Absent = ABSENT
    keeper: int | Absent | None = ABSENT
    shell: str | Absent | None = ABSENT
    layout: str | Absent = ABSENT
    halt: str | Absent = ABSENT
    says: str | Absent = ABSENT
    sees: str | Absent = ABSENT
    gate: str | Absent = ABSENT
    gate_says: str | Absent = ABSENT
    limits: Json | Absent = ABSENT
    lease: LeaseState | Absent = ABSENT
    exit_code: int | None = None
    reason: str | Absent = ABSENT
    ended: float | Absent | None = ABSENT
    survivors: int | Absent = ABSENT
    cost: Cost | Absent = ABSENT
    on_disk: OnDisk | Absent = ABSENT
    arrived: tuple[ArrivedFiles, ...] | Absent = ABSENT
    reap: str | Absent = ABSENT
    ended_by: str | Absent = ABSENT
    ref: str | Absent = ABSENT


# ------------------------------------------------------------ requests and their replies


@message
class New(MachineAct):
    """A program to start in a new session.

    `existing`: give the running session of that name instead, if there is one. `token`: names this
    request, so that a repeat finds the session. `given`: variables that the maker set on purpose.
    `limit`: like `memory=4G,processes=2000`; a request of an agent or service can only lower.
    `share`, `doors`, `net`, `keep_home`, `publish`: of a contained session. `share` has PATH or
    PATH:rw. `publish`: ports inside that the machine's loopback leads to. `clipboard`: programs may
    write to the clipboard of a viewer that allows this (OSC 52). `reap`: what the reaper may do
    with the idle session, `never`, `evict` or `end`.
    """

    name: str | None = None
    argv: tuple[str, ...] = checked("arguments must be text without NUL")
    cwd: str
    env: dict[str, str] = checked("the environment must be NAME=VALUE without NUL")
    size: tuple[int, int] | None = checked("a size is COLSxROWS, each from 2 to 1000", default=None)
    umask: int = 0o077
    existing: bool = False
    agent: str | None = None
    token: str | None = None
    contained: bool | None = None
    given: tuple[str, ...] = checked("what was given is part of the environment", default=())
    gate: str | None = None
    limit: str | Absent = ABSENT
    share: tuple[str, ...] | Absent = ABSENT
    doors: tuple[str, ...] | Absent = ABSENT
    net: str | Absent = ABSENT
    keep_home: bool | Absent = ABSENT
    publish: tuple[int, ...] | Absent = ABSENT
    clipboard: bool | Absent = ABSENT
    reap: str | Absent = ABSENT


@message
class Created(Summary):
    """The new session, or the existing session."""

    existed: bool


@message
class Ls:
    """`all`: ended sessions too. `cost`: what each session costs."""

    all: bool = False
    cost: bool | Absent = ABSENT


@message
class Listed:
    """Running sessions, the oldest first, then ended sessions.

    `last`: the running session that the calling operator attached to last. `pinned`: if the
    request asked for the cost.
    """

    sessions: tuple[Summary, ...]
    last: str | Absent = ABSENT
    pinned: Pinned | Absent = ABSENT


@message
class Rename(SessionAct):
    """A new name for a session."""

    name: str


@message
class Named:
    """A session by id and name."""

    id: str
    name: str


@message
class End(SessionAct):
    """`again`: the request is a repeat, so the session may have ended already."""

    again: bool = False


@message
class Ended:
    """The end of a session.

    `signal`: the effective signal; empty if the session was over before. `tool_files`: files that
    the session changed and that a person's tools execute later.
    """

    id: str
    name: str
    signal: str
    exit_code: int | None
    reason: str
    tool_files: tuple[str, ...] | Absent = ABSENT


@message
class Forget(MachineAct):
    """An ended session to remove from the list."""

    session: str


@message
class Forgotten:
    """A session by id and name. `files`: files that came from another machine, which stay."""

    id: str
    name: str
    files: str | Absent = ABSENT


@message
class WhoReply:
    """The attached clients, the turn, and the acts that wait for approval in a session."""

    id: str
    name: str
    operators: tuple[Attached, ...]
    turn: TurnState | None
    stopped: tuple[StoppedOperator, ...] | Absent = ABSENT
    layout: str | Absent = ABSENT
    halt: str | Absent = ABSENT
    says: str | Absent = ABSENT
    sees: str | Absent = ABSENT
    gate: str | Absent = ABSENT
    gate_says: str | Absent = ABSENT
    limits: Json | Absent = ABSENT
    approvals: tuple[Json, ...]
    tool_files: tuple[str, ...] | Absent = ABSENT


@message
class Resolve:
    """A reference like `hf:SESSION@EPOCH#ACT`."""

    ref: str


@message
class Resolved:
    """The present meaning of a reference; for an act also the processes that are left.

    `elsewhere`: the machine that has the session, or is to have it: name, key and incarnation,
    which is null while a move is under way.
    """

    ref: str
    known: bool
    state: str
    exit_code: int | Absent | None = ABSENT
    session: Summary | Absent = ABSENT
    act: str | Absent = ABSENT
    under_way: bool | Absent | None = ABSENT
    running: tuple[Json, ...] | Absent = ABSENT
    died: tuple[Json, ...] | Absent = ABSENT
    kept: bool | Absent = ABSENT
    elsewhere: Json | Absent = ABSENT


@message
class ActTarget:
    """The facts that an act is signed for: id, incarnation and last entry of the record.

    `name`: of the session; empty for the machine.
    """

    id: str
    epoch: int
    seen: str | None
    name: str
