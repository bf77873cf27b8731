"""Linearizability of many operators on one session.

Question: is there one order of all acts that explains every answer an operator got?

A history is the knowledge of each operator about its own acts: when it asked, when the answer came,
and the answer. The terminal adds the lines that its program read, in their order. The history is
right (A1, A2, P1) if every act can be given one moment between its question and its answer such
that the sequence is a possible behaviour of a session. At each moment one operator holds the turn,
and only the holder writes. Every accepted line is read once and in that order, a refused line
never, and an unknown line at most once. The only evidence about the order is the clock of one
machine: an act that was answered before another was asked comes before it.

Two things are not promised, and so not checked. A line that a seizure found unread is discarded,
and all lines behind it (A3): accepted lines may be missing if a seizure by another operator follows
them before any further line is read. And a host that dies forgets a holder that did not seize the
turn: that is an act too (`RESTART`).

Method: Wing and Gong's search in Lowe's form. Acts are taken in any order that time allows, each
step asks the model, and tried combinations are remembered as (acts taken, state of the model). An
act with an unknown outcome may also have had no effect. That case is only tried when the time of
the act is over, because having no effect can always wait. Lines differ, so the position of a line
in the terminal decides when it was written, and the search hardly branches.

When no order exists, the fault is named by the smallest change that would make one possible: the
turn, the order, or the missing lines. Rejected: checking each property by itself (one order, one
holder, exactly once): each may hold in an order of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tests.support.checkers.history import Fault, Kind, Outcome

STEPS_MAX: Final = 500_000  # before a history is given up as undecided
NOT_SAID: Final = "?"  # the answer did not name the holder of the turn


class Act(StrEnum):
    WRITE = "write"  # a line; without text: an act that needs the turn and leaves no trace
    REQUEST = "request"  # accepted: the operator holds the turn now, or waits
    HAND = "hand"
    GRANT = "grant"
    REFUSE = "refuse"
    RELEASE = "release"
    SEIZE = "seize"
    SHOW = "show"
    LEAVE = "leave"  # the last client of the operator has gone
    RESTART = "restart"  # the host died and is back: only a seized turn is still held


@dataclass(frozen=True)
class Operation:
    """One act as its operator saw it.

    `returned` of an unknown act: when it can no longer take effect.
    """

    operator: str
    act: Act
    invoked: float
    returned: float = math.inf
    outcome: Outcome = Outcome.ACKED
    text: str = ""
    number: int = 0  # of the act, if the answer had it
    to: str = ""
    holder: str | None = (
        # As the answer named the operator: the holder now (SHOW, refusals) or before (SEIZE)
        NOT_SAID
    )

    def __str__(self) -> str:
        parts = [
            self.operator,
            str(self.act),
            self.text or self.to,
            f"#{self.number}" if self.number else "",
            str(self.outcome),
            f"holder {self.holder}" if self.holder != NOT_SAID else "",
            f"[{self.invoked:.4f}, {self.returned:.4f}]",
        ]
        return " ".join(filter(None, parts))


class State(NamedTuple):
    holder: str | None = None
    queue: tuple[str, ...] = ()
    read: int = 0  # lines of the terminal that are explained
    number: int = 0  # of the last act
    dropped: str = (
        # The operator whose lines are missing: a seizure must follow before the next line is read
        ""
    )
    seized: bool = False  # the holder keeps the turn though its client leaves or the host dies


class Forgiven(NamedTuple):
    turn: bool = False
    order: bool = False
    missing: bool = False


NOTHING: Final = Forgiven()


class Model:
    """The behaviour of a session, one act at a time."""

    def __init__(self, received: Sequence[str], forgiven: Forgiven = NOTHING) -> None:
        self.received = received
        self._at = {text: place for place, text in enumerate(received)}
        self._forgiven = forgiven

    def finished(self, state: State) -> bool:
        return state.read == len(self.received) and (not state.dropped or self._forgiven.missing)

    def steps(self, op: Operation, state: State) -> Iterator[State]:
        """The possible states of the session after the act, if it took effect as answered.

        No state if the act cannot have taken effect that way.
        """
        if op.outcome is Outcome.REFUSED:
            if (
                self._forgiven.turn
                or op.holder == NOT_SAID
                or (op.holder == state.holder and op.holder != op.operator)
            ):
                yield state
            return
        if op.act is Act.WRITE:
            yield from self._write(op, state)
        elif op.act is Act.SEIZE:
            if (
                op.holder in (NOT_SAID, state.holder if state.holder != op.operator else None)
                or self._forgiven.turn
            ):
                kept = state.dropped if state.dropped == op.operator else ""
                yield self._given(state._replace(dropped=kept), op.operator)._replace(seized=True)
        elif op.act is Act.SHOW:
            if op.holder in (NOT_SAID, state.holder) or self._forgiven.turn:
                yield state
        elif op.act is Act.REQUEST:
            yield from self._request(op, state)
        elif op.act in (Act.HAND, Act.GRANT):
            if (
                state.holder in (None, op.operator) and (op.act is Act.HAND or op.to in state.queue)
            ) or self._forgiven.turn:
                yield self._given(state, op.to)
        elif op.act is Act.REFUSE:
            if state.holder in (None, op.operator) or self._forgiven.turn:
                yield state._replace(queue=_without(state.queue, op.to))
        elif op.act is Act.RESTART:
            yield state._replace(holder=state.holder if state.seized else None, queue=())
        else:
            if op.act is Act.LEAVE:
                state = state._replace(queue=_without(state.queue, op.operator))
            if state.holder == op.operator and not (op.act is Act.LEAVE and state.seized):
                state = (
                    self._given(state, state.queue[0])
                    if state.queue
                    else state._replace(holder=None, seized=False)
                )
            yield state

    def _write(self, op: Operation, state: State) -> Iterator[State]:
        if state.holder not in (None, op.operator) and not self._forgiven.turn:
            return
        if op.number and not self._forgiven.order:
            if op.number <= state.number:
                return
            state = state._replace(number=op.number)
        after = self._given(state, op.operator) if state.holder != op.operator else state
        place = self._at.get(op.text)
        if not op.text:
            yield after
        elif place is None:
            yield after._replace(dropped=op.operator)
        elif self._forgiven.order:
            yield after._replace(read=state.read + 1)
        elif place == state.read and (not state.dropped or self._forgiven.missing):
            yield after._replace(read=place + 1)

    def _request(self, op: Operation, state: State) -> Iterator[State]:
        if state.holder in (None, op.operator):
            if op.holder in (NOT_SAID, op.operator) or self._forgiven.turn:
                yield self._given(state, op.operator)
        elif op.holder in (NOT_SAID, state.holder) or self._forgiven.turn:
            yield (
                state
                if op.operator in state.queue
                else state._replace(queue=(*state.queue, op.operator))
            )

    def _given(self, state: State, to: str) -> State:
        return (
            state._replace(holder=to, queue=_without(state.queue, to), seized=False)
            if state.holder != to
            else state
        )


def _without(queue: tuple[str, ...], operator: str) -> tuple[str, ...]:
    return tuple(one for one in queue if one != operator) if operator in queue else queue


# ---------------------------------------------------------------- the search


class _Undecided(Exception):
    pass


class _Path(NamedTuple):
    """The acts taken before, the last act first: all paths share their common part."""

    before: _Path | None
    last: int
    length: int


class Found(NamedTuple):
    # The order that explains every answer, or the furthest that was tried
    order: tuple[Operation, ...]
    explained: bool
    stuck: tuple[Operation, ...]  # acts that could have come next, and failed


def search(history: Sequence[Operation], model: Model) -> Found:
    ops = sorted(history, key=lambda op: (op.invoked, op.returned))
    needed = sum(1 << i for i, op in enumerate(ops) if op.returned != math.inf)
    begin = State()
    tried = {(0, begin)}
    stack: list[tuple[int, State, _Path | None]] = [(0, begin, None)]
    best: _Path | None = None
    stuck: tuple[Operation, ...] = ()
    while stack:
        done, state, path = stack.pop()
        if done & needed == needed and model.finished(state):
            return Found(_order(ops, path), True, ())
        ready, limit = _ready(ops, done)
        if path is None or best is None or path.length > best.length:
            best, stuck = path, tuple(ops[i] for i in ready)
        for i, one in _next(ops, ready, limit, state, model):
            key = (done | 1 << i, one)
            if key not in tried:
                if len(tried) >= STEPS_MAX:
                    raise _Undecided
                tried.add(key)
                stack.append((*key, _Path(path, i, path.length + 1 if path else 1)))
    return Found(_order(ops, best), False, stuck)


def _next(
    ops: Sequence[Operation], ready: Sequence[int], limit: float, state: State, model: Model
) -> list[tuple[int, State]]:
    """The acts that may come next, the likeliest last.

    An act that never changes the state, and is possible now, is taken at once: later is no better.
    """
    sure: list[tuple[int, State]] = []
    guessed: list[tuple[int, State]] = []
    for i in reversed(ready):
        op = ops[i]
        for after in model.steps(op, state):
            if op.outcome is Outcome.REFUSED or op.act is Act.SHOW:
                return [(i, after)]
            if op.outcome is Outcome.ACKED:
                sure.append((i, after))
            elif after != state:
                guessed.append((i, after))
        if op.outcome is Outcome.UNKNOWN and op.returned == limit:
            sure.append((i, state))  # the act had no effect, and now it is too late
    return guessed + sure


def _order(ops: Sequence[Operation], path: _Path | None) -> tuple[Operation, ...]:
    order: list[Operation] = []
    while path is not None:
        order.append(ops[path.last])
        path = path.before
    return tuple(reversed(order))


def _ready(ops: Sequence[Operation], done: int) -> tuple[list[int], float]:
    """Acts that may be next, and when the first of them was answered.

    An act may be next if no act outside `done` was answered before this act was asked.
    """
    ready: list[int] = []
    limit = math.inf
    first = (~done & (done + 1)).bit_length() - 1
    for i in range(first, len(ops)):
        if done >> i & 1:
            continue
        if ops[i].invoked > limit:
            break
        limit = min(limit, ops[i].returned)
        ready.append(i)
    return [i for i in ready if ops[i].invoked <= limit], limit


# ---------------------------------------------------------------- the verdict


def check_linear(history: Sequence[Operation], received: Sequence[str]) -> list[Fault]:
    """The faults of a history whose program read `received`; empty for an allowed history."""
    writes = {op.text: op for op in history if op.act is Act.WRITE and op.text}
    assert len(writes) == sum(op.act is Act.WRITE and bool(op.text) for op in history), (
        "the lines of a history must differ"
    )
    faults = [
        Fault(Kind.DOUBLED, f"{text!r} was read {count} times")
        for text, count in Counter(received).items()
        if count > 1
    ]
    for place, text in enumerate(received):
        if text not in writes:
            faults.append(Fault(Kind.UNASKED, f"nobody wrote {text!r}, line {place}"))
        elif writes[text].outcome is Outcome.REFUSED:
            faults.append(
                Fault(Kind.UNASKED, f"{writes[text]} was refused and yet read, line {place}")
            )
    if faults:
        return faults
    try:
        found = search(history, Model(received))
        if found.explained:
            return []
        for kind, forgiven in (
            (Kind.HOLDERS, Forgiven(turn=True)),
            (Kind.LOST, Forgiven(missing=True)),
            (Kind.REORDERED, Forgiven(order=True)),
            (Kind.LOST, Forgiven(turn=True, missing=True)),
            (Kind.REORDERED, Forgiven(True, True, True)),
        ):
            if search(history, Model(received, forgiven)).explained:
                return [Fault(kind, _where(found, received))]
    except _Undecided:
        return [Fault(Kind.UNDECIDED, f"more than {STEPS_MAX} steps for {len(history)} acts")]
    return [Fault(Kind.REORDERED, _where(found, received))]


def _where(found: Found, received: Sequence[str]) -> str:
    order = found.order
    at = sum(
        op.act is Act.WRITE and op.text in received and op.outcome is not Outcome.REFUSED
        for op in order
    )
    return (
        f"no order explains it; furthest {len(order)} acts, "
        f"then line {at} {received[at : at + 1]}; before: {'; '.join(map(str, order[-6:]))}; "
        f"next could be: {'; '.join(map(str, found.stuck[:8]))}"
    )
