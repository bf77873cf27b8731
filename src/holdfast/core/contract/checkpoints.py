"""Checkpoints: save a session to disk, list what is saved, and restore a session."""

from __future__ import annotations

from holdfast.core.contract.message import ABSENT, Absent, SessionAct, message


@message
class Checkpoint(SessionAct):
    """A session to save. `stop`: its processes end once they are saved.

    `check`: run the preflight only; no process stops and no file is written.
    """

    stop: bool = False
    check: bool = False


@message
class Checked:
    """The findings of the preflight in sentences; `bytes` and `seconds` are estimates."""

    possible: bool
    blockers: tuple[str, ...]
    losses: tuple[str, ...]
    bytes: int
    seconds: float


@message
class SavedCheckpoint:
    """A checkpoint. `ended`: the processes of the session ended with it.

    `epoch` and `offset`: the incarnation, and the end of its output at that moment. `act`: the last
    act that the session had taken. `losses`: what a restored session will lack. `written`: files
    that were open for writing and were copied. `frozen_ms`: how long the processes stood still.
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
    path: str | Absent = ABSENT


@message
class CheckpointReply:
    """The checkpoint; null if `check` asked for the findings only."""

    id: str
    name: str
    found: Checked | None
    saved: SavedCheckpoint | None


@message
class Checkpoints:
    """`session`: only the checkpoints of this session."""

    session: str | Absent = ABSENT


@message
class CheckpointsReply:
    """The checkpoints of sessions that the caller may observe, oldest first."""

    checkpoints: tuple[SavedCheckpoint, ...]


@message
class Restore(SessionAct):
    """An ended session to bring back, from a checkpoint or from its newest."""

    checkpoint: str | Absent = ABSENT


@message
class Restored:
    """The new incarnation. `at`: the moment that its memory is from.

    `replaced`: files that had changed since and have their saved content again. The content that
    gave way is in the archive `kept`.
    """

    id: str
    name: str
    checkpoint: str
    epoch: int
    at: float
    pid: int
    replaced: tuple[str, ...]
    losses: tuple[str, ...]
    kept: str | Absent = ABSENT
