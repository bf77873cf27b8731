"""The turn: properties over every sequence of acts, and the rules by example."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.session.turn import (
    POLICIES,
    Asked,
    Denied,
    Freed,
    Placed,
    Taken,
    Turn,
    Withdrawn,
)
from tests.support.examples import examples

NEVER = float("inf")
OPERATORS = st.sampled_from(["ann", "bob", "eve"])


def test_a2_first_write_takes_a_free_turn_and_a_denial_names_the_holder() -> None:
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
    turn.end_long("ann", 1001)
    assert turn.holder(5000) == "ann"
    turn.end_long("ann", 5000)
    assert turn.holder(5009.9) == "ann" and turn.holder(5010) is None
    turn.end_long("ann", 6000)
    assert turn.state.long_acts == 0


def test_a5_an_operator_without_the_right_loses_the_turn_and_its_long_acts() -> None:
    turn = Turn(idle_s=10)
    turn.begin_long("ann", 0)
    turn.request("bob", 1)
    assert turn.lose("eve", 2) == [] and turn.holder(2) == "ann"
    assert turn.lose("ann", 2) == [Freed("ann"), Taken("bob", "ann", "request")]
    assert turn.end_long("ann", 3) == [] and turn.holder(3) == "bob", (
        "the end of its long act ends no other operator's turn"
    )
    assert turn.lose("bob", 4) == [Freed("bob")] and turn.state.long_acts == 0


def test_a_denied_long_act_is_not_counted() -> None:
    turn = Turn(idle_s=10)
    turn.write("ann", 0)
    assert turn.begin_long("bob", 1) == [Denied("ann", 0, 1)]
    assert turn.state.long_acts == 0 and turn.holder(10) is None


def test_a3_seizing_is_unilateral_and_names_the_previous_holder() -> None:
    turn = Turn(idle_s=10, policy=POLICIES["drop"])
    turn.begin_long("ann", 0)
    assert turn.take("bob", 1) == [Taken("bob", "ann", "seize")]
    assert turn.write("ann", 2) == [Denied("bob", 1, 1, seized=True)]
    assert turn.take("bob", 3) == []
    assert turn.begin_long("bob", 3) == []
    turn.end_long("ann", 4)  # the act of the displaced holder ends without effect on bob
    assert turn.holder(1e6) == "bob", "bob's own act goes on"


def test_a8_a_seized_turn_stays_until_released_handed_over_or_its_holder_is_gone() -> None:
    turn = Turn(idle_s=10, gone_s=50)
    turn.take("bob", 0)
    assert turn.holder(1e6) == "bob" and turn.deadline() is None, "reading is no reason to lose it"
    assert turn.write("ann", 500) == [Denied("bob", 0, 500, seized=True)]
    assert turn.leave("bob", 500) == [] and turn.presence(False, 500) == []
    assert turn.holder(549) == "bob" and turn.deadline() == 550
    assert turn.presence(True, 549) == [] and turn.holder(1e6) == "bob", "bob came back in time"
    turn.presence(False, 600)
    turn.presence(False, 640)
    assert turn.expire(650) == [Freed("bob")], "gone since 600"
    turn.take("bob", 700)
    assert turn.take("eve", 701) == [Taken("eve", "bob", "seize")], "a second seize works at once"
    assert turn.hand("eve", "ann", 702) == [Taken("ann", "eve", "hand")]
    assert turn.holder(712) is None, "a turn that was handed over is an ordinary turn"
    turn.take("ann", 800)
    assert turn.release("ann", 900) == [Freed("ann")]


def test_a2_a_waiting_operator_gets_the_turn_when_it_is_free() -> None:
    turn = Turn(idle_s=10)
    assert turn.request("ann", 0) == [Taken("ann", None, "request")], (
        "a free turn is had for the asking"
    )
    assert turn.request("bob", 1) == [Asked("bob", "ann")]
    assert turn.request("eve", 2) == [Asked("eve", "ann")]
    assert turn.request("bob", 3) == [Asked("bob", "ann")], "to ask twice is to ask once"
    assert turn.waiting() == ("bob", "eve")
    assert turn.release("ann", 4) == [Freed("ann"), Taken("bob", "ann", "request")]
    assert turn.write("ann", 5) == [Denied("bob", 4, 1)]
    assert turn.expire(14) == [Freed("bob"), Taken("eve", "bob", "request")]


def test_a2_the_holder_grants_refuses_and_hands_over() -> None:
    turn = Turn(idle_s=10)
    turn.write("ann", 0)
    turn.request("bob", 1)
    turn.request("eve", 1)
    assert turn.grant("bob", "bob", 2) == [Denied("ann", 0, 2)], "it is not bob's to grant"
    assert turn.refuse("eve", "bob", 2) == [Denied("ann", 0, 2)]
    assert turn.refuse("ann", "bob", 2) == [Withdrawn("bob", "refused")]
    assert turn.grant("ann", "bob", 2) == [], "an operator that does not ask is granted nothing"
    assert turn.hand("ann", "bob", 3) == [Taken("bob", "ann", "hand")]
    assert turn.waiting() == ("eve",)
    assert turn.grant("bob", "eve", 4) == [Taken("eve", "bob", "grant")]
    assert turn.waiting() == ()


def test_a2_an_operator_who_leaves_neither_holds_nor_waits() -> None:
    turn = Turn(idle_s=10)
    turn.write("ann", 0)
    turn.request("bob", 1)
    turn.request("eve", 1)
    assert turn.leave("bob", 2) == [Withdrawn("bob", "left")]
    assert turn.leave("ann", 3) == [Freed("ann"), Taken("eve", "ann", "request")]


def test_a2_the_policy_for_requests_can_be_replaced() -> None:
    turn = Turn(idle_s=10, policy=POLICIES["drop"])
    turn.write("ann", 0)
    assert turn.request("bob", 1) == [Withdrawn("bob", "dropped")]
    turn = Turn(idle_s=10, policy=POLICIES["humans-first"])
    turn.write("ann", 0)
    turn.request("bot", 1, "agent")
    turn.request("eve", 2, "human")
    assert turn.waiting() == ("eve", "bot")
    assert turn.release("ann", 3) == [Freed("ann"), Taken("eve", "ann", "request")]


def test_a2_a_plugin_orders_the_queue_and_drops_new_and_waiting_requests() -> None:
    turn = Turn(idle_s=10)
    assert not turn.contended("bob", 0), "a free turn"
    turn.write("ann", 0)
    assert turn.contended("bob", 1) and not turn.contended("ann", 1)
    assert turn.request("bob", 1, policy=Placed(("bob",))) == [Asked("bob", "ann")]
    assert not turn.contended("bob", 2), "it waits already"
    assert turn.request("eve", 2, policy=Placed(("eve", "bob"))) == [Asked("eve", "ann")]
    assert turn.waiting() == ("eve", "bob")
    assert turn.request("dan", 3, policy=Placed(("eve", "bob"))) == [Withdrawn("dan", "dropped")]
    # bob left while the plug-in decided
    turn.withdraw("bob", 4)
    effects = turn.request("fay", 5, policy=Placed(("fay", "bob")))
    assert effects == [Withdrawn("eve", "dropped"), Asked("fay", "ann")]
    assert turn.release("ann", 6) == [Freed("ann"), Taken("fay", "ann", "request")]


def test_the_queue_is_bounded() -> None:
    turn = Turn(idle_s=10)
    turn.write("ann", 0)
    effects = [turn.request(f"o{i}", 1)[-1] for i in range(200)]
    assert sum(isinstance(e, Asked) for e in effects) == len(turn.waiting()) < 200
    assert effects[-1] == Withdrawn("o199", "dropped")


class Turns(RuleBasedStateMachine):
    """Compare with a simple model: at most one writer, and a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = Turn(idle_s=10, gone_s=50)
        self.now = 0.0
        self.holder: str | None = None
        self.until = 0.0
        self.longs = 0
        self.seized = False
        self.line: list[str] = []

    def lapsed(self) -> bool:
        return self.holder is not None and not self.longs and self.now >= self.until

    def settle(self) -> None:
        """Time has passed: a lapsed turn goes to the first in the line."""
        if self.lapsed():
            self.give(self.line[0] if self.line else None)

    def used(self) -> None:
        if not self.seized:
            self.until = self.now + 10

    def give(self, operator: str | None) -> None:
        self.holder, self.longs, self.until, self.seized = operator, 0, self.now + 10, False
        self.line = [o for o in self.line if o != operator]

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 9.99, 10.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(operator=OPERATORS, long=st.booleans())
    def write(self, operator: str, long: bool) -> None:
        effects = (self.turn.begin_long if long else self.turn.write)(operator, self.now)
        self.settle()
        if self.holder in (None, operator):
            taken = self.holder is None
            if taken:
                self.give(operator)
            self.used()
            self.longs += long
            assert not any(isinstance(e, Denied) for e in effects)
            assert not taken or (isinstance(effects[-1], Taken) and effects[-1].holder == operator)
        else:
            assert (
                isinstance(effects[-1], Denied)
                and effects[-1].holder == self.holder
                and effects[-1].idle_for >= 0
            )

    @rule(operator=OPERATORS)
    def end_long(self, operator: str) -> None:
        self.turn.end_long(operator, self.now)
        if self.holder == operator and self.longs:
            self.longs -= 1
            self.used()
        self.settle()

    @rule(operator=OPERATORS)
    def request(self, operator: str) -> None:
        effects = self.turn.request(operator, self.now)
        self.settle()
        if self.holder is None:
            self.give(operator)
            assert isinstance(effects[-1], Taken)
        elif self.holder != operator:
            if operator not in self.line:
                self.line.append(operator)
            assert effects[-1] == Asked(operator, self.holder)

    @rule(operator=OPERATORS, to=OPERATORS, grant=st.booleans())
    def hand(self, operator: str, to: str, grant: bool) -> None:
        effects = (self.turn.grant if grant else self.turn.hand)(operator, to, self.now)
        asked = to in self.line
        self.settle()
        if grant and not asked:
            return
        if self.holder not in (None, operator):
            assert to == self.holder or isinstance(effects[-1], Denied)
        elif to != self.holder:
            self.give(to)

    @rule(operator=OPERATORS, to=OPERATORS)
    def refuse(self, operator: str, to: str) -> None:
        self.turn.refuse(operator, to, self.now)
        self.settle()
        if self.holder in (None, operator) and to in self.line:
            self.line.remove(to)

    @rule(operator=OPERATORS)
    def take(self, operator: str) -> None:
        before = None if self.lapsed() else self.holder
        effects = self.turn.take(operator, self.now)
        assert effects == ([] if before == operator else [Taken(operator, before, "seize")])
        if before != operator:
            self.give(operator)
        self.seized, self.until = True, NEVER

    @rule(operator=OPERATORS, leaves=st.booleans())
    def release(self, operator: str, leaves: bool) -> None:
        (self.turn.leave if leaves else self.turn.release)(operator, self.now)
        if leaves and operator in self.line:
            self.line.remove(operator)
        if self.holder == operator and not (leaves and self.seized):
            if not self.longs:
                self.give(self.line[0] if self.line else None)
            elif self.seized:
                self.seized, self.until = False, self.turn.state.last_write + 10
        self.settle()

    @rule(connected=st.booleans())
    def presence(self, connected: bool) -> None:
        self.turn.presence(connected, self.now)
        self.settle()
        if self.seized and connected:
            self.until = NEVER
        elif self.seized and self.until == NEVER:
            self.until = self.now + 50

    @rule(operator=OPERATORS)
    def lose(self, operator: str) -> None:
        self.turn.lose(operator, self.now)
        if self.holder == operator:
            self.give(self.line[0] if self.line else None)
        self.settle()

    @rule()
    def expire(self) -> None:
        self.turn.expire(self.now)
        self.settle()
        assert self.turn.expire(self.now) == []

    @invariant()
    def one_holder_at_most_and_the_same_as_in_the_model(self) -> None:
        assert self.turn.holder(self.now) == (None if self.lapsed() else self.holder)
        assert self.turn.waiting() == tuple(self.line)
        assert self.holder not in self.line
        deadline = self.turn.deadline()
        assert deadline is None or self.turn.holder(deadline) is None
        assert self.turn.state.long_acts == (
            self.longs if self.turn.state.holder is not None else 0
        )


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
