"""The turn: the right to write now (A1, A2). One operator holds it; it is invisible until somebody contends for it.

Rules
1. The first write takes a free turn; nobody has to ask.
2. A holder that has not written for `idle_s`, or whose last client left, holds nothing any more.
3. Who does not hold it is refused, and told who does. What happens to a waiting request is a policy's business: this
   machine only says `Denied`; a policy may queue it and try again on the next `Freed`.
4. A long act (`run`) keeps the turn for as long as it lasts.

Pure: time is an argument, effects are values. The host pumps it; the record, envelopes and seizure come in around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.model.limits import TURN_IDLE_S


@dataclass(frozen=True)
class Taken:
    holder: str
    previous: str | None


@dataclass(frozen=True)
class Freed:
    previous: str


@dataclass(frozen=True)
class Denied:
    holder: str
    since: float
    idle_for: float


Effect = Taken | Freed | Denied


@dataclass(slots=True)
class TurnState:
    """Plain saved state."""

    holder: str | None = None
    since: float = 0.0
    last_write: float = 0.0
    long_acts: int = 0


@dataclass
class Turn:
    state: TurnState = field(default_factory=TurnState)
    idle_s: float = TURN_IDLE_S

    def holder(self, now: float) -> str | None:
        return None if self._lapsed(now) else self.state.holder

    def deadline(self) -> float | None:
        """When the turn lapses if nothing happens before."""
        if self.state.holder is None or self.state.long_acts:
            return None
        return self.state.last_write + self.idle_s

    def write(self, operator: str, now: float) -> list[Effect]:
        """An operator wants to write now. Ends with `Denied` if it may not."""
        s = self.state
        if s.holder == operator and (s.long_acts or now < s.last_write + self.idle_s):
            s.last_write = now                 # by far the commonest: the holder goes on typing
            return []
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != operator:
            return [*effects, Denied(s.holder, s.since, now - s.last_write)]
        if s.holder is None:
            previous = effects[-1].previous if effects and isinstance(effects[-1], Freed) else None
            self.state = TurnState(operator, now, now)
            return [*effects, Taken(operator, previous)]
        self.state = replace(s, last_write=now)
        return effects

    def begin_long(self, operator: str, now: float) -> list[Effect]:
        effects = self.write(operator, now)
        if not any(isinstance(e, Denied) for e in effects):
            self.state = replace(self.state, long_acts=self.state.long_acts + 1)
        return effects

    def end_long(self, now: float) -> None:
        if self.state.long_acts:
            self.state = replace(self.state, long_acts=self.state.long_acts - 1, last_write=now)

    def take(self, operator: str, now: float) -> list[Effect]:
        """Unilateral: the caller has checked that this operator may."""
        previous = self.holder(now)
        if previous == operator:
            self.state = replace(self.state, last_write=now)
            return []
        self.state = TurnState(operator, now, now, 0)
        return [Taken(operator, previous)]

    def release(self, operator: str, now: float) -> list[Effect]:
        """The operator gives the turn back, or its last client has gone."""
        if self.state.holder != operator or self.state.long_acts:
            return self.expire(now)
        self.state = TurnState()
        return [Freed(operator)]

    def expire(self, now: float) -> list[Effect]:
        if not self._lapsed(now):
            return []
        previous = self.state.holder
        self.state = TurnState()
        return [Freed(previous)] if previous is not None else []

    def _lapsed(self, now: float) -> bool:
        deadline = self.deadline()
        return deadline is not None and now >= deadline
