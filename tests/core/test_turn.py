"""The turn: properties over every sequence of acts, and the rules by example."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.turn import Denied, Freed, Taken, Turn

OPERATORS = st.sampled_from(["ann", "bob", "eve"])


def test_a2_first_write_takes_a_free_turn_and_others_are_told_who_has_it() -> None:
    turn = Turn(idle_s=10)
    assert turn.write("ann", 0) == [Taken("ann", None)]
    assert turn.write("ann", 5) == []
    assert turn.write("bob", 7) == [Denied("ann", 0, 2)]
    assert turn.holder(14.9) == "ann" and turn.holder(15) is None
    assert turn.write("bob", 15) == [Freed("ann"), Taken("bob", "ann")]


def test_a2_a_holder_that_leaves_holds_nothing() -> None:
    turn = Turn(idle_s=10)
    turn.write("ann", 0)
    assert turn.release("bob", 1) == []
    assert turn.holder(1) == "ann"
    assert turn.release("ann", 1) == [Freed("ann")]
    assert turn.release("ann", 1) == []
    assert turn.holder(1) is None and turn.deadline() is None


def test_a_long_act_keeps_the_turn_for_as_long_as_it_lasts() -> None:
    turn = Turn(idle_s=10)
    assert turn.begin_long("ann", 0) == [Taken("ann", None)]
    assert turn.deadline() is None and turn.holder(1e9) == "ann"
    assert turn.write("bob", 1000) == [Denied("ann", 0, 1000)]
    assert turn.release("ann", 1000) == [], "a client that left does not end its run"
    assert turn.begin_long("ann", 1000) == []
    turn.end_long(1001)
    assert turn.holder(5000) == "ann"
    turn.end_long(5000)
    assert turn.holder(5009.9) == "ann" and turn.holder(5010) is None
    turn.end_long(6000)
    assert turn.state.long_acts == 0


def test_a_denied_long_act_is_not_counted() -> None:
    turn = Turn(idle_s=10)
    turn.write("ann", 0)
    assert turn.begin_long("bob", 1) == [Denied("ann", 0, 1)]
    assert turn.state.long_acts == 0 and turn.holder(10) is None


def test_taking_is_unilateral_and_says_from_whom() -> None:
    turn = Turn(idle_s=10)
    turn.begin_long("ann", 0)
    assert turn.take("bob", 1) == [Taken("bob", "ann")]
    assert turn.write("ann", 2) == [Denied("bob", 1, 1)]
    assert turn.take("bob", 3) == []
    turn.end_long(4)  # the act of the displaced holder ends: nothing of bob's changes
    assert turn.holder(12.9) == "bob"


class Turns(RuleBasedStateMachine):
    """Against a model in the simplest words: who may write now is one operator or nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = Turn(idle_s=10)
        self.now = 0.0
        self.holder: str | None = None
        self.until = 0.0
        self.longs = 0

    def current(self) -> str | None:
        return self.holder if self.holder is not None and (self.longs or self.now < self.until) else None

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 9.99, 10.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def _write(self, operator: str) -> bool:
        if self.current() not in (None, operator):
            return False
        if self.current() is None:
            self.longs = 0
        self.holder, self.until = operator, self.now + 10
        return True

    @rule(operator=OPERATORS)
    def write(self, operator: str) -> None:
        before = self.current()
        effects = self.turn.write(operator, self.now)
        allowed = self._write(operator)
        assert allowed == (not effects or not isinstance(effects[-1], Denied))
        if not allowed:
            denied = effects[-1]
            assert isinstance(denied, Denied) and denied.holder == before and denied.idle_for >= 0
        if allowed and before is None:
            assert isinstance(effects[-1], Taken) and effects[-1].holder == operator

    @rule(operator=OPERATORS)
    def begin_long(self, operator: str) -> None:
        effects = self.turn.begin_long(operator, self.now)
        if self._write(operator):
            self.longs += 1
        else:
            assert isinstance(effects[-1], Denied)

    @rule()
    def end_long(self) -> None:
        self.turn.end_long(self.now)
        if self.longs:
            self.longs -= 1
            self.until = self.now + 10

    @rule(operator=OPERATORS)
    def take(self, operator: str) -> None:
        before = self.current()
        effects = self.turn.take(operator, self.now)
        assert effects == ([] if before == operator else [Taken(operator, before)])
        self.longs = self.longs if before == operator else 0
        self.holder, self.until = operator, self.now + 10

    @rule(operator=OPERATORS)
    def release(self, operator: str) -> None:
        effects = self.turn.release(operator, self.now)
        if self.holder == operator and not self.longs:
            self.holder = None
            assert effects == [Freed(operator)] or effects == []
        elif self.current() is None:
            self.holder = None

    @rule()
    def expire(self) -> None:
        before = self.current()
        effects = self.turn.expire(self.now)
        assert not effects or before is None
        if before is None:
            self.holder = None
            assert self.turn.expire(self.now) == []

    @invariant()
    def one_holder_at_most_and_the_same_as_in_the_model(self) -> None:
        assert self.turn.holder(self.now) == self.current()
        deadline = self.turn.deadline()
        assert deadline is None or self.turn.holder(deadline) is None
        assert self.turn.state.long_acts == (self.longs if self.turn.state.holder is not None else 0)


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
