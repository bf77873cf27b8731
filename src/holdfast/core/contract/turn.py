"""The turn, and stopping a session: request, hand over, seize, halt, resume."""

from __future__ import annotations

from holdfast.core.contract.message import (
    ABSENT,
    Absent,
    Json,
    SessionAct,
    Signed,
    checked,
    message,
)
from holdfast.core.contract.sessions import StoppedOperator, TurnState


@message
class Turn:
    """`act`: show, request, release, hand, grant or refuse; only `show` is not an act."""

    session: str
    seq: int = 0
    signed: Signed | None = checked(
        "{op}: a signature has statement, signature, salt", default=None
    )
    hold: float | None = None
    once: str | Absent = ABSENT
    act: str = "show"
    to: str | None = None
    wait: float = 0.0


@message
class TurnReply:
    """The turn now. For a request: whether the request is still open, and the inherited state."""

    id: str
    name: str
    turn: TurnState | None
    asked: bool | Absent = ABSENT
    inherits: Json | Absent = ABSENT


@message
class Seize(SessionAct):
    """`stop`: also freeze the processes of the former holder."""

    stop: bool | Absent = ABSENT


@message
class Halt(SessionAct):
    """`operator`: freeze only the processes that acts of this operator started."""

    operator: str | Absent = ABSENT


@message
class Resume(SessionAct):
    """`operator`: only the processes of this operator; absent: every process."""

    operator: str | Absent = ABSENT


@message
class Seized:
    """The former holder, whether unread input was discarded, and the inherited state.

    `stopped`: how the processes of the former holder were frozen, if that was asked.
    """

    id: str
    name: str
    turn: TurnState | None
    previous: str | None
    flushed: bool
    inherits: Json
    stopped: Json | Absent = ABSENT


@message
class Halted:
    """How the processes were stopped. `act`: the last input that took effect before.

    `operator`: the operator whose processes were stopped, if it was not the whole session.
    `left_out`: pid and reason of processes that were not stopped on purpose. `advice`: how to get
    a usable prompt, if the shared shell waits for a stopped process.
    """

    id: str
    name: str
    how: str
    complete: bool
    took_ms: float
    processes: tuple[int, ...]
    missed: tuple[int, ...]
    act: int
    ref: str
    operator: str | Absent = ABSENT
    left_out: tuple[Json, ...] | Absent = ABSENT
    advice: str | Absent = ABSENT


@message
class Resumed:
    """`halted`: whether the session was halted before. `stopped`: operators that were stopped."""

    halted: bool
    id: str
    name: str
    how: str
    complete: bool
    took_ms: float
    processes: tuple[int, ...]
    stopped: tuple[StoppedOperator, ...] | Absent = ABSENT
