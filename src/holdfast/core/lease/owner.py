"""How a machine keeps its lease: one renewal for all its sessions that may be re-homed.

    Owner.handle(event, now) -> effects

The owner reads its own record and the records of its sessions, then renews by compare-and-swap
from the revision that it read. A machine that ends the ownership of one of these sessions also
writes the owner's record. So while renewals succeed, all sessions are still ours; after a failed
compare, the owner reads all records again before it extends a deadline.

An answer that does not come is unknown: the request may still take effect later. The owner then
reads again, and extends no deadline before a further renewal has succeeded. That renewal also makes
the late request fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from holdfast.core.lease import rules
from holdfast.core.lease.records import (
    HELD,
    Commit,
    Lease,
    Machine,
    Stored,
    encode,
    lease,
    machine,
    machine_key,
    session_key,
)

PATIENCE: Final = 0.2  # of a term: for an answer of the store
AGAIN: Final = 0.05  # of a term: from a failure to the next try


class Tick(NamedTuple):
    """Time has passed."""


class Hold(NamedTuple):
    """The store says that this session is ours and may be re-homed; look at the records again."""

    session: str
    epoch: int


class Drop(NamedTuple):
    """The session has ended here: its deadline matters no more."""

    session: str


class Answer(NamedTuple):
    """`found`: the records, of a read. `revision`: of a commit; 0 if the compare failed."""

    number: int
    found: tuple[tuple[str, Stored], ...] = ()
    revision: int = 0


class Failed(NamedTuple):
    """The store is not reachable; a commit may or may not have taken effect."""

    number: int


Event: TypeAlias = Tick | Hold | Drop | Answer | Failed


class Ask(NamedTuple):
    """A request to the store: a commit, or the reading of keys."""

    number: int
    keys: tuple[str, ...]
    commit: Commit | None


class Extend(NamedTuple):
    """The keeper may act until then, on this machine's clock."""

    session: str
    epoch: int
    until: float


class Lift(NamedTuple):
    """The session is pinned now: its keeper needs no deadline."""

    session: str
    epoch: int


class Lost(NamedTuple):
    """The session is not ours any more; `found` says what the store has instead."""

    session: str
    epoch: int
    found: Lease | None


class Superseded(NamedTuple):
    """A later host process of this machine keeps the lease."""

    run: int


Effect: TypeAlias = Ask | Extend | Lift | Lost | Superseded


@dataclass(frozen=True, slots=True)
class State:
    me: str
    run: int
    term: float
    revision: int = -1  # of our record; -1: unknown, so that it must be read
    renewals: int = 0
    until: float = 0.0  # the end of our lease
    due: float = 0.0  # of the next request
    number: int = 0  # of the last request
    waiting: bool = False  # for the answer to that request
    sent: float = 0.0
    held: tuple[tuple[str, int], ...] = ()
    lifted: tuple[tuple[str, int], ...] = ()  # pinned, and their deadline is still set
    superseded: bool = False
    name: str = ""
    # A longer term of an earlier host process, whose deadlines may run until then.
    longer: float = 0.0
    longer_until: float = 0.0


class Owner:
    def __init__(self, state: State) -> None:
        self.state = state

    def handle(self, event: Event, now: float) -> list[Effect]:
        state = self.state
        if state.superseded:
            return []
        if isinstance(event, Hold):
            others = tuple(one for one in state.held if one[0] != event.session)
            return self._look(now, held=(*others, (event.session, event.epoch)))
        if isinstance(event, Drop):
            self.state = replace(
                state,
                held=tuple(one for one in state.held if one[0] != event.session),
                lifted=tuple(one for one in state.lifted if one[0] != event.session),
            )
            return []
        if isinstance(event, Tick):
            if state.waiting and now >= state.sent + PATIENCE * state.term:
                return self._look(now)
            return [] if state.waiting or now < state.due else self._ask(now)
        if event.number != state.number or not state.waiting:
            return []  # an answer that came too late, or twice
        if isinstance(event, Failed):
            again = now + AGAIN * state.term
            held = tuple(dict((*state.held, *state.lifted)).items())
            self.state = replace(state, waiting=False, revision=-1, due=again, held=held, lifted=())
            return []
        if event.found:
            return self._read(dict(event.found), now)
        return self._renewed(event.revision, now) if event.revision else self._look(now)

    @property
    def next_s(self) -> float | None:
        """When a Tick is needed; None: not at all."""
        state = self.state
        if state.superseded or not (state.held or state.lifted or state.waiting):
            return None
        return state.sent + PATIENCE * state.term if state.waiting else state.due

    # ------------------------------------------------------------ steps

    def _look(self, now: float, held: tuple[tuple[str, int], ...] | None = None) -> list[Effect]:
        """Read all records again. An answer that is still under way does not count."""
        held = (*(self.state.held if held is None else held), *self.state.lifted)
        held = tuple(dict(held).items())
        self.state = replace(self.state, revision=-1, waiting=False, held=held, lifted=())
        return self._ask(now)

    def _ask(self, now: float) -> list[Effect]:
        state = self.state
        if not state.held and not state.lifted:
            return []
        number = state.number + 1
        self.state = replace(state, number=number, waiting=True, sent=now)
        own = machine_key(state.me)
        if state.revision < 0:
            return [Ask(number, (own, *(session_key(one) for one, _ in state.held)), None)]
        term = max(state.term, state.longer) if now < state.longer_until else state.term
        record = encode(Machine(state.run, state.renewals + 1, term, state.name))
        return [Ask(number, (), Commit(((own, state.revision),), ((own, record),)))]

    def _read(self, found: dict[str, Stored], now: float) -> list[Effect]:
        state = self.state
        own = found[machine_key(state.me)]
        record = machine(own)
        if record.run > state.run:
            self.state = replace(state, superseded=True)
            return [Superseded(record.run)]
        state = self._remember_term(state, record, now)
        effects: list[Effect] = []
        held, lifted = list[tuple[str, int]](), list[tuple[str, int]]()
        for session, epoch in state.held:
            is_now = lease(found[session_key(session)])
            ours = is_now is not None and (is_now.owner, is_now.epoch, is_now.state) == (
                state.me,
                epoch,
                HELD,
            )
            if not ours:
                effects.append(Lost(session, epoch, is_now))
            elif is_now is not None and is_now.rehomable:
                held.append((session, epoch))
            else:  # not before a renewal: a late request may still make it re-homable
                lifted.append((session, epoch))
        self.state = replace(
            state,
            revision=own.revision,
            renewals=record.renewals,
            waiting=False,
            held=tuple(held),
            lifted=tuple(lifted),
        )
        return effects + self._ask(now)

    def _remember_term(self, state: State, record: Machine, now: float) -> State:
        """Keepers may have deadlines of the term in the record: successors wait for that term."""
        if record.term_s <= state.term or (record.run == state.run and state.longer):
            return state
        until = now + record.term_s
        return replace(
            state,
            longer=max(record.term_s, state.longer),
            longer_until=max(until, state.longer_until),
        )

    def _renewed(self, revision: int, now: float) -> list[Effect]:
        state = self.state
        until = rules.valid_until(state.sent, now, state.term)
        self.state = replace(
            state,
            revision=revision,
            renewals=state.renewals + 1,
            until=until,
            due=state.sent + state.term / rules.RENEWALS_PER_TERM,
            waiting=False,
            lifted=(),
        )
        lifts = [Lift(session, epoch) for session, epoch in state.lifted]
        return [*lifts, *(Extend(session, epoch, until) for session, epoch in state.held)]
