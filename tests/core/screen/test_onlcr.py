"""The inverse of ONLCR returns exactly the bytes of a program, for any chunks."""

from __future__ import annotations

import itertools
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.screen.onlcr import OnlcrInverse, in_force

pieces = st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"\x00", b"\xff"]) | st.binary(max_size=8)
written = st.lists(pieces).map(b"".join)


def terminal(data: bytes) -> bytes:
    return b"".join(b"\r\n" if byte == 10 else bytes([byte]) for byte in data)


def undone(data: bytes, cuts: list[int]) -> bytes:
    inverse = OnlcrInverse()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [inverse.feed(memoryview(data)[a:b]) for a, b in itertools.pairwise(edges)]
    return b"".join(pieces) + inverse.close()


@given(written, st.lists(st.integers(0, 1 << 16), max_size=12))
def test_inverse_of_the_terminal(data: bytes, cuts: list[int]) -> None:
    assert undone(terminal(data), cuts) == data


def test_every_byte_one_at_a_time() -> None:
    data = bytes(range(256)) + b"\r\n\r\r\n\n\n\r"
    raw = terminal(data)
    assert undone(raw, list(range(len(raw)))) == data


@given(written, st.lists(st.integers(0, 1 << 16), max_size=12))
def test_cuts_do_not_matter_for_any_stream(data: bytes, cuts: list[int]) -> None:
    assert undone(data, cuts) == data.replace(b"\r\n", b"\n")


def test_nothing_but_a_return_is_held_back() -> None:
    inverse = OnlcrInverse()
    assert inverse.feed(b"abc") == b"abc"
    assert inverse.feed(b"d\r") == b"d"
    assert inverse.feed(b"") == b""
    assert inverse.feed(b"\r") == b"\r"
    assert inverse.close() == b"\r"
    assert inverse.close() == b""


USUAL, PLAIN, RAW = termios.OPOST | termios.ONLCR, termios.OPOST, 0


@pytest.mark.parametrize(
    ("before", "now", "is_so"),
    [
        (USUAL, USUAL, True),
        (USUAL, RAW, True),
        (USUAL, PLAIN, False),
        (PLAIN, RAW, False),
        (PLAIN, USUAL, True),
        (RAW, RAW, False),
        (RAW, USUAL, True),
        (None, USUAL, True),
        (None, RAW, False),
        (None, None, True),
        (USUAL, None, True),
        (RAW, None, False),
    ],
)
def test_the_newline_mode_is_not_asked_of_a_program_that_has_the_terminal_raw(
    before: int | None, now: int | None, is_so: bool
) -> None:
    """`sudo` has the terminal raw for a moment, just when the command has begun."""
    assert in_force(before, now) is is_so
