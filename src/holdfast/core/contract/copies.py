"""Copies of sessions at other machines: trust, sending, receiving and taking over."""

from __future__ import annotations

from holdfast.core.contract.message import (
    ABSENT,
    Absent,
    CheckpointId,
    Digest,
    MachineAct,
    SessionAct,
    SessionId,
    message,
)


@message
class Trust(MachineAct):
    """A machine that may keep sessions of this machine and take them over; or no longer.

    `entry`: as in machines.json, with the name of this machine there.
    """

    entry: dict[str, object]
    trusted: bool


@message
class TrustedMachine:
    """A machine that may take sessions of this machine over."""

    name: str
    key: str
    known_as: str
    by: str
    since: float


@message
class Trusted:
    """All machines that may take sessions of this machine over."""

    machines: tuple[TrustedMachine, ...]


@message
class CheckCopy:
    """Facts about a machine, files (path, size, SHA-256) and a size: could a session go on here?"""

    facts: tuple[object, ...]
    needs: tuple[object, ...]
    bytes: int


@message
class CopyChecked:
    """It could. `free`: bytes that copies may still take here.

    `images`: the X25519 key of this machine to which checkpoints are sealed, in hexadecimal.
    """

    free: int
    images: str


@message
class OfferCopy(MachineAct):
    """A copy that is to be kept here. `sha256`, `length`: of its description."""

    id: SessionId
    name: str
    checkpoint: CheckpointId
    epoch: int
    sha256: Digest
    length: int


@message
class CopyNamed:
    """A copy that was offered."""

    id: SessionId
    checkpoint: CheckpointId


@message
class Lacking:
    """A copy that was offered; `after`: the number of contents that were listed before."""

    id: SessionId
    checkpoint: CheckpointId
    after: int = 0


@message
class LackingReply:
    """Contents that are not here: hash, size, and the bytes that are here. `bytes`: all left."""

    objects: tuple[object, ...]
    bytes: int
    more: bool


@message
class Put:
    """The number of bytes that were taken."""

    taken: int


@message
class CommitCopy(MachineAct):
    """A copy of which every content is here."""

    id: SessionId
    checkpoint: CheckpointId


@message
class CopyKept:
    """The copy counts from now on. `at`: the moment that its memory is from."""

    id: str
    checkpoint: str
    at: float


@message
class SessionGone:
    """A session of the caller's machine."""

    id: SessionId


@message
class ArrivedFiles:
    """A shared place of a session that came from another machine: its files are now in `place`.

    `changed`: how many files in `path` of this machine differ from those that the session took
    along when it left; null if it did not take them from there.
    """

    path: str
    place: str
    changed: int | None


@message
class TakenOver:
    """`epoch`: the incarnation that runs here; 0 if the session was not taken over.

    `files`: where its shared places are here.
    """

    epoch: int
    at: float | None
    files: tuple[ArrivedFiles, ...] | Absent = ABSENT


@message
class Move(SessionAct):
    """A session that is to go on at another machine. `check`: only say whether it could."""

    machine: str
    check: bool = False


@message
class Moved:
    """Where the session goes on. `epoch`: its incarnation there; 0 if only checked.

    `bytes`: the last copy. `sent`: bytes that had to travel, in all. `stood_ms`: from the stop here
    until it ran there. `files`: where its shared places are there, if that machine says so.
    """

    id: str
    name: str
    machine: str
    epoch: int
    bytes: int
    sent: int
    stood_ms: float
    took_ms: float
    files: tuple[ArrivedFiles, ...] | Absent = ABSENT


@message
class TakeCopy(MachineAct):
    """The copy with which a session is to go on here."""

    id: SessionId
    checkpoint: CheckpointId


@message
class Schedule(SessionAct):
    """Send a copy to a machine in this period; 0: no more."""

    every_s: int
    to: str = ""


@message
class Scheduled:
    """The schedule of a session; 0: none."""

    id: str
    name: str
    every_s: int
    to: str


@message
class SentCopy:
    """A copy that another machine has, or why it has none.

    `bytes`: the whole copy. `sent`: the bytes that had to travel.
    """

    machine: str
    checkpoint: str
    at: float
    bytes: int = 0
    sent: int = 0
    took_ms: float = 0.0
    failed: str | Absent = ABSENT
