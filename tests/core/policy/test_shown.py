"""Display of foreign text: no character hides, and two texts never look the same."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.shown import foreign, read, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rm -rf x", "rm -rf x"),
        ("a\nb\tc", "a\\u{a}b\\u{9}c"),
        ("\x1b[31mred\x07\x9b", "\\u{1b}[31mred\\u{7}\\u{9b}"),
        ("a\u202eb\u2066c\u200d\ufeff", "a\\u{202e}b\\u{2066}c\\u{200d}\\u{feff}"),
        ("a\u200bb\u00adc\u2060", "a\\u{200b}b\\u{ad}c\\u{2060}"),
        ("a\u00a0b\u3000c", "a\\u{a0}b\\u{3000}c"),
        ("/\u0338\u0338x", "/\\u{338}\\u{338}x"),
        ("\u3164\u2800\ufe0f\U000e0001", "\\u{3164}\\u{2800}\\u{fe0f}\\u{e0001}"),
        ("grün 日本 привет", "grün 日本 привет"),
        ("\\u{202e}", "\\u{5c}u{202e}"),
        ("r\\m \\n", "r\\m \\n"),
        ("\udcff", "\\u{dcff}"),
    ],
)
def test_invisible_characters_are_written_out(text: str, expected: str) -> None:
    assert shown(text) == expected


@given(st.text(st.characters(), max_size=40) | st.text("\\u{}5c2a\n\u202e\u0301e", max_size=20))
def test_two_texts_never_look_the_same(text: str) -> None:
    line = shown(text)
    assert read(line) == text
    assert all(
        unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in line
    )


def test_other_alphabets_are_pointed_out() -> None:
    assert foreign("r\u043c -rf x") and not foreign("rm -rf x \u2014")
