"""A canonical spelling for bytes inside text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import base64url


@given(st.binary(max_size=100))
def test_bytes_come_back(data: bytes) -> None:
    assert base64url.decode(base64url.encode(data)) == data


@given(st.text(max_size=20) | st.text("ABab01-_=+/ \n", max_size=20))
def test_a_text_is_a_valid_spelling_or_refused(text: str) -> None:
    try:
        data = base64url.decode(text)
    except ValueError:
        return
    assert base64url.encode(data) == text


@pytest.mark.parametrize(
    "text", ["A", "AB", "AA=", "AA==", "A A", "AA\n", "+/8A", None, b"AA", 7, "ＡＡ"]
)
def test_other_spellings_and_types_are_refused(text: object) -> None:
    with pytest.raises(ValueError):
        base64url.decode(text)
