"""R3, exhaustively at small scale: at most one incarnation acts, in every history.

Two or three machines and one store; requests are delayed, lost and repeated; machines pause,
restart and lose ticks of their clock. The same worlds with one rule broken must show a fault,
otherwise the check would prove nothing. Long random histories follow.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.lease import changes, owner, rules
from holdfast.core.lease.records import Lease, Stored
from tests.support.recovery.lease_explore import explore
from tests.support.recovery.lease_world import LONG, Budget, World, held_by_a

STATES_MAX = 60_000

WORLDS = {
    "a successor takes the session over": held_by_a(Budget(4)),
    "a restart of the owner": held_by_a(Budget(3, restarts=1)),
    "a forced invalidation": held_by_a(Budget(3, invalidations=1)),
    "made re-homable meanwhile": held_by_a(Budget(3, on=1), rehomable=False),
    "a restart with a shorter term": held_by_a(Budget(3, restarts=1), term=LONG),
    "a release": held_by_a(Budget(3, releases=1)),
    "a release of a session that was just taken": held_by_a(
        Budget(2, releases=1, restarts=1, takes=(("b", 1),)), slow=0
    ),
    "a stopped host": held_by_a(Budget(3, stops=1)),
    "an invalidation while its host is stopped": held_by_a(Budget(3, stops=1, invalidations=1)),
    "pinned meanwhile": held_by_a(Budget(2, off=1)),
}


LARGE = {
    "two successors": held_by_a(Budget(3, takes=(("b", 1), ("c", 1))), "bc", slow=0),
    "a longer history": held_by_a(Budget(5)),
    "a release, and the way back": held_by_a(Budget(2, releases=2, takes=(("b", 1), ("a", 1)))),
    "a longer history with a restart": held_by_a(Budget(4, restarts=1)),
    "a longer history with a shorter term": held_by_a(Budget(4, restarts=1), term=LONG),
    "a longer history with an invalidation": held_by_a(Budget(4, invalidations=1)),
}


@pytest.mark.soak
@pytest.mark.parametrize("world", LARGE.values(), ids=LARGE)
def test_r3_at_most_one_incarnation_acts_in_every_longer_history(world: World) -> None:
    found = explore(world, 2_000_000)
    assert not found.fault, "\n".join((found.fault, *found.history))


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_r3_at_most_one_incarnation_acts_in_every_history(world: World) -> None:
    found = explore(world, STATES_MAX)
    assert not found.fault, "\n".join((found.fault, *found.history))
    assert found.states > 500, "the world must be worth a check"


def _no_drift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "wait_s", lambda term, drift: term)


def _from_the_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "valid_until", lambda sent, answered, term: answered + term)


def _no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "left", lambda *_: 0.0)


def _no_wait_if_invalidated(patch: pytest.MonkeyPatch) -> None:
    real = changes.left

    def left(session: str, found: changes.Found, *rest: Any) -> float:
        now = found.lease
        return (
            0.0 if now is not None and now.state == "invalidated" else real(session, found, *rest)
        )

    patch.setattr(changes, "left", left)


def _silent_takeover(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "_tell", lambda *_: None)


def _blind_renewal(patch: pytest.MonkeyPatch) -> None:
    """The owner renews without a look at its sessions."""
    real = owner.Owner._read

    def read(self: owner.Owner, found: dict[str, Stored], now: float) -> Any:
        ours = {
            f"session/{session}": Stored(
                records_encode(Lease(epoch, self.state.me, rehomable=True)), 1
            )
            for session, epoch in self.state.held
        }
        return real(self, found | ours, now)

    from holdfast.core.lease.records import encode as records_encode

    patch.setattr(owner.Owner, "_read", read)


def _late_deadline(patch: pytest.MonkeyPatch) -> None:
    """Making a session re-homable is no renewal."""
    real = changes.set_rehomable

    def set_rehomable(*arguments: Any) -> Any:
        commit = real(*arguments)
        return replace_commit(commit)

    def replace_commit(commit: Any) -> Any:
        return commit._replace(puts=commit.puts[:1], expect=commit.expect[:1])

    patch.setattr(changes, "set_rehomable", set_rehomable)


def _lifted_at_once(patch: pytest.MonkeyPatch) -> None:
    """The deadline goes before a further renewal has succeeded."""
    real = owner.Owner._read

    def read(self: owner.Owner, found: dict[str, Stored], now: float) -> Any:
        effects = real(self, found, now)
        lifts = [owner.Lift(*one) for one in self.state.lifted]
        self.state = replace(self.state, lifted=())
        return [*effects, *lifts]

    patch.setattr(owner.Owner, "_read", read)


def _own_term_only(patch: pytest.MonkeyPatch) -> None:
    """The record has the term of the present host process, not that of running deadlines."""
    patch.setattr(owner.Owner, "_remember_term", lambda self, state, record, now: state)


def _released_while_it_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "ended", staticmethod(lambda host: host))


BROKEN = {
    "a release before the end": (_released_while_it_runs, "a release"),
    "no wait while the host is stopped": (_no_wait, "a stopped host"),
    "a shorter term counts at once": (_own_term_only, "a restart with a shorter term"),
    "the drift is left out": (_no_drift, "a successor takes the session over"),
    "the term counts from the answer": (_from_the_answer, "a successor takes the session over"),
    "a successor does not wait": (_no_wait, "a successor takes the session over"),
    "no wait after an invalidation": (_no_wait_if_invalidated, "a forced invalidation"),
    "a takeover does not tell the owner": (_silent_takeover, "a successor takes the session over"),
    "a renewal without a look": (_blind_renewal, "a successor takes the session over"),
    "re-homable without a renewal": (_late_deadline, "made re-homable meanwhile"),
    "the deadline goes at once": (_lifted_at_once, "made re-homable meanwhile"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_r3_the_check_finds_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule, world = BROKEN[name]
    break_rule(monkeypatch)
    assert explore(WORLDS[world], STATES_MAX).fault


WALKS, STEPS, PHASE = 25, 150, 30


@pytest.mark.parametrize("others", ["b", "bc"])
def test_r3_long_random_histories_have_no_fault(others: str) -> None:
    assert walk(others, range(WALKS)), "sessions must move in these histories"


@pytest.mark.soak
@pytest.mark.parametrize("others", ["b", "bc"])
def test_r3_many_new_random_histories_have_no_fault(others: str) -> None:
    first = random.SystemRandom().randrange(1 << 40)
    assert walk(others, range(first, first + 40 * WALKS))


def walk(others: str, seeds: Iterable[int]) -> int:
    """In how many of the random histories a session moved; none may have a fault."""
    takes = tuple((name, 2) for name in ("a", *others))
    budget = Budget(60, 1, 4, takes, 3, 3, 3, releases=2, stops=2)
    moved = 0
    for seed in seeds:
        chosen, world, paused = random.Random(seed), held_by_a(budget, others, slow=0), ""
        for n in range(STEPS):
            if n % PHASE == 0:
                paused = chosen.choice(["a", *others, "none"])
            steps = list(world.steps())
            ticks = [one for one in steps if one[0] == "a tick"]
            rest = [one for one in steps if one[0] != "a tick" and one[0][:2] != f"{paused} "]
            if not steps:
                break
            if chosen.random() < 0.9:  # otherwise hardly any change would be completed
                rest = [one for one in rest if "gives up" not in one[0]] or rest
            # Time passes in one of three steps: otherwise no wait would ever be over.
            quick = not ticks or (rest and chosen.random() < 0.67)
            name, world = chosen.choice((rest if quick else ticks) or steps)
            assert not world.fault, (seed, name, world.fault)
        moved += world.top > 1
    return moved
