"""Checkpoints and leases: save a session to disk, list what is saved, and restore a session."""

from __future__ import annotations

from holdfast.core.contract.copies import ArrivedFiles, SentCopy
from holdfast.core.contract.message import ABSENT, Absent, Json, MachineAct, SessionAct, message


@message
class Checkpoint(SessionAct):
    """A session to save. `stop`: its processes end once they are saved.

    `check`: run the preflight only; no process stops and no file is written. `to`: a machine that
    gets a copy.
    """

    stop: bool = False
    check: bool = False
    to: str | Absent = ABSENT


@message
class Checked:
    """The findings of the preflight in sentences; `bytes` and `seconds` are estimates."""

    possible: bool
    blockers: tuple[str, ...]
    losses: tuple[str, ...]
    bytes: int
    seconds: float


@message
class There:
    """Whether another machine could go on with the session; `possible` is null without an answer.

    `reasons`: why not, in the words of that machine. `free`: bytes that copies may take there.
    """

    machine: str
    possible: bool | None
    reasons: tuple[str, ...]
    free: int


@message
class SavedCheckpoint:
    """A checkpoint. `ended`: the processes of the session ended with it.

    `epoch` and `offset`: the incarnation, and the end of its output at that moment. `act`: the last
    act that the session had taken. `losses`: what a restored session will lack. `written`: files
    that were open for writing and were copied. `frozen_ms`: how long the processes stood still.
    `bytes`: of all files before packing; `stored`: packed, on the disk; `added`: of these, bytes
    that no earlier checkpoint of the session had.
    `copies`: the machines that have it. `kept_for`: the machine of which this is a copy.
    """

    checkpoint: str
    id: str
    name: str
    epoch: int
    at: float
    by: str
    ended: bool
    bytes: int
    offset: int
    act: int
    losses: tuple[str, ...]
    written: tuple[str, ...]
    frozen_ms: float
    took_ms: float
    stored: int = 0
    added: int = 0
    path: str | Absent = ABSENT
    copies: tuple[SentCopy, ...] = ()
    kept_for: str | Absent = ABSENT


@message
class CheckpointReply:
    """The checkpoint; null if `check` asked for the findings only. `there`: with `to`."""

    id: str
    name: str
    found: Checked | None
    saved: SavedCheckpoint | None
    there: There | Absent = ABSENT


@message
class Checkpoints:
    """`session`: only the checkpoints of this session."""

    session: str | Absent = ABSENT


@message
class CheckpointsReply:
    """The checkpoints of sessions that the caller may observe, oldest first."""

    checkpoints: tuple[SavedCheckpoint, ...]


@message
class RemoveCheckpoint(SessionAct):
    """A checkpoint of a session that is to be removed: its id, or the beginning of its id."""

    checkpoint: str


@message
class CheckpointRemoved:
    """`freed`: bytes of the stored files that no other checkpoint needs."""

    id: str
    name: str
    checkpoint: str
    freed: int


@message
class Restore(SessionAct):
    """An ended session to bring back, from a checkpoint or from its newest.

    A lost session without a checkpoint comes back without its memory. So does a session whose
    restore fails, except if `fallback` is false. `lost`: the caller states that the machine of the
    session is lost, and takes it over from a copy.
    """

    checkpoint: str | Absent = ABSENT
    fallback: bool | Absent = ABSENT
    lost: bool | Absent = ABSENT


@message
class LostConnection:
    """A TCP connection that a new incarnation or a branch does not have any more.

    `unacked`: bytes that the peer had not acknowledged at the moment of the checkpoint. `pid`,
    `program`: the process that held it, and `actor` and `act` those that had started the process.
    """

    protocol: str
    local: str
    remote: str
    pid: int
    program: str
    actor: str
    act: str | None
    unacked: int


@message
class ActBeside:
    """An act that a restored memory does not contain as a whole.

    `act`: its reference; "entry N of hf:SESSION@EPOCH" of the record if its number is not known.
    """

    act: str
    actor: str
    kind: str


@message
class Restored:
    """The new incarnation. `at`: the moment that its memory is from.

    `re_established`: the memory is lost. The object has the facts of the event
    `session.re_established`. `checkpoint` is then the one whose restore failed, if any, and `at`
    the moment when the host last looked at the session.

    `replaced`: files that had changed since and have their saved content again. The content that
    gave way is in the archive `kept`. `connections`: those that did not survive. `taken_from`: the
    machine of a session that was taken over; its acts after `act` are not in the memory.
    `unfenced`: no lease stopped the incarnation there; it may take acts until that machine, which
    asks every 10 seconds, learns of the takeover. `files`: of a session that was taken over.
    `halted`: true, or absent; its programs stand still until `resume`.

    `in_flight`: acts that the checkpoint caught in the middle; they go on from there, and their
    effects may come twice. `later`: the newest acts of the record here that came after `at`, which
    the memory does not know; `later_more`: how many there are before these.
    """

    id: str
    name: str
    checkpoint: str
    epoch: int
    at: float
    pid: int
    replaced: tuple[str, ...]
    losses: tuple[str, ...]
    connections: tuple[LostConnection, ...] = ()
    kept: str | Absent = ABSENT
    re_established: Json | Absent = ABSENT
    taken_from: str | Absent = ABSENT
    act: int | Absent = ABSENT
    unfenced: bool | Absent = ABSENT
    in_flight: tuple[ActBeside, ...] = ()
    later: tuple[ActBeside, ...] = ()
    later_more: int = 0
    halted: bool | Absent = ABSENT
    files: tuple[ArrivedFiles, ...] | Absent = ABSENT


# ------------------------------------------------------------ leases


@message
class LeaseState:
    """A lease. `owner`: the key of the machine. `until`: its end if it is not renewed.

    `state`: `held`, `released`, `invalidated`; `fenced`: the incarnation here has lost it, and
    `why` says how. `until` is null for a pinned session, and where only the owner knows it.
    """

    owner: str
    machine: str
    epoch: int
    until: float | None
    rehomable: bool
    state: str
    why: str | Absent = ABSENT


@message
class Elsewhere:
    """What this machine knows of a session that lives at another machine.

    `state`: `copied`, and this machine has a copy of the moment `at`; or `moved`. `key`: of the
    machine. `epoch`: the incarnation that this machine knows there.
    """

    state: str
    machine: str
    key: str
    epoch: int
    at: float | None


@message
class LeaseReply:
    """What the store says. `wait_s`: after this time another machine may take the session.

    The wait starts when this host first sees the present state of the lease, and anew with each
    renewal. `lease` is null for a session that is not in the store: it is pinned. `elsewhere`: of a
    session that this machine has only as a copy, or that moved away; absent otherwise.
    """

    id: str
    name: str
    lease: LeaseState | None
    wait_s: float | None
    store: str
    elsewhere: Elsewhere | Absent = ABSENT


@message
class Rehome(SessionAct):
    """A session to make re-homable, or (`on` is false) to pin to this machine."""

    on: bool


@message
class Rehomed:
    """`says`: what that means, in words."""

    id: str
    name: str
    rehomable: bool
    says: str


@message
class InvalidateLease(MachineAct):
    """A session, wherever it lives, by its id or by a name that this machine knows."""

    session: str
