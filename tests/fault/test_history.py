"""The history checker accepts every allowed history and names the fault in every other.

A checker that cannot fail proves nothing.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.checkers.history import (
    Fault,
    Gap,
    Kind,
    Outcome,
    Output,
    Screen,
    Sent,
    check_exits,
    check_input,
    check_output,
    check_processes,
    difference,
    first_difference,
)
from tests.support.examples import examples


def kinds(faults: list[Fault]) -> list[Kind]:
    return [fault.kind for fault in faults]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[Sent]], list[tuple[int, int]], random.Random]:
    """Clients' inputs with different contents, and an allowed order in which a prefix arrived."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    clients: list[list[Sent]] = []
    arrivals: list[int] = []
    for client in range(1, draw(st.integers(1, 4)) + 1):
        count = draw(st.integers(1, 12))
        arrived = draw(st.integers(0, count))
        acked = draw(st.integers(0, arrived))
        inputs = [
            Sent(
                client,
                n,
                b"<%d.%d:%s>" % (client, n, bytes(rng.choices(b"ab\x00\xff", k=rng.randrange(8)))),
                Outcome.ACKED if n <= acked else Outcome.UNKNOWN,
            )
            for n in range(1, count + 1)
        ]
        clients.append(inputs)
        arrivals += [client - 1] * arrived
    rng.shuffle(arrivals)
    seen = [0] * len(clients)
    order: list[tuple[int, int]] = []
    for who in arrivals:
        order.append((who, seen[who]))
        seen[who] += 1
    return clients, order, rng


def stream(clients: list[list[Sent]], order: list[tuple[int, int]]) -> bytes:
    return b"".join(clients[who][n].data for who, n in order)


def flat(clients: list[list[Sent]]) -> list[Sent]:
    return [one for inputs in clients for one in inputs]


@given(histories())
def test_allowed_histories_pass(
    made: tuple[list[list[Sent]], list[tuple[int, int]], random.Random],
) -> None:
    clients, order, _ = made
    assert check_input(flat(clients), stream(clients, order)) == []


@given(histories())
@settings(max_examples=examples(200))
def test_s4_an_acknowledged_input_lost_is_found(
    made: tuple[list[list[Sent]], list[tuple[int, int]], random.Random],
) -> None:
    clients, order, rng = made
    acked = [i for i, (who, n) in enumerate(order) if clients[who][n].outcome is Outcome.ACKED]
    if not acked:
        return
    del order[rng.choice(acked)]
    assert kinds(check_input(flat(clients), stream(clients, order))) == [Kind.LOST]


@given(histories())
@settings(max_examples=examples(200))
def test_s4_a_doubled_input_is_found(
    made: tuple[list[list[Sent]], list[tuple[int, int]], random.Random],
) -> None:
    clients, order, rng = made
    if not order:
        return
    again = rng.randrange(len(order))
    order.insert(rng.randrange(again + 1, len(order) + 1), order[again])
    assert kinds(check_input(flat(clients), stream(clients, order))) == [Kind.DOUBLED]


@given(histories())
@settings(max_examples=examples(200))
def test_s4_two_inputs_of_one_client_swapped_are_found(
    made: tuple[list[list[Sent]], list[tuple[int, int]], random.Random],
) -> None:
    clients, order, rng = made
    pairs = [
        (i, j)
        for i, (who, n) in enumerate(order)
        for j, (other, m) in enumerate(order)
        if who == other and m == n + 1
    ]
    if not pairs:
        return
    i, j = rng.choice(pairs)
    order[i], order[j] = order[j], order[i]
    assert kinds(check_input(flat(clients), stream(clients, order))) == [Kind.REORDERED]


@given(histories(), st.binary(min_size=1, max_size=3).filter(lambda b: b"<" not in b))
@settings(max_examples=examples(200))
def test_a7_bytes_inside_an_input_are_found(
    made: tuple[list[list[Sent]], list[tuple[int, int]], random.Random], alien: bytes
) -> None:
    clients, order, rng = made
    data = stream(clients, order)
    if not data:
        return
    at = rng.randrange(len(data) + 1)
    found = kinds(check_input(flat(clients), data[:at] + alien + data[at:]))
    assert found and found[0] in (Kind.TORN, Kind.UNASKED)


@given(histories())
@settings(max_examples=examples(200))
def test_a_missing_end_is_found(
    made: tuple[list[list[Sent]], list[tuple[int, int]], random.Random],
) -> None:
    clients, order, _ = made
    data = stream(clients, order)
    if data:
        assert kinds(check_input(flat(clients), data[:-1])) == [Kind.TORN]


def test_an_unacknowledged_input_may_not_be_overtaken() -> None:
    sent = [Sent(1, 1, b"one", Outcome.UNKNOWN), Sent(1, 2, b"two", Outcome.UNKNOWN)]
    assert check_input(sent, b"") == []
    assert kinds(check_input(sent, b"two")) == [Kind.LOST]


def test_a_refused_input_must_not_arrive() -> None:
    sent = [Sent(1, 1, b"one", Outcome.REFUSED), Sent(1, 2, b"two", Outcome.ACKED)]
    assert check_input(sent, b"two") == []
    assert kinds(check_input(sent, b"onetwo")) == [Kind.UNASKED]


def test_equal_bytes_of_two_clients_are_read_both_ways() -> None:
    sent = [
        Sent(1, 1, b"x", Outcome.ACKED),
        Sent(1, 2, b"y", Outcome.ACKED),
        Sent(2, 1, b"x", Outcome.ACKED),
        Sent(2, 2, b"z", Outcome.ACKED),
    ]
    assert check_input(sent, b"xzxy") == []
    assert check_input(sent, b"xyxz") == []
    assert kinds(check_input(sent, b"xyz")) == [Kind.LOST]


def test_hopeless_ambiguity_is_said_not_guessed() -> None:
    sent = [Sent(client, n, b"k", Outcome.ACKED) for client in range(1, 8) for n in range(1, 30)]
    assert kinds(check_input(sent, b"k" * (7 * 29 - 1))) == [Kind.UNDECIDED]


# ---------------------------------------------------------------- output

RAW = bytes(random.Random(5).choices(b"abcdefgh", k=4000))


def without_a(raw: bytes) -> bytes:
    return raw.replace(b"a", b"")


@st.composite
def shown(draw: st.DrawFn) -> tuple[list[Output | Screen | Gap], int]:
    """A correct log of RAW from offset 1000 on, with screens in between, and where it ends."""
    position = draw(st.integers(1000, 1500))
    log: list[Output | Screen | Gap] = [Screen(position)]
    for _ in range(draw(st.integers(1, 10))):
        end = min(position + draw(st.integers(0, 300)), 1000 + len(RAW))
        log.append(Output(position, end, without_a(RAW[position - 1000 : end - 1000])))
        position = end
        if draw(st.booleans()):
            log.append(Screen(position))
    return log, position


def judge(log: list[Output | Screen | Gap], until: int, may_skip: bool = False) -> list[Kind]:
    return kinds(check_output(log, RAW, strip=without_a, base=1000, until=until, may_skip=may_skip))


@given(shown())
def test_right_logs_pass(made: tuple[list[Output | Screen | Gap], int]) -> None:
    assert judge(*made) == []


@given(shown(), st.data())
@settings(max_examples=examples(200))
def test_s4_a_missing_piece_is_found(
    made: tuple[list[Output | Screen | Gap], int], data: st.DataObject
) -> None:
    log, until = made
    whole = [i for i, one in enumerate(log) if isinstance(one, Output) and one.end > one.start]
    if whole:
        del log[data.draw(st.sampled_from(whole))]
        assert judge(log, until)[0] in (Kind.HOLE, Kind.SKIPPED, Kind.INCOMPLETE)


@given(shown(), st.data())
@settings(max_examples=examples(200))
def test_s4_a_doubled_piece_is_found(
    made: tuple[list[Output | Screen | Gap], int], data: st.DataObject
) -> None:
    log, until = made
    whole = [i for i, one in enumerate(log) if isinstance(one, Output) and one.end > one.start]
    if whole:
        again = data.draw(st.sampled_from(whole))
        log.insert(again + 1, log[again])
        assert Kind.OVERLAP in judge(log, until)


@given(shown(), st.data())
@settings(max_examples=examples(200))
def test_s4_one_wrong_byte_is_found(
    made: tuple[list[Output | Screen | Gap], int], data: st.DataObject
) -> None:
    log, until = made
    filled = [i for i, one in enumerate(log) if isinstance(one, Output) and one.data]
    if filled:
        i = data.draw(st.sampled_from(filled))
        one = log[i]
        assert isinstance(one, Output)
        at = data.draw(st.integers(0, len(one.data) - 1))
        log[i] = Output(one.start, one.end, one.data[:at] + b"Z" + one.data[at + 1 :])
        assert judge(log, until) == [Kind.DIFFERENT]


def test_s5_jumps_only_where_they_are_allowed_and_told() -> None:
    log: list[Output | Screen | Gap] = [
        Screen(1000),
        Output(1000, 1010, without_a(RAW[:10])),
        Screen(1500),
        Output(1500, 1510, without_a(RAW[500:510])),
    ]
    assert judge(log, 1510, may_skip=True) == []
    assert judge(log, 1510) == [Kind.SKIPPED]
    log[2] = Gap(1010, 1500)
    assert judge(log, 1510) == []
    log[2] = Gap(1012, 1500)
    assert judge(log, 1510) == [Kind.HOLE]
    log[2] = Screen(1009)
    assert judge(log, 1510, may_skip=True)[0] is Kind.BACKWARDS


def test_output_that_ends_early_or_before_any_screen() -> None:
    assert judge([Screen(1000)], 1001) == [Kind.INCOMPLETE]
    assert judge([Output(1000, 1001, without_a(RAW[:1]))], 1001) == [Kind.HOLE]
    assert judge([Screen(1000), Output(1000, 9000, b"")], 1001) == [Kind.DIFFERENT]


@given(st.binary(max_size=200), st.binary(max_size=20), st.binary(max_size=20))
def test_first_difference(same: bytes, one: bytes, other: bytes) -> None:
    a, b = same + one, same + other
    at = first_difference(a, b)
    assert a[:at] == b[:at]
    assert at == min(len(a), len(b)) or a[at] != b[at]
    assert (difference(a, b) == "") is (a == b) and (
        a == b or f"differs {at} bytes in" in difference(a, b)
    )


# ---------------------------------------------------------------- processes


@pytest.mark.parametrize(
    ("after", "wrong"), [((7, 100), False), ((7, 101), True), ((8, 100), True), (None, True)]
)
def test_s4_another_process_is_found(after: tuple[int, int] | None, wrong: bool) -> None:
    assert bool(check_processes({"a": (7, 100)}, {"a": after})) is wrong


def test_s4_a_wrong_exit_code_is_found() -> None:
    assert check_exits({"a": 3}, {"a": 3}) == []
    assert kinds(check_exits({"a": 3, "b": 0}, {"a": 0})) == [Kind.PROCESS, Kind.PROCESS]
