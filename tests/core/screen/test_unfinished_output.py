"""How much text stands in front of a prompt."""

from __future__ import annotations

import pytest

from holdfast.core.screen.unfinished_output import LOOK_BYTES, unfinished_columns


@pytest.mark.parametrize(
    ("output", "columns"),
    [
        (b"", 0),
        (b"a\r\n", 0),
        (b"a\r\nabc", 3),
        (b"abc", 3),
        (b"\n\x1b[?2004l\rabc", 3),
        (b"\n\x1b[1;31mab\x1b[0mc\x1b]0;title\x07", 3),
        (b"\n" + b"x" * 80, 0),
        (b"\n" + b"x" * 83, 3),
        (b"\nabc\rx", None),
        (b"\n\x1b[5Cabc", None),
        (b"\nabc\x08", None),
        ("\nä".encode(), None),
        (b"x" * LOOK_BYTES, None),
    ],
)
def test_columns_of_unfinished_output(output: bytes, columns: int | None) -> None:
    assert unfinished_columns(output, 80) == columns
