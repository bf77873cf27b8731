"""A small world for the model check: machines with clocks, one honest store, a network, keepers.

Everything that may happen is a `step`; the check follows all of them (test_model.py). A pause of a
machine needs no step: the other machines and the clocks just go on. A request may take effect at
any later time or never, and a second time within the budget; an answer may be lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.core.lease import changes, owner
from holdfast.core.lease.changes import Denied, Found, Self, Sights, Wait
from holdfast.core.lease.owner import (
    Ask,
    Drop,
    Extend,
    Hold,
    Lift,
    Lost,
    Owner,
    State,
    Superseded,
    Tick,
)
from holdfast.core.lease.records import (
    HELD,
    INVALIDATED,
    Commit,
    Lease,
    Machine,
    Stored,
    encode,
    lease,
    machine_key,
    session_key,
)

S: Final = "s"
TERM: Final = 2.0
LONG: Final = 3.0  # of a host process whose successor has TERM
DRIFT: Final = 0.5  # a clock may lose one tick while it counts a term
NOTHING: Final = Stored(b"", 0)
UNDER_WAY: Final = {"a": 2}  # requests of one machine; of the others 1
T = TypeVar("T")


def replace(one: T, **changed: Any) -> T:
    """Like dataclasses.replace, faster: a check makes a million copies of plain records."""
    made = object.__new__(type(one))
    made.__dict__.update(one.__dict__)
    made.__dict__.update(changed)
    return made


class Request(NamedTuple):
    host: str
    kind: str  # owner, take, invalidate, on, off, release
    number: int
    keys: tuple[str, ...]
    commit: Commit | None
    sent: float
    copies: int
    epoch: int = 0


class Answered(NamedTuple):
    host: str
    kind: str
    number: int
    found: tuple[tuple[str, Stored], ...]
    revision: int
    sent: float
    epoch: int


class Incarnation(NamedTuple):
    """`until`: the keeper's deadline on its machine's clock; None: a pinned session has none."""

    epoch: int
    until: float | None


@dataclass(frozen=True)
class Host:
    name: str
    state: State
    clock: float = 0.0
    losses: int = 0  # ticks that this clock may still lose
    here: Incarnation | None = None
    sights: tuple[tuple[str, tuple[object, float]], ...] = ()
    number: int = 0  # of the last request beside the owner's
    busy: str = ""  # the change that is under way
    stopped: bool = False  # by SIGSTOP: it does nothing, and its keeper goes on
    patient: float = 0.0  # no further look before, on this clock


@dataclass(frozen=True)
class Budget:
    """How often each fault and act may happen in one history."""

    ticks: int
    copies: int = 0
    restarts: int = 0
    takes: tuple[tuple[str, int], ...] = (("b", 1),)
    invalidations: int = 0
    on: int = 0
    off: int = 0
    releases: int = 0
    stops: int = 0


@dataclass(frozen=True)
class World:
    hosts: tuple[Host, ...]
    store: tuple[tuple[str, Stored], ...]
    revision: int
    network: frozenset[Request]
    answers: frozenset[Answered]
    budget: Budget
    top: int  # the highest epoch that ever began
    fault: str = ""  # what must never be

    # ------------------------------------------------------------ what may happen

    def steps(self) -> Iterator[tuple[str, World]]:
        if self.budget.ticks:
            yield from self._time()
        for host in self.hosts:
            if host.stopped:
                yield f"{host.name} goes on", self._with(replace(host, stopped=False))
                continue
            if self.budget.stops and host.here is not None:
                budget = replace(self.budget, stops=self.budget.stops - 1)
                world = replace(self, budget=budget)
                yield f"{host.name} is stopped", world._with(replace(host, stopped=True))
            if host.state.held or host.state.lifted:
                due = Owner(host.state).next_s
                if due is not None and host.clock >= due:
                    yield f"{host.name} is awake", self._owner(host, Tick())
            if self.budget.restarts and host.here is not None:
                yield f"{host.name} restarts", self._restart(host)
            yield from self._acts(host)
        for request in self.network:
            yield f"the store takes {request.kind} of {request.host}", self._apply(request)
        for answer in self.answers:
            if not self._host(answer.host).stopped:
                yield f"{answer.host} hears of {answer.kind}", self._hear(answer)

    def _time(self) -> Iterator[tuple[str, World]]:
        budget = replace(self.budget, ticks=self.budget.ticks - 1)
        on = tuple(replace(h, clock=h.clock + 1) for h in self.hosts)
        yield "a tick", replace(self, hosts=on, budget=budget)._checked()
        for host in self.hosts:
            if host.losses:
                slow = replace(host, losses=host.losses - 1)
                yield (
                    f"a tick that {host.name} loses",
                    replace(
                        self,
                        hosts=tuple(slow if h.name == host.name else h for h in on),
                        budget=budget,
                    )._checked(),
                )

    def _restart(self, host: Host) -> World:
        """A new host process finds the keeper and its epoch; it has no memory of the store."""
        assert host.here is not None
        fresh = State(host.name, host.state.run + 1, TERM)
        new = replace(host, state=fresh, sights=(), busy="", number=host.number + 1)
        budget = replace(self.budget, restarts=self.budget.restarts - 1)
        world = replace(self, budget=budget)._with(new)
        return world._owner(new, Hold(S, host.here.epoch)) if host.here.until else world

    def _acts(self, host: Host) -> Iterator[tuple[str, World]]:
        if host.busy:
            yield f"{host.name} gives up waiting", self._gives_up(host)
            return
        pinned = host.here is not None and host.here.until is None
        for name, count in self.budget.takes:
            if name == host.name and count and host.here is None and host.clock >= host.patient:
                takes = tuple((n, c - 1) if n == name else (n, c) for n, c in self.budget.takes)
                yield f"{name} wants the session", self._read(host, "take", takes=takes)
                if self.budget.invalidations:
                    less = self.budget.invalidations - 1
                    yield (
                        f"{name} invalidates",
                        self._read(host, "invalidate", invalidations=less),
                    )
        if self.budget.releases and host.here is not None:
            yield f"{host.name} ends it and releases", self._release(host, host.here.epoch)
        if self.budget.on and pinned:
            yield (
                f"{host.name} makes it re-homable",
                self._read(host, "on", on=self.budget.on - 1),
            )
        if self.budget.off and host.here is not None and not pinned:
            yield f"{host.name} pins it", self._read(host, "off", off=self.budget.off - 1)

    # ------------------------------------------------------------ the parts

    def _with(self, host: Host) -> World:
        hosts = tuple(host if h.name == host.name else h for h in self.hosts)
        live = {(h.name, h.state.number) for h in hosts if h.state.waiting}
        live |= {(h.name, h.number) for h in hosts if h.busy}
        answers = frozenset(a for a in self.answers if (a.host, a.number) in live)
        return replace(self, hosts=hosts, answers=answers)

    def _host(self, name: str) -> Host:
        return next(h for h in self.hosts if h.name == name)

    def _send(self, request: Request) -> World:
        mine = [r for r in self.network if r.host == request.host]
        mine.sort(key=lambda r: (r.sent, r.number, r.kind, r.commit or ()))  # the same in every run
        lost = mine[: max(0, len(mine) + 1 - UNDER_WAY.get(request.host, 1))]
        return replace(self, network=self.network.difference(lost) | {request})

    def _owner(self, host: Host, event: owner.Event) -> World:
        machine = Owner(host.state)
        effects = machine.handle(event, host.clock)
        host = replace(host, state=machine.state)
        sent: list[Request] = []
        for effect in effects:
            if isinstance(effect, Ask):
                sent.append(
                    Request(
                        host.name,
                        "owner",
                        effect.number,
                        effect.keys,
                        effect.commit,
                        host.clock,
                        self.budget.copies,
                    )
                )
                continue
            here = host.here
            if isinstance(effect, Superseded) or here is None or here.epoch != effect.epoch:
                continue
            if isinstance(effect, Extend):
                host = replace(host, here=Incarnation(effect.epoch, effect.until))
            elif isinstance(effect, Lift):
                host = replace(host, here=Incarnation(effect.epoch, None))
            elif isinstance(effect, Lost):
                gone = effect.found is not None and effect.found.epoch > effect.epoch
                fenced = Incarnation(effect.epoch, min(here.until or 0.0, host.clock))
                host = replace(host, here=None if gone else fenced)
        world = self._with(host)
        for request in sent:
            world = world._send(request)
        return world._checked()

    def _release(self, host: Host, epoch: int) -> World:
        owner_ = Owner(host.state)
        owner_.handle(Drop(S), host.clock)
        host = replace(self.ended(host), state=owner_.state)
        return self._read(host, "release", epoch, releases=self.budget.releases - 1)

    @staticmethod
    def ended(host: Host) -> Host:
        """The incarnation ends before its lease is released."""
        return replace(host, here=None)

    def _read(self, host: Host, kind: str, epoch: int = 0, **spent: object) -> World:
        """Ask for the records that a change needs."""
        number = host.number + 1
        budget = replace(self.budget, **spent)
        keys = (session_key(S), *(machine_key(h.name) for h in self.hosts))
        world = replace(self, budget=budget)._with(replace(host, number=number, busy=kind))
        return world._send(Request(host.name, kind, number, keys, None, host.clock, 0, epoch))

    def _apply(self, request: Request) -> World:
        store = dict(self.store)
        left = {replace_copies(request)} if request.copies and request.commit else set()
        world = replace(self, network=self.network.difference([request]) | left)
        found: tuple[tuple[str, Stored], ...] = ()
        revision = 0
        if request.commit is None:
            found = tuple((key, store.get(key, NOTHING)) for key in request.keys)
        elif all(
            store.get(key, NOTHING).revision == wanted for key, wanted in request.commit.expect
        ):
            revision = self.revision + 1
            store |= {key: Stored(value, revision) for key, value in request.commit.puts}
            world = replace(world, store=tuple(sorted(store.items())), revision=revision)
        answer = Answered(
            request.host,
            request.kind,
            request.number,
            found,
            revision,
            request.sent,
            request.epoch,
        )
        host = self._host(request.host)
        expected = (
            host.state.waiting and host.state.number == request.number
            if request.kind == "owner"
            else host.busy and host.number == request.number
        )
        return replace(world, answers=world.answers | {answer}) if expected else world

    def _hear(self, answer: Answered) -> World:
        world = replace(self, answers=self.answers - {answer})
        host = self._host(answer.host)
        if answer.kind == "owner":
            return world._owner(host, owner.Answer(answer.number, answer.found, answer.revision))
        if answer.found:
            return world._change(host, answer)
        if not answer.revision:  # the compare failed; the operator may try again
            return world._with(replace(host, busy=""))
        return world._done(replace(host, busy=""), answer)

    def _change(self, host: Host, answer: Answered) -> World:
        """The records are known: decide, and send the commit."""
        records = dict(answer.found)
        was = lease(records[session_key(S)])
        theirs = records[machine_key(was.owner)] if was is not None else NOTHING
        found = Found(records[session_key(S)], theirs, records[machine_key(host.name)])
        me = Self(host.name, host.state.run, TERM, DRIFT)
        sights = Sights(dict(host.sights))
        epoch = host.here.epoch if host.here is not None else answer.epoch
        taken, commit = 0, None
        try:
            if answer.kind == "take":
                taken, commit = changes.take(S, 0, found, me, sights, host.clock)
            elif answer.kind == "invalidate":
                commit = changes.invalidate(S, found, me, "x", 0.0)
            elif answer.kind == "release":
                commit = changes.release(S, answer.epoch, found, me, "x", 0.0)
            elif host.here is not None:
                on = answer.kind == "on"
                commit = changes.set_rehomable(
                    S, epoch, on, found, me, "x", 0.0, sights, host.clock
                )
                if on:
                    deadline = Incarnation(epoch, host.clock + TERM)
                    host = replace(host, here=deadline)
        except Wait as e:  # a look before the end of the wait would change nothing
            host = replace(host, sights=tuple(sights.seen.items()), patient=host.clock + e.left)
            return self._again(replace(self, answers=self.answers - {answer}), host)
        except Denied:
            pass
        host = replace(host, sights=tuple(sights.seen.items()))
        if commit is None:
            return self._with(replace(host, busy=""))
        number = host.number + 1
        request = Request(
            host.name,
            answer.kind,
            number,
            (),
            commit,
            host.clock,
            self.budget.copies,
            taken or epoch,
        )
        return self._with(replace(host, number=number))._send(request)._checked()

    def _again(self, world: World, host: Host) -> World:
        takes = tuple((n, 1) if n == host.name else (n, c) for n, c in world.budget.takes)
        budget = replace(world.budget, takes=takes)
        return replace(world, budget=budget)._with(replace(host, busy=""))

    def _gives_up(self, host: Host) -> World:
        """No answer comes. A change of our own session is looked at again by the owner."""
        kind, host = host.busy, replace(host, busy="", number=host.number + 1)
        world = self._with(host)
        if kind in ("on", "off") and host.here is not None and host.here.until is not None:
            return world._owner(host, Hold(S, host.here.epoch))
        return world

    def _done(self, host: Host, answer: Answered) -> World:
        """A commit took effect."""
        world = self._with(host)
        if answer.kind == "take":
            begun = Incarnation(answer.epoch, answer.sent + TERM)
            host = replace(host, here=begun)
            world = replace(world._with(host), top=max(self.top, answer.epoch))
            return world._owner(host, Hold(S, answer.epoch))
        if answer.kind in ("on", "off") and host.here is not None:
            return world._owner(host, Hold(S, host.here.epoch))
        return world._checked()

    def _checked(self) -> World:
        acting = [
            (h.name, h.here.epoch)
            for h in self.hosts
            if h.here is not None and (h.here.until is None or h.clock < h.here.until)
        ]
        fault = ""
        if len(acting) > 1:
            fault = f"two incarnations act: {acting}"
        elif acting and acting[0][1] < self.top:
            fault = f"epoch {acting[0][1]} acts after epoch {self.top} began"
        return replace(self, fault=fault) if fault else self


def canonical(world: World) -> World:
    """The same world with small numbers: worlds that behave alike become equal.

    Revisions and numbers of requests are only compared with each other. A request whose compare
    must fail and whose answer is not awaited has no effect.
    """
    store = dict(world.store)
    hosts = {h.name: h for h in world.hosts}
    kept: list[Request] = []
    for r in world.network:
        host = hosts[r.host]
        awaited = (
            host.state.waiting and r.number == host.state.number
            if r.kind == "owner"
            else bool(host.busy) and r.number == host.number
        )
        possible = r.commit is not None and all(
            store.get(key, NOTHING).revision == wanted for key, wanted in r.commit.expect
        )
        if awaited or possible:
            kept.append(r._replace(number=0 if awaited else -1, sent=r.sent if awaited else 0.0))
    used = {one.revision for one in store.values()}
    used |= {rev for r in kept if r.commit for _, rev in r.commit.expect}
    used |= {h.state.revision for h in world.hosts}
    used |= {one.revision for a in world.answers for _, one in a.found}
    used |= {a.revision for a in world.answers}
    used |= {mark[2] for h in world.hosts for _, (mark, _) in h.sights if _invalid(mark)}  # type: ignore[index]
    rank = {rev: n for n, rev in enumerate(sorted(used - {-1, 0}), 1)} | {-1: -1, 0: 0}

    def ranked(one: Stored) -> Stored:
        new = rank[one.revision]
        return one if new == one.revision else Stored(one.value, new)

    def plain(h: Host) -> Host:
        sights = tuple(
            (key, ((mark[0], mark[1], rank[mark[2]]) if _invalid(mark) else mark, at))  # type: ignore[index]
            for key, (mark, at) in h.sights
        )
        state = h.state
        plain_state = (
            not (state.number or state.until or (state.due if state.waiting else state.sent))
            and rank[state.revision] == state.revision
        )
        if plain_state and not h.number and sights == h.sights:
            return h
        if not plain_state:
            state = dataclasses.replace(
                state,
                number=0,
                until=0.0,
                revision=rank[state.revision],
                sent=state.sent if state.waiting else 0.0,
                due=0.0 if state.waiting else state.due,
            )
        return replace(h, number=0, sights=sights, state=state)

    return replace(
        world,
        hosts=tuple(plain(h) for h in world.hosts),
        store=tuple((key, ranked(one)) for key, one in world.store),
        revision=len(rank) - 2,
        network=frozenset(
            r._replace(commit=_ranked(r.commit, rank) if r.commit else None) for r in kept
        ),
        answers=frozenset(
            a._replace(
                number=0,
                revision=rank[a.revision],
                found=tuple((key, ranked(one)) for key, one in a.found),
            )
            for a in world.answers
        ),
    )


def _invalid(mark: object) -> bool:
    return isinstance(mark, tuple) and mark[0] == INVALIDATED


def _ranked(commit: Commit, rank: dict[int, int]) -> Commit:
    return Commit(tuple((key, rank[rev]) for key, rev in commit.expect), commit.puts)


def replace_copies(request: Request) -> Request:
    return request._replace(copies=request.copies - 1)


def held_by_a(
    budget: Budget, others: str = "b", rehomable: bool = True, slow: int = 1, term: float = TERM
) -> World:
    """Machine a has the session, and has just renewed; no other machine has looked yet."""
    record = Machine(1, 1, term)
    store = {
        machine_key("a"): Stored(encode(record), 1),
        session_key(S): Stored(encode(Lease(1, "a", HELD, rehomable)), 2),
    }
    held = ((S, 1),) if rehomable else ()
    state = State("a", 1, term, 1, 1, term, 1.0, held=held)
    a = Host("a", state, losses=slow, here=Incarnation(1, term if rehomable else None))
    rest = (Host(name, State(name, 1, TERM)) for name in others)
    return World((a, *rest), tuple(sorted(store.items())), 2, frozenset(), frozenset(), budget, 1)


__all__ = ["Budget", "World", "canonical", "held_by_a"]
