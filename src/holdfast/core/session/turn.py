"""The turn: the right to write now (A1, A2). One operator holds the turn at any time.

Operators notice the turn only when they contend for it.

Rules
1. The first write takes a free turn, without a request.
2. A holder loses the turn after `idle_s` without writing, or when its last client leaves. A holder
   that seized the turn keeps it until it releases the turn or hands it over, or until no client of
   this operator has been connected for `gone_s`.
3. Other operators are refused and told the holder's name; or they request the turn. While the turn
   is held, a replaceable policy decides about each request: the request joins the queue at a place
   of the policy's choice, or is dropped at once. The first operator of the queue gets the turn when
   the turn becomes free, and any waiting operator when the holder grants the turn.
4. The holder may hand the turn to any operator, grant or refuse a request, or release the turn.
5. A long act (`run`) keeps the turn while it lasts, belongs to the operator, and ends no other
   act.
6. Seizing (`take`) needs no consent: no policy rule, long act or queue delays it. The envelope
   alone decides which operators may seize.

Pure: time is an argument, effects are values. The host drives it and adds envelopes, the gate and
the record.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

from holdfast.model.limits import TURN_GONE_S, TURN_IDLE_S, TURN_REQUESTS_MAX

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
    seized: bool = False  # the holder keeps the turn until it is released


@dataclass(frozen=True)
class Asked:
    """An operator waits for the turn; the holder is notified."""

    operator: str
    holder: str


@dataclass(frozen=True)
class Withdrawn:
    """A request ended: refused by the holder, dropped by the policy, or withdrawn."""

    operator: str
    why: Literal["refused", "dropped", "left"]


Effect = Taken | Freed | Denied | Asked | Withdrawn


Queue = tuple[Request, ...]  # the request that gets the turn next comes first


class Policy(Protocol):
    """The treatment of requests for a held turn."""

    def place(self, queue: Queue, request: Request) -> Queue:
        """Return the new queue. A request that is not in it is dropped."""


class FirstCome:
    def place(self, queue: Queue, request: Request) -> Queue:
        return (*queue, request)


class HumansFirst:
    def place(self, queue: Queue, request: Request) -> Queue:
        return tuple(sorted((*queue, request), key=lambda r: (r.kind != "human", r.at)))


class NoQueue:
    """A request for a held turn is dropped; the operator may ask again."""

    def place(self, queue: Queue, request: Request) -> Queue:
        return queue


class NoAnswer(Exception):
    """A plug-in gave no valid answer about a request."""


class Placed(NamedTuple):
    """The answer of a plug-in to one request: the operators that wait, next first."""

    order: tuple[str, ...]

    def place(self, queue: Queue, request: Request) -> Queue:
        known = {one.operator: one for one in (*queue, request)}
        return tuple(known[one] for one in self.order if one in known)


POLICIES: dict[str, Policy] = {
    "queue": FirstCome(),
    "humans-first": HumansFirst(),
    "drop": NoQueue(),
}


@dataclass(slots=True)
class TurnState:
    """The saved state, as plain values."""

    holder: str | None = None
    since: float = 0.0
    last_write: float = 0.0
    long_acts: int = 0
    queue: Queue = ()
    seized: bool = False
    away: float | None = None  # since when a holder that seized the turn has no client


@dataclass
class Turn:
    """The turn of one session."""

    state: TurnState = field(default_factory=TurnState)
    idle_s: float = TURN_IDLE_S
    gone_s: float = TURN_GONE_S
    policy: Policy = POLICIES["queue"]

    # ------------------------------------------------------------ facts

    def holder(self, now: float) -> str | None:
        return None if self._lapsed(now) else self.state.holder

    def deadline(self) -> float | None:
        """Return when the turn expires if nothing happens before."""
        s = self.state
        if s.holder is None or s.long_acts:
            return None
        if s.seized:
            return None if s.away is None else s.away + self.gone_s
        return s.last_write + self.idle_s

    def waiting(self) -> tuple[str, ...]:
        return tuple(r.operator for r in self.state.queue)

    # ------------------------------------------------------------ writing

    def write(self, operator: str, now: float) -> list[Effect]:
        """Let an operator write now; the last effect is `Denied` if it may not."""
        s = self.state
        if s.holder == operator and (
            s.long_acts or (s.seized and s.away is None) or now < s.last_write + self.idle_s
        ):
            s.last_write = now  # the most frequent case: the holder continues to type
            return []
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != operator:
            return [*effects, self._denied(now)]
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
        """End a long act; no effect if the operator lost the turn in the meantime."""
        if self.state.holder == operator and self.state.long_acts:
            self.state = replace(self.state, long_acts=self.state.long_acts - 1, last_write=now)
        return self.expire(now)

    # ------------------------------------------------------------ moving

    def contended(self, operator: str, now: float) -> bool:
        """Say whether a request of this operator is one that the policy decides about."""
        holder = self.holder(now)
        return (
            holder not in (None, operator)
            and operator not in self.waiting()
            and len(self.state.queue) < TURN_REQUESTS_MAX
        )

    def request(
        self, operator: str, now: float, kind: str = "human", policy: Policy | None = None
    ) -> list[Effect]:
        """Request the turn: `Taken` if it is free, else `Asked` or `Withdrawn`. Idempotent.

        `policy` replaces the policy of the turn for this request.
        """
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
        if len(s.queue) >= TURN_REQUESTS_MAX:
            return [*effects, Withdrawn(operator, "dropped")]
        queue = (policy or self.policy).place(s.queue, asked)
        self.state = replace(s, queue=queue)
        effects += [
            Withdrawn(one.operator, "dropped") for one in (*s.queue, asked) if one not in queue
        ]
        return [*effects, Asked(operator, s.holder)] if asked in queue else effects

    def withdraw(self, operator: str, now: float) -> list[Effect]:
        """Withdraw a request for the turn."""
        effects = self.expire(now)
        return [*effects, *self._drop(operator, "left")]

    def hand(self, holder: str, to: str, now: float, how: How = "hand") -> list[Effect]:
        """Give the turn to another operator, who need not have asked.

        The effect is `Denied` if the giver does not hold it.
        """
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != holder:
            return [*effects, self._denied(now)]
        if to == s.holder:
            return effects
        return [*effects, self._give(to, s.holder, now, how)]

    def grant(self, holder: str, to: str, now: float) -> list[Effect]:
        """Give the turn to an operator who asked; no effect if that operator did not."""
        return self.hand(holder, to, now, "grant") if to in self.waiting() else self.expire(now)

    def refuse(self, holder: str, to: str, now: float) -> list[Effect]:
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.holder != holder:
            return [*effects, self._denied(now)]
        return [*effects, *self._drop(to, "refused")]

    def take(self, operator: str, now: float) -> list[Effect]:
        """Seize the turn; the caller has checked that this operator may."""
        previous = self.holder(now)
        if previous == operator:
            self.state = replace(self.state, last_write=now, seized=True, away=None)
            return []
        return [self._give(operator, previous, now, "seize")]

    def release(self, operator: str, now: float) -> list[Effect]:
        """Release the turn, seized or not; a long act of the operator keeps it."""
        if self.state.holder != operator:
            return self.expire(now)
        self.state = replace(self.state, seized=False, away=None)
        if self.state.long_acts:
            return []
        self.state = replace(self.state, holder=None)
        return [Freed(operator), *self._next(operator, now)]

    def lose(self, operator: str, now: float) -> list[Effect]:
        """Take the turn from an operator that lost the right to write, even during a long act."""
        if self.state.holder != operator:
            return self.expire(now)
        self.state = replace(self.state, holder=None, long_acts=0, seized=False, away=None)
        return [Freed(operator), *self._next(operator, now)]

    def leave(self, operator: str, now: float) -> list[Effect]:
        """Note that the last client of the operator left: it neither holds nor waits.

        A seized turn stays; `presence` decides about that.
        """
        dropped = self._drop(operator, "left")
        if self.state.holder == operator and self.state.seized:
            return [*dropped, *self.expire(now)]
        return [*dropped, *self.release(operator, now)]

    def presence(self, connected: bool, now: float) -> list[Effect]:
        """Note whether the holder of a seized turn has a client connected to this machine."""
        effects = self.expire(now)
        s = self.state
        if s.holder is not None and s.seized:
            self.state = replace(s, away=None if connected else now if s.away is None else s.away)
        return effects

    def expire(self, now: float) -> list[Effect]:
        if not self._lapsed(now):
            return []
        previous = self.state.holder
        assert previous is not None
        self.state = replace(self.state, holder=None, seized=False, away=None)
        return [Freed(previous), *self._next(previous, now)]

    # ------------------------------------------------------------ helpers

    def _give(self, operator: str, previous: str | None, now: float, how: How) -> Taken:
        queue = tuple(r for r in self.state.queue if r.operator != operator)
        self.state = TurnState(operator, now, now, 0, queue, seized=how == "seize")
        return Taken(operator, previous, how)

    def _denied(self, now: float) -> Denied:
        s = self.state
        assert s.holder is not None
        return Denied(s.holder, s.since, now - s.last_write, s.seized)

    def _next(self, previous: str, now: float) -> list[Effect]:
        queue = self.state.queue
        return [self._give(queue[0].operator, previous, now, "request")] if queue else []

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
