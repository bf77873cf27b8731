"""Unfinished input, for any typist and any pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.unfinished_input import (
    MOMENT_S,
    TEXT_BYTES,
    Piece,
    Unfinished,
    UnfinishedInput,
)

KEYS = [
    b"a",
    b"rm -rf ",
    "é".encode(),
    "漢".encode(),
    "😀".encode(),
    b"\x1b[A",
    b"\x1bOP",
    b"\x1b[1;5C",
    b"\x1bx",
    b"\x1b[200~",
    b"\x1b[201~",
    b"\t",
    b"\x7f",
]
ENDS = [b"\r", b"\n", b"\x03", b"\x04"]


def typed(*parts: tuple[str, bytes], now: float = 0.0) -> UnfinishedInput:
    typing = UnfinishedInput()
    for operator, data in parts:
        typing.typed(operator, data, now)
    return typing


def test_a7_an_unfinished_line_blocks_only_other_operators() -> None:
    typing = typed(("ann", b"rm -rf pre"))
    assert typing.in_the_way("bob", 100.0) == Unfinished("ann", "line")
    assert typing.in_the_way("ann", 100.0) is None
    assert typing.in_the_way("bob", 100.0, lines=False) is None, (
        "a program in raw mode has no lines"
    )
    typing.typed("ann", b"cious\r", 101.0)
    assert typing.in_the_way("bob", 101.0) is None


def test_a7_every_line_end_and_every_way_to_give_up_a_line_clears_it() -> None:
    for end in ENDS:
        assert typed(("ann", b"half" + end)).unfinished(9) is None
        assert typed(("ann", b"half"), ("ann", end)).unfinished(9) is None
        assert typed(("ann", b"half" + end + b"more")).pieces == [Piece("ann", b"more")]


def test_a7_a_sequence_in_two_pieces_is_unfinished_for_a_moment() -> None:
    for first in (b"\x1b", b"\x1b[", b"\x1b[1;", b"\x1bO", "漢".encode()[:2], "é".encode()[:1]):
        typing = typed(("ann", b"\r" + first), now=5.0)
        found = typing.in_the_way("bob", 5.0 + MOMENT_S / 2)
        assert (
            found is not None
            and found.operator == "ann"
            and found.kind in ("sequence", "character")
        ), first
        assert typing.in_the_way("bob", 5.0 + MOMENT_S) is None, (
            "an Escape key alone does not block others for good"
        )


def test_a7_a_paste_is_one_whole_until_its_end_even_with_line_ends_inside() -> None:
    typing = typed(("ann", b"\x1b[200~first\nsecond"))
    assert typing.in_the_way("bob", 1e6) == Unfinished("ann", "paste")
    typing.typed("ann", b"\nthird\x1b[201", 1e6)
    assert typing.in_the_way("bob", 2e6) == Unfinished("ann", "paste")
    typing.typed("ann", b"~", 2e6)
    assert typing.in_the_way("bob", 2e6) == Unfinished("ann", "line")
    assert typing.pieces == [Piece("ann", b"first\nsecond\nthird")]


def test_a6_the_next_holder_sees_the_typists_of_staged_text() -> None:
    typing = typed(("ann", b"rm -rf "))
    typing.inherit("bob")
    assert typing.in_the_way("ann", 1.0) == Unfinished("bob", "line"), "now it is bob's to finish"
    typing.typed("bob", b"./tmp", 1.0)
    assert typing.pieces == [Piece("ann", b"rm -rf "), Piece("bob", b"./tmp")]


def test_kept_input_is_bounded() -> None:
    typing = typed(*((name, b"x" * 700) for name in ("ann", "bob") * 50))
    assert sum(len(p.data) for p in typing.pieces) <= TEXT_BYTES


@given(
    st.lists(st.sampled_from(KEYS + ENDS), max_size=30), st.lists(st.integers(1, 5), max_size=60)
)
def test_a7_pieces_do_not_matter(keys: list[bytes], sizes: list[int]) -> None:
    """The same bytes leave the same state however they were cut into inputs."""
    data = b"".join(keys)
    whole, parts = typed(("ann", data)), UnfinishedInput()
    at = 0
    for size in [*sizes, len(data)]:
        parts.typed("ann", data[at : at + size], 0.0)
        at += size
    assert (whole.unfinished(0.1), whole.unfinished(9.0)) == (
        parts.unfinished(0.1),
        parts.unfinished(9.0),
    )
    assert b"".join(p.data for p in whole.pieces) == b"".join(p.data for p in parts.pieces)


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.binary(max_size=20)), max_size=20))
def test_any_bytes_at_all(parts: list[tuple[str, bytes]]) -> None:
    typing = typed(*parts)
    assert sum(len(p.data) for p in typing.pieces) <= TEXT_BYTES
