"""The reaper's choices for sessions, its state, and the drain of the machine."""

from __future__ import annotations

from holdfast.core.contract.message import ABSENT, Absent, MachineAct, SessionAct, message


@message
class Reap(SessionAct):
    """What the reaper may do with the session: `default`, `never`, `evict` or `end`."""

    choice: str


@message
class Choice:
    """The session, and what the reaper may do with it from now on."""

    id: str
    name: str
    choice: str


@message
class ReaperPolicy:
    """The limits of the configuration; 0: none. `action`: for sessions that cannot be saved."""

    idle_s: float
    memory: int
    sessions: int
    warn_s: float
    action: str


@message
class ReaperSession:
    """A session as the reaper saw it last.

    `safe`: why it is not reaped now. `why` and `at`: it was warned, and is reaped then. `left`: why
    it is due and stays.
    """

    id: str
    name: str
    choice: str
    idle_s: float
    safe: str
    why: str | Absent = ABSENT
    at: float | Absent = ABSENT
    left: str | Absent = ABSENT


@message
class Reaper:
    """The policy, and the sessions that the caller may observe. `on`: whether there is a limit."""

    on: bool
    policy: ReaperPolicy
    sessions: tuple[ReaperSession, ...]


@message
class Drain(MachineAct):
    """Save every session within `notice` seconds; `to`: move them to that machine.

    `cancel`: end a drain instead; new sessions are admitted again.
    """

    notice: int = 60
    to: str | Absent = ABSENT
    cancel: bool | Absent = ABSENT


@message
class DrainedSession:
    """The result for one session. `why`: why it is not saved; `then`: what becomes of it."""

    id: str
    name: str
    saved: bool
    checkpoint: str | Absent = ABSENT
    machine: str | Absent = ABSENT
    bytes: int | Absent = ABSENT
    took_s: float | Absent = ABSENT
    losses: tuple[str, ...] | Absent = ABSENT
    why: str | Absent = ABSENT
    then: str | Absent = ABSENT


@message
class Drained:
    """The results. `draining`: whether new sessions are refused now."""

    draining: bool
    sessions: tuple[DrainedSession, ...]
    saved: int
    left: int
    bytes: int
    took_s: float
