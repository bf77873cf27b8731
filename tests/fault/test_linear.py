"""The linearizability checker accepts what a session may do and names the fault in other histories.

Judged by hand and by brute force.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.checkers.history import Fault, Kind, Outcome
from tests.support.checkers.linear import NOT_SAID, Act, Model, Operation, check_linear, search
from tests.support.examples import examples

NEVER = math.inf


def kinds(faults: list[Fault]) -> list[Kind]:
    return [fault.kind for fault in faults]


def wrote(
    who: str,
    text: str,
    begin: float,
    end: float,
    outcome: Outcome = Outcome.ACKED,
    number: int = 0,
    holder: str | None = NOT_SAID,
) -> Operation:
    return Operation(who, Act.WRITE, begin, end, outcome, text, number, holder=holder)


def did(
    who: str,
    act: Act,
    begin: float,
    end: float,
    to: str = "",
    holder: str | None = NOT_SAID,
    outcome: Outcome = Outcome.ACKED,
) -> Operation:
    return Operation(who, act, begin, end, outcome, to=to, holder=holder)


A1, A2 = wrote("ann", "a1", 0, 1, number=1), wrote("ann", "a2", 2, 3, number=2)
GIVEN = did("ann", Act.HAND, 4, 5, "bob")
B1, B2 = wrote("bob", "b1", 6, 7, number=3), wrote("bob", "b2", 8, 9, number=4)
GOOD = [A1, A2, GIVEN, B1, B2]
LINES = ["a1", "a2", "b1", "b2"]


def test_a_history_without_faults_has_none() -> None:
    assert check_linear(GOOD, LINES) == []
    assert check_linear([], []) == []


@pytest.mark.parametrize(
    ("history", "received", "kind"),
    [
        (GOOD, ["a1", "a2", "a2", "b1", "b2"], Kind.DOUBLED),
        (GOOD, ["a1", "b1", "b2"], Kind.LOST),
        (GOOD, ["a1", "a2", "b1"], Kind.LOST),
        (GOOD, ["a2", "a1", "b1", "b2"], Kind.REORDERED),
        (GOOD, ["a1", "b1", "a2", "b2"], Kind.REORDERED),
        (GOOD, [*LINES, "x"], Kind.UNASKED),
        (
            [*GOOD, wrote("ann", "a3", 9, 10, Outcome.REFUSED, holder="bob")],
            [*LINES, "a3"],
            Kind.UNASKED,
        ),
        ([A1, A2, B1, B2], LINES, Kind.HOLDERS),  # no act moved the turn
        (
            [*GOOD, did("eve", Act.SHOW, 10, 11, holder="ann")],
            LINES,
            Kind.HOLDERS,
        ),  # reported for an operator that gave the turn away
        ([*GOOD, wrote("ann", "a3", 10, 11, Outcome.REFUSED, holder="eve")], LINES, Kind.HOLDERS),
        ([*GOOD, wrote("bob", "b3", 10, 11, Outcome.REFUSED, holder="bob")], LINES, Kind.HOLDERS),
        (
            [A1, did("bob", Act.SEIZE, 2, 3, holder="ann"), wrote("ann", "late", 4, 5)],
            ["a1", "late"],
            Kind.HOLDERS,
        ),
        ([A1, did("bob", Act.SEIZE, 2, 3, holder="eve")], ["a1"], Kind.HOLDERS),
        (
            [A1, wrote("ann", "a0", 2, 3, number=1)],
            ["a1", "a0"],
            Kind.REORDERED,
        ),  # two acts of one number
        (
            [wrote("ann", "a1", 0, 1, number=2), wrote("ann", "a2", 2, 3, number=1)],
            ["a1", "a2"],
            Kind.REORDERED,
        ),
        (
            [A1, did("ann", Act.RELEASE, 2, 3), did("eve", Act.SHOW, 4, 5, holder="ann")],
            ["a1"],
            Kind.HOLDERS,
        ),
        ([A1, did("bob", Act.REQUEST, 2, 3, holder="bob")], ["a1"], Kind.HOLDERS),
        ([A1, did("bob", Act.SEIZE, 2, 3), wrote("bob", "b1", 4, 5)], ["b1", "a1"], Kind.REORDERED),
    ],
)
def test_each_kind_of_fault_is_named(
    history: list[Operation], received: list[str], kind: Kind
) -> None:
    assert kinds(check_linear(history, received)) == [kind]


def test_unknown_acts_are_read_at_most_once_and_refuse_no_other() -> None:
    lost = wrote("ann", "maybe", 1.5, NEVER, Outcome.UNKNOWN)
    assert check_linear([A1, lost], ["a1"]) == check_linear([A1, lost], ["a1", "maybe"]) == []
    assert kinds(check_linear([A1, lost], ["a1", "maybe", "maybe"])) == [Kind.DOUBLED]
    assert check_linear([A1, A2, lost], ["a1", "a2", "maybe"]) == []  # the act arrived late
    in_time = wrote("ann", "maybe", 1.2, 1.8, Outcome.UNKNOWN)
    assert (
        check_linear([A1, in_time, A2], ["a1", "maybe", "a2"])
        == check_linear([A1, in_time, A2], ["a1", "a2"])
        == []
    )
    assert kinds(check_linear([A1, in_time, A2], ["a1", "a2", "maybe"])) == [Kind.REORDERED]


def test_an_unknown_seizure_may_or_may_not_have_been() -> None:
    seized = did("bob", Act.SEIZE, 1.2, 1.8, outcome=Outcome.UNKNOWN)
    assert check_linear([A1, seized, A2], ["a1", "a2"]) == []
    assert (
        check_linear([A1, seized, wrote("ann", "x", 2, 3, Outcome.REFUSED, holder="bob")], ["a1"])
        == []
    )
    assert kinds(
        check_linear([A1, seized, wrote("ann", "x", 2, 3, Outcome.REFUSED, holder="eve")], ["a1"])
    ) == [Kind.HOLDERS]


def test_a3_a_seizure_discards_only_the_end_of_the_written_input() -> None:
    seized = did("bob", Act.SEIZE, 4, 5, holder="ann")
    mine = wrote("bob", "b1", 6, 7)
    assert check_linear([A1, A2, seized, mine], ["a1", "b1"]) == []
    assert check_linear([A1, A2, seized, mine], ["b1"]) == []
    assert kinds(check_linear([A1, A2, seized, mine], ["a2", "b1"])) == [
        Kind.LOST
    ]  # a1 came before the seizure
    # After the seizure
    assert kinds(check_linear([A1, A2, seized, mine], ["a1", "a2"])) == [Kind.LOST]
    assert kinds(check_linear([A1, did("ann", Act.SEIZE, 4, 5)], [])) == [
        Kind.LOST
    ]  # not by one's own


def test_a2_a_waiting_operator_gets_the_turn_when_it_becomes_free() -> None:
    asked = did("bob", Act.REQUEST, 2, 3, holder="ann")
    freed = did("ann", Act.RELEASE, 4, 5)
    assert (
        check_linear(
            [
                A1,
                asked,
                freed,
                wrote("eve", "e1", 6, 7, Outcome.REFUSED, holder="bob"),
                wrote("bob", "b1", 6, 7),
            ],
            ["a1", "b1"],
        )
        == []
    )
    assert kinds(check_linear([A1, asked, freed, wrote("eve", "e1", 6, 7)], ["a1", "e1"])) == [
        Kind.HOLDERS
    ]
    assert (
        check_linear(
            [A1, asked, did("ann", Act.GRANT, 4, 5, "bob"), wrote("bob", "b1", 6, 7)], ["a1", "b1"]
        )
        == []
    )
    assert kinds(check_linear([A1, did("ann", Act.GRANT, 4, 5, "bob")], ["a1"])) == [Kind.HOLDERS]
    refused = did("ann", Act.REFUSE, 3.2, 3.8, "bob")
    assert check_linear([A1, asked, refused, freed, wrote("eve", "e1", 6, 7)], ["a1", "e1"]) == []


def test_a_restart_frees_the_turn_and_forgets_waiting_operators() -> None:
    asked = did("bob", Act.REQUEST, 2, 3, holder="ann")
    died = Operation("", Act.RESTART, 4, 5)
    assert check_linear([A1, asked, died, wrote("eve", "e1", 6, 7)], ["a1", "e1"]) == []
    assert kinds(
        check_linear([A1, asked, died, did("eve", Act.SHOW, 6, 7, holder="ann")], ["a1"])
    ) == [Kind.HOLDERS]


# ---------------------------------------------------------------- against brute force


def possible(history: list[Operation], received: list[str]) -> bool:
    """Decide by the definition.

    Tries every subset of unknown acts, every order that time allows, and every way in which a
    seizure finds lines unread.
    """
    unknown = [op for op in history if op.outcome is Outcome.UNKNOWN]
    for chosen in range(1 << len(unknown)):
        left_out = {id(op) for i, op in enumerate(unknown) if not chosen >> i & 1}
        for order in permutations([op for op in history if id(op) not in left_out]):
            if all(
                not later.returned < sooner.invoked
                for at, sooner in enumerate(order)
                for later in order[at + 1 :]
            ) and any(terminal == received for terminal in terminals(list(order))):
                return True
    return False


def terminals(
    order: list[Operation],
    holder: str | None = None,
    queue: tuple[str, ...] = (),
    lines: tuple[str, ...] = (),
    read: int = 0,
    last: str = "",
    number: int = 0,
    seized: bool = False,
) -> Iterator[list[str]]:
    """All inputs that the program may have read when these acts happen in sequence.

    Empty if one of the acts is impossible.
    """
    if not order:
        yield list(lines)
        return
    op, rest = order[0], order[1:]
    me = op.operator
    if op.outcome is Outcome.REFUSED:
        if op.holder == NOT_SAID or (op.holder == holder and holder != me):
            yield from terminals(rest, holder, queue, lines, read, last, number, seized)
    elif op.act is Act.WRITE and holder in (None, me) and (not op.number or op.number > number):
        yield from terminals(
            rest,
            me,
            tuple(q for q in queue if q != me),
            (*lines, op.text) if op.text else lines,
            read,
            me if op.text else last,
            op.number or number,
            seized and holder == me,
        )
    elif op.act is Act.SEIZE and op.holder in (NOT_SAID, None if holder == me else holder):
        for kept in range(read, len(lines) + 1) if last != me else (len(lines),):
            yield from terminals(
                rest,
                me,
                tuple(q for q in queue if q != me),
                lines[:kept],
                kept,
                last if last == me else "",
                number,
                True,
            )
    elif op.act is Act.SHOW and op.holder in (NOT_SAID, holder):
        yield from terminals(rest, holder, queue, lines, read, last, number, seized)
    elif op.act is Act.REQUEST and op.holder in (NOT_SAID, me if holder in (None, me) else holder):
        if holder in (None, me):
            still = seized and holder == me
            yield from terminals(
                rest, me, tuple(q for q in queue if q != me), lines, read, last, number, still
            )
        else:
            yield from terminals(
                rest,
                holder,
                queue if me in queue else (*queue, me),
                lines,
                read,
                last,
                number,
                seized,
            )
    elif op.act is Act.HAND and holder in (None, me):
        still = seized and holder == op.to
        yield from terminals(
            rest, op.to, tuple(q for q in queue if q != op.to), lines, read, last, number, still
        )
    elif op.act is Act.RELEASE:
        if holder == me:
            holder, queue = (queue[0], queue[1:]) if queue else (None, ())
            seized = False
        yield from terminals(rest, holder, queue, lines, read, last, number, seized)
    elif op.act is Act.RESTART:
        yield from terminals(
            rest, holder if seized else None, (), lines, read, last, number, seized
        )


@st.composite
def tiny(draw: st.DrawFn) -> tuple[list[Operation], list[str]]:
    history: list[Operation] = []
    moments = draw(st.permutations(range(12)))
    for n in range(draw(st.integers(1, 5))):
        begin, end = sorted(moments[2 * n : 2 * n + 2])
        who = draw(st.sampled_from(("ann", "bob")))
        act = draw(
            st.sampled_from(
                (
                    Act.WRITE,
                    Act.WRITE,
                    Act.WRITE,
                    Act.SEIZE,
                    Act.SHOW,
                    Act.REQUEST,
                    Act.HAND,
                    Act.RELEASE,
                    Act.RESTART,
                )
            )
        )
        outcome = draw(
            st.sampled_from(
                (Outcome.ACKED, Outcome.ACKED, Outcome.ACKED, Outcome.UNKNOWN, Outcome.REFUSED)
            )
        )
        if act in (Act.SHOW, Act.RELEASE, Act.RESTART):
            outcome = Outcome.ACKED
        named = (
            NOT_SAID
            if outcome is Outcome.UNKNOWN or act in (Act.HAND, Act.RELEASE, Act.RESTART)
            else draw(
                st.sampled_from(
                    (NOT_SAID, "ann", "bob")
                    if outcome is Outcome.REFUSED
                    else (NOT_SAID, "ann", "bob", None)
                )
            )
        )
        if act is Act.WRITE and outcome is not Outcome.REFUSED:
            named = NOT_SAID
        if act is Act.REQUEST and named is None:
            named = NOT_SAID
        number = (
            draw(st.sampled_from((0, 0, n + 1, 6 - n)))
            if act is Act.WRITE and outcome is Outcome.ACKED
            else 0
        )
        endless = outcome is Outcome.UNKNOWN and draw(st.booleans())
        history.append(
            Operation(
                who,
                act,
                begin,
                NEVER if endless else end,
                outcome,
                f"l{n}" if act is Act.WRITE else "",
                number,
                ("bob" if who == "ann" else "ann") if act is Act.HAND else "",
                named,
            )
        )
    lines = [
        op.text
        for op in history
        if op.text
        and (op.outcome is Outcome.ACKED or draw(st.booleans()))
        and draw(st.integers(0, 4))
    ]
    received = (
        draw(st.permutations(lines))
        if draw(st.integers(0, 2)) == 0
        else sorted(lines, key=lambda text: next(op.invoked for op in history if op.text == text))
    )
    return history, list(received)


@given(tiny())
@settings(max_examples=examples(1000), deadline=None)
def test_the_checker_agrees_with_brute_force(given_: tuple[list[Operation], list[str]]) -> None:
    history, received = given_
    refused_and_read = any(op.outcome is Outcome.REFUSED and op.text in received for op in history)
    expected = possible(history, received) and not refused_and_read
    assert (check_linear(history, received) == []) == expected, (
        list(map(str, history)),
        received,
        check_linear(history, received),
    )


# ---------------------------------------------------------------- long ones


def simulated(rng: random.Random, count: int) -> tuple[list[Operation], list[str]]:
    """The view of six operators of a correct session, with overlapping acts and lost answers."""
    names = [f"op{n}" for n in range(6)]
    free_at = dict.fromkeys(names, 0.0)
    holder: str | None = None
    queue: list[str] = []
    history: list[Operation] = []
    received: list[str] = []
    clock = 0.0
    seized = False

    def give(to: str) -> None:
        nonlocal holder, seized
        seized = seized and holder == to
        holder = to
        if to in queue:
            queue.remove(to)

    for n in range(count):
        who = rng.choice(names)
        clock = max(clock, free_at[who]) + rng.random()
        begin, end = max(free_at[who], clock - rng.random() * 3), clock + rng.random() * 3
        free_at[who] = end
        act = rng.choice(
            (Act.WRITE,) * 6 + (Act.SEIZE, Act.HAND, Act.RELEASE, Act.REQUEST, Act.SHOW)
        )
        known = rng.random() > 0.1
        outcome, named, to, text = Outcome.ACKED, NOT_SAID, "", ""
        told: str | None = named
        if rng.random() < 0.01:
            history.append(Operation("", Act.RESTART, clock - 0.1, clock + 0.1))
            holder, queue = holder if seized else None, []
            clock += 0.2
            begin = min(begin, clock)
            end = max(end, clock)
        if act in (Act.WRITE, Act.HAND) and holder not in (None, who):
            outcome, told = Outcome.REFUSED, holder
            text = f"line {n}" if act is Act.WRITE else ""
        elif act is Act.WRITE:
            text = f"line {n}"
            if holder != who:
                give(who)
            received.append(text)
        elif act is Act.SEIZE:
            told = holder if holder != who else None
            give(who)
            seized = True
        elif act is Act.HAND:
            to = rng.choice(names)
            give(to)
        elif act is Act.SHOW:
            told = holder
        elif act is Act.REQUEST:
            if holder in (None, who):
                give(who)
                told = who
            else:
                told = holder
                if who not in queue:
                    queue.append(who)
        elif holder == who:
            holder, seized = queue.pop(0) if queue else None, False
        if not known and outcome is Outcome.ACKED:
            outcome, told = Outcome.UNKNOWN, NOT_SAID
            end = NEVER if rng.random() < 0.2 else end
        history.append(Operation(who, act, begin, end, outcome, text, 0, to, told))
    return history, received


@pytest.mark.parametrize("seed", range(3))
def test_long_histories_are_decided_quickly(seed: int) -> None:
    rng = random.Random(seed)
    history, received = simulated(rng, 800)
    begun = time.process_time()
    assert check_linear(history, received) == []
    assert time.process_time() - begun < 10
    order = search(history, Model(received)).order
    assert [op.text for op in order if op.act is Act.WRITE and op.text in set(received)] == received


@pytest.mark.parametrize("seed", range(5))
def test_one_fault_in_a_long_history_is_found(seed: int) -> None:
    rng = random.Random(seed)
    history, received = simulated(rng, 400)
    at = rng.randrange(2, len(received) - 2)
    sure = {op.text for op in history if op.outcome is Outcome.ACKED}
    doubled = [*received[:at], received[at], *received[at:]]
    assert kinds(check_linear(history, doubled)) == [Kind.DOUBLED]
    by = {op.text: op for op in history}
    swaps = [
        i
        for i in range(len(received) - 1)
        if by[received[i]].returned < by[received[i + 1]].invoked
    ]
    i = rng.choice(swaps)
    assert check_linear(
        history, [*received[:i], received[i + 1], received[i], *received[i + 2 :]]
    ), i
    last_seizure = max(i for i, op in enumerate(history) if op.act is Act.SEIZE)
    after = [
        text
        for text in received
        if text in sure
        and by[text].invoked
        > max(
            op.returned
            for op in history[: last_seizure + 1]
            if op.act is Act.SEIZE and op.outcome is not Outcome.UNKNOWN
        )
    ]
    if after and not any(op.act is Act.SEIZE and op.returned == NEVER for op in history):
        gone = rng.choice(after)
        assert check_linear(history, [text for text in received if text != gone])
