"""Typed input is sent in order, in bounds, and kept until the session has taken it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.attach.unacked import Unacked
from holdfast.model.limits import INPUT_IN_FLIGHT_BYTES, UNACKED_INPUT_BYTES


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=40_000), st.just(b"")), max_size=40))
def test_s3_everything_typed_is_sent_once_and_in_order(steps: list[bytes]) -> None:
    """Typing and acknowledging in any order; an empty step is the session taking its input."""
    unacked, sent, number = Unacked(), list[bytes](), 0
    for step in [*steps, *([b""] * 80)]:
        if step:
            unacked.type(step)
        else:
            unacked.acked(number)
        while (data := unacked.next()) is not None:
            number += 1
            unacked.sent(number, data)
            sent.append(data)
            assert sum(len(d) for _, d in unacked) < INPUT_IN_FLIGHT_BYTES + 40_000
    assert b"".join(sent) == b"".join(steps)


def test_the_keyboard_is_not_read_while_the_session_takes_no_input() -> None:
    unacked = Unacked()
    while not unacked.full:
        unacked.type(bytes(16_384))
        if (data := unacked.next()) is not None:
            unacked.sent(1, data)
    assert unacked.pressing
    unacked.acked(1)
    while (data := unacked.next()) is not None:
        unacked.sent(2, data)
    assert not unacked.full or UNACKED_INPUT_BYTES < INPUT_IN_FLIGHT_BYTES


def test_refused_input_is_not_sent_again() -> None:
    unacked = Unacked()
    for n in (1, 2, 3):
        unacked.sent(n, b"x")
    unacked.drop(2)
    assert [n for n, _ in unacked] == [1, 3]
