"""Listings for people: aligned, short, and unable to act on the terminal."""

from __future__ import annotations

import io
import json
import sys

import pytest

from holdfast.faces.cli import output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (59.4, "59s"),
        (60, "1.0m"),
        (599, "10.0m"),
        (600, "10m"),
        (3600, "1.0h"),
        (86400, "1.0d"),
        (864000, "10d"),
        (1e9, "11574d"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1.0K"), (1 << 20, "1.0M"), (3 << 30, "3.0G")],
)
def test_amounts(count: int, text: str) -> None:
    assert output.amount(count) == text


def test_a_table_is_aligned_and_clean() -> None:
    made = output.table(("A", "LONG"), [("x", "y"), ("wide cell", "\x1b[31m\n")])
    assert made == "A          LONG\nx          y\nwide cell  \\x1b[31m\\x0a"


def test_p4_a_cell_cannot_reorder_its_row() -> None:
    made = output.table(("A",), [("x\u202egpj.sh",), ("\u200bx",), ("café",)])
    assert made == "A\nx\\u{202e}gpj.sh\n\\u{200b}x\ncafé"


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\u2066", "\u3164"])
def test_t4_foreign_text_cannot_reorder_or_hide_a_line(hidden: str) -> None:
    """`who` prints names of files that a session chose."""
    assert output.clean(f"a{hidden}b é") == f"a\\u{{{ord(hidden):x}}}b é"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_is_one_line_with_any_content_and_destination(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"name": "é€😀", "path": "/tmp/\udcff", "control": "\x1b\n"}
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    output.put_json(value)
    sys.stdout.flush()
    assert raw.getvalue().count(b"\n") == 1 and b"\x1b" not in raw.getvalue()
    assert json.loads(raw.getvalue().decode(encoding)) == value


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output.color(io.StringIO()) is False

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.color(Tty()) is True
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.color(Tty()) is False
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert output.color(Tty()) is False
