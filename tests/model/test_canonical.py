"""A canonical spelling: decoded bytes encode to the same bytes, and no other bytes decode."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.canonical import NotCanonical, decode, encode

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_encoded_values_decode_to_themselves(value: Any) -> None:
    try:
        data = encode(value)
    except NotCanonical:  # too deep, or half of a character in a key
        return
    assert decode(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1,"a":1}',
        b"1.0",
        b"1e3",
        b"NaN",
        b"Infinity",
        b"-0",
        b"01",
        b'"\\u0061"',
        b'"\\/"',
        b" 1",
        b"1 ",
        b"\xff",
        b"",
        b"[1,]",
        b"18446744073709551616",
        b"[[[[[[[[[[1]]]]]]]]]]",
        b"\xef\xbb\xbf1",
        b'{"a":1}x',
        b"'a'",
        b"-9223372036854775809",
    ],
)
def test_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(NotCanonical):
        decode(data)


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_is_canonical(data: bytes) -> None:
    try:
        value = decode(data)
    except NotCanonical:
        return
    assert encode(value) == data


def test_values_without_a_canonical_spelling_are_refused() -> None:
    for value in (1.5, b"x", {1: 2}, object(), float("nan"), {"a": {1, 2}}):
        with pytest.raises(NotCanonical):
            encode(value)
