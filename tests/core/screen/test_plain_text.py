"""Terminal output as plain text for searching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.screen.plain_text import plain


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"a\r\nb\rc\nd", "a\nb\nc\nd"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq#0\x1b\\after", "after"),
        (b"\x1b(Bascii\x1b=", "ascii"),
        (b"bell\x07 back\x08space\x7f", "bell backspace"),
        (b"tab\there", "tab\there"),
        ("é€😀".encode(), "é€😀"),
        (b"half \xe2\x82", "half \ufffd"),
        (b"\x1b[?2004h$ ", "$ "),
        (b"\x1b]133;A\x07$ \x1b]133;B\x07ls", "$ ls"),
        (b"", ""),
    ],
)
def test_sequences_go_and_text_stays(data: bytes, text: str) -> None:
    assert plain(data) == text


@given(st.binary(max_size=300))
def test_plain_text_has_no_control_characters(data: bytes) -> None:
    text = plain(data)
    assert not any((ord(c) < 32 and c not in "\n\t") or c == "\x7f" for c in text)
