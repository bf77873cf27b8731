"""The results of a drain of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainedSession:
    """The result of a drain for one session. `why`: the reason if it is not saved."""

    id: str
    name: str
    saved: bool
    checkpoint: str | None = None
    machine: str | None = None
    bytes: int = 0
    took_s: float = 0.0
    losses: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Drained:
    """The results of a drain. `draining`: new sessions are refused from now on."""

    draining: bool
    sessions: tuple[DrainedSession, ...] = ()
    saved: int = 0
    left: int = 0
    bytes: int = 0
    took_s: float = 0.0
