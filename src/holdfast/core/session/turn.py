"""The turn: the right to write now (A1, A2). One operator holds it; it is invisible until somebody contends for it.

Rules
1. The first write takes a free turn; nobody has to ask.
2. A holder that has not written for `idle_s`, or whose last client left, holds nothing any more.
3. Who does not hold it is refused, and told who does; or asks for it. What happens to a request while somebody else holds the turn is
   a policy's business, which can be replaced: it may wait in a queue, or be dropped at once. Whoever waits gets the turn when it
   becomes free, in the policy's order, or when the holder grants it.
4. The holder may hand the turn to anybody, grant or refuse a request, or give it back.
5. A long act (`run`) keeps the turn for as long as it lasts; it is its operator's act, and ends nobody else's.
6. Taking it (`take`) asks nobody: no rule of a policy, no long act and no queue is in the way. Who may is decided by the envelope alone.

Pure: time is an argument, effects are values. The host pumps it; envelopes, the gate and the record come in around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

from holdfast.model.limits import TURN_IDLE_S, TURN_REQUESTS_MAX

How = Literal["write", "request", "grant", "hand", "seize"]


class Request(NamedTuple):
    operator: str
    at: float
    kind: str = "human"


@dataclass(frozen=True)
class Taken:
    holder: str
    previous: str | None
    how: How = "write"


@dataclass(frozen=True)
class Freed:
    previous: str


@dataclass(frozen=True)
class Denied:
    holder: str
    since: float
    idle_for: float


@dataclass(frozen=True)
class Asked:
    """Somebody waits for the turn; its holder is told."""

    operator: str
    holder: str


@dataclass(frozen=True)
class Withdrawn:
    """A request came to nothing: refused by the holder, dropped by the policy, or given up."""

    operator: str
    why: Literal["refused", "dropped", "left"]


Effect = Taken | Freed | Denied | Asked | Withdrawn


class Policy(Protocol):
    """What happens to requests. Both see the queue, oldest first, and change nothing."""

    def admits(self, queue: tuple[Request, ...], request: Request) -> bool:
        """Whether it may wait."""

    def next(self, queue: tuple[Request, ...]) -> Request | None:
        """Who gets a turn that has become free."""


class FirstCome:
    def admits(self, queue: tuple[Request, ...], request: Request) -> bool:
        return True

    def next(self, queue: tuple[Request, ...]) -> Request | None:
        return queue[0] if queue else None


class HumansFirst(FirstCome):
    def next(self, queue: tuple[Request, ...]) -> Request | None:
        return min(queue, key=lambda r: (r.kind != "human", r.at), default=None)


class NoQueue:
    """A request for a held turn is dropped; who wants it asks again."""

    def admits(self, queue: tuple[Request, ...], request: Request) -> bool:
        return False

    def next(self, queue: tuple[Request, ...]) -> Request | None:
        return None


POLICIES: dict[str, Policy] = {
    "queue": FirstCome(),
    "humans-first": HumansFirst(),
    "drop": NoQueue(),
}


@dataclass(slots=True)
class TurnState:
    """Plain saved state."""

    holder: str | None = None
    since: float = 0.0
    last_write: float = 0.0
    long_acts: int = 0
    queue: tuple[Request, ...] = ()


@dataclass
class Turn:
    state: TurnState = field(default_factory=TurnState)
    idle_s: float = TURN_IDLE_S
    policy: Policy = POLICIES["queue"]

    # ------------------------------------------------------------ facts

    def holder(self, now: float) -> str | None:
        return None if self._lapsed(now) else self.state.holder

    def deadline(self) -> float | None:
        """When the turn lapses if nothing happens before."""
        if self.state.holder is None or self.state.long_acts:
            return None
        return self.state.last_write + self.idle_s

    def waiting(self) -> tuple[str, ...]:
        return tuple(r.operator for r in self.state.queue)

    # ------------------------------------------------------------ writing

    def write(self, operator: str, now: float) -> list[Effect]:
        """An operator wants to write now. Ends with `Denied` if it may not."""
        s = self.state
        if s.holder == operator and (s.long_acts or now < s.last_write + self.idle_s):
            s.last_write = now  # by far the commonest: the holder goes on typing
            return []
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != operator:
            return [*effects, Denied(s.holder, s.since, now - s.last_write)]
        if s.holder is None:
            previous = effects[-1].previous if effects and isinstance(effects[-1], Freed) else None
            return [*effects, self._give(operator, previous, now, "write")]
        self.state = replace(s, last_write=now)
        return effects

    def begin_long(self, operator: str, now: float) -> list[Effect]:
        effects = self.write(operator, now)
        if not any(isinstance(e, Denied) for e in effects):
            self.state = replace(self.state, long_acts=self.state.long_acts + 1)
        return effects

    def end_long(self, operator: str, now: float) -> list[Effect]:
        """One of its long acts is over. Of somebody who lost the turn meanwhile: nothing changes."""
        if self.state.holder == operator and self.state.long_acts:
            self.state = replace(self.state, long_acts=self.state.long_acts - 1, last_write=now)
        return self.expire(now)

    # ------------------------------------------------------------ moving

    def request(self, operator: str, now: float, kind: str = "human") -> list[Effect]:
        """Asks for the turn: it is `Taken` if it is free, else `Asked` or `Withdrawn`. To ask twice is to ask once."""
        effects = self.expire(now)
        s = self.state
        if s.holder == operator:
            return effects
        if s.holder is None:
            previous = effects[-1].previous if effects and isinstance(effects[-1], Freed) else None
            return [*effects, self._give(operator, previous, now, "request")]
        if operator in self.waiting():
            return [*effects, Asked(operator, s.holder)]
        asked = Request(operator, now, kind)
        if len(s.queue) >= TURN_REQUESTS_MAX or not self.policy.admits(s.queue, asked):
            return [*effects, Withdrawn(operator, "dropped")]
        self.state = replace(s, queue=(*s.queue, asked))
        return [*effects, Asked(operator, s.holder)]

    def withdraw(self, operator: str, now: float) -> list[Effect]:
        """It does not want the turn any more."""
        effects = self.expire(now)
        return [*effects, *self._drop(operator, "left")]

    def hand(self, holder: str, to: str, now: float, how: How = "hand") -> list[Effect]:
        """The holder gives the turn to somebody, who may have asked or not. `Denied` if it is not the holder's to give."""
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != holder:
            return [*effects, Denied(s.holder, s.since, now - s.last_write)]
        if to == s.holder:
            return effects
        return [*effects, self._give(to, s.holder, now, how)]

    def grant(self, holder: str, to: str, now: float) -> list[Effect]:
        """Hands it to somebody who asked; no effect if nobody of that name did."""
        return self.hand(holder, to, now, "grant") if to in self.waiting() else self.expire(now)

    def refuse(self, holder: str, to: str, now: float) -> list[Effect]:
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != holder:
            return [*effects, Denied(s.holder, s.since, now - s.last_write)]
        return [*effects, *self._drop(to, "refused")]

    def take(self, operator: str, now: float) -> list[Effect]:
        """Unilateral: the caller has checked that this operator may."""
        previous = self.holder(now)
        if previous == operator:
            self.state = replace(self.state, last_write=now)
            return []
        return [self._give(operator, previous, now, "seize")]

    def release(self, operator: str, now: float) -> list[Effect]:
        """The operator gives the turn back. A long act of its own keeps it."""
        if self.state.holder != operator or self.state.long_acts:
            return self.expire(now)
        self.state = replace(self.state, holder=None)
        return [Freed(operator), *self._next(operator, now)]

    def lose(self, operator: str, now: float) -> list[Effect]:
        """Who wrote for it may not any more: it holds nothing, whatever was begun."""
        if self.state.holder != operator:
            return self.expire(now)
        self.state = replace(self.state, holder=None, long_acts=0)
        return [Freed(operator), *self._next(operator, now)]

    def leave(self, operator: str, now: float) -> list[Effect]:
        """Its last client has gone: it neither holds the turn nor waits for it."""
        return [*self._drop(operator, "left"), *self.release(operator, now)]

    def expire(self, now: float) -> list[Effect]:
        if not self._lapsed(now):
            return []
        previous = self.state.holder
        assert previous is not None
        self.state = replace(self.state, holder=None)
        return [Freed(previous), *self._next(previous, now)]

    # ------------------------------------------------------------ inside

    def _give(self, operator: str, previous: str | None, now: float, how: How) -> Taken:
        self.state = TurnState(
            operator, now, now, 0, tuple(r for r in self.state.queue if r.operator != operator)
        )
        return Taken(operator, previous, how)

    def _next(self, previous: str, now: float) -> list[Effect]:
        chosen = self.policy.next(self.state.queue)
        return [] if chosen is None else [self._give(chosen.operator, previous, now, "request")]

    def _drop(self, operator: str, why: Literal["refused", "left"]) -> list[Effect]:
        if operator not in self.waiting():
            return []
        self.state = replace(
            self.state, queue=tuple(r for r in self.state.queue if r.operator != operator)
        )
        return [Withdrawn(operator, why)]

    def _lapsed(self, now: float) -> bool:
        deadline = self.deadline()
        return deadline is not None and now >= deadline
