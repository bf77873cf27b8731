"""S6: a painted screen, checked with xterm.js, the emulator of most web terminals and editors.

Each program's bytes go to an xterm.js terminal directly, and through our model and its painting to
another xterm.js terminal that a different program had used. Then both get the same bytes, and must
show the same: so charsets, saved cursors, regions and modes are compared by their effect.
"""

from __future__ import annotations

import pytest

from holdfast.client.attach.terminal import SAVE, farewell
from holdfast.host.terminal.screen import Screen
from tests.support.checkers.screen_oracle import differences, emulator, grid, state
from tests.support.checkers.xtermjs import Shown, shown

COLS, ROWS = 40, 8
USED = b"$ ls\r\nfile\r\n\x1b)0\x0e\x1b[?6h\x1b[2;4r"  # a terminal that was left in a bad state
LINE = b"\x1b(0lqqk\x1b(B"

# Name -> (the program's bytes, the bytes that follow).
SAME = {
    "text": (b"one\r\ntwo \x1b[31mred\x1b[0m", b" more\r\n"),
    "charset untouched": (b"text", LINE),
    "charset G1 by SO": (b"\x1b)0\x0elqk", b"lqk\x0fabc"),
    "charset G0 drawing": (b"\x1b(0lqk", b"lqk\x1b(Babc"),
    "charset by LS2": (b"\x1b*0\x1bnlqk", b"lqk\x0fabc"),
    "charset after alternate": (b"\x1b[?1049hx\x1b[?1049l", LINE),
    "region": (b"\x1b[2;4r\x1b[4;1Hbottom", b"\r\nnext\r\nlast\x1b[r"),
    "origin": (b"\x1b[3;6r\x1b[?6h\x1b[2;3Hin", b"\x1b[1;1Htop\x1b[?6l\x1b[1;1Habs"),
    "saved cursor": (b"ab\x1b[33mcd\x1b7\x1b[5;5Hxy", b"\x1b8Z"),
    "saved with charset": (b"ab\x1b(0\x1b7\x1b(B\x1b[5;5Hxy", b"\x1b8qq"),
    "alternate": (b"shell\r\n$ vi\x1b[?1049h\x1b[2J\x1b[3;3Hedit", b"\x1b[?1049lback"),
    "alternate, saved cursor": (
        b"shell\x1b[?1049h\x1b[4;9H\x1b[32m\x1b7\x1b[1;1Hedit",
        b"\x1b8here\x1b[?1049lback",
    ),
    "alternate, saved at the edge": (
        b"shell\x1b[?1049h\x1b[4;39Hab\x1b7\x1b[1;1Hedit",
        b"\x1b8c\x1b[?1049lback",
    ),
    "alternate, saved, with region and origin": (
        b"sh\x1b[?1049h\x1b[2;6r\x1b[?6h\x1b[2;2H\x1b7\x1b[?6l\x1b[8;1Hend",
        b"\x1b8x\x1b[1;1Hy",
    ),
    "saved in the alternate screen before": (
        b"a\x1b[?1049h\x1b[4;9H\x1b7\x1b[?1049l\r\n$ ",
        b"\x1b[?1049h\x1b8here",
    ),
    "link open at the cursor": (b"\x1b]8;;http://a/\x1b\\li", b"nk\x1b]8;;\x1b\\ off"),
    "link before the cursor": (b"see \x1b]8;;http://a/\x1b\\link\x1b]8;;\x1b\\", b" off"),
    "link up to the edge": (b"\x1b[2;37H\x1b]8;;http://a/\x1b\\link\x1b]8;;\x1b\\", b"off"),
    "pending wrap": (b"\x1b[2;38Habc", b"def"),
    "repeat": (b"ab", b"\x1b[3b"),
    "combining": ("e\u0301te\u0301".encode(), b"x"),
    "wide": ("日本語 x".encode(), b"y"),
    "wide up to the edge": (b"\x1b[2;37H" + "日本".encode(), "語".encode()),
    "insert mode": (b"abc\x1b[1;2H\x1b[4h", b"XY"),
    "no autowrap": (b"\x1b[?7l" + b"x" * 50, b"yz"),
    "tabs": (b"\x1b[3g\x1b[1;5H\x1bH\r", b"\tx"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[Shown, Shown]]:
    jobs = []
    for program, after in SAME.values():
        screen = Screen(COLS, ROWS, 100)
        screen.feed(program)
        jobs.append((COLS, ROWS, [program, after]))
        jobs.append((COLS, ROWS, [USED, SAVE, screen.paint(0), after]))
    ends = shown(jobs)
    return dict(zip(SAME, zip(ends[::2], ends[1::2], strict=True), strict=True))


@pytest.mark.parametrize("name", SAME)
def test_s6_a_painted_terminal_goes_on_as_the_program_expects(
    outcomes: dict[str, tuple[Shown, Shown]], name: str
) -> None:
    direct, painted = outcomes[name]
    assert painted.lines == direct.lines
    for row, expected in zip(painted.rows, direct.rows, strict=True):
        assert row == expected
    assert (painted.x, painted.y, painted.type) == (direct.x, direct.y, direct.type)


CONTESTED = {
    "emoji": "\x1b[2;1H👍 |\x1b[2;4H|",
    "skin": "\x1b[2;1H👍🏽a\x1b[2;8Hb",
    "family": "\x1b[?2027h\x1b[2;1H👨\u200d👩\u200d👧x\x1b[2;9Hb",
    "flag": "\x1b[?2027h🇨🇭x",
    "variation": "\x1b[?2027h☺️x",
    "private": "\ue0b0x",
    "at the edge": "\x1b[2;39H👍\x1b[3;1Hnext",
    "wrapped": "x" * 38 + "👍next",
    "before the cursor": "ab👍",
}


def test_s6_columns_hold_after_characters_of_contested_width() -> None:
    """The columns are those of the model, also where xterm.js counts other widths."""
    screens, jobs = [], []
    for program in CONTESTED.values():
        screen = Screen(COLS, ROWS, 100)
        screen.feed(program.encode())
        screens.append(screen)
        jobs.append((COLS, ROWS, [USED, SAVE, screen.paint(0)]))
    for name, screen, end in zip(CONTESTED, screens, shown(jobs), strict=True):
        of = emulator(screen)
        for y, row in enumerate(grid(of, of.history_rows, ROWS)):
            for x, (text, _) in enumerate(row):
                if text.isascii() and text != " ":
                    assert end.rows[y][x][0] == text, (name, x, y, end.lines)
        assert (end.x, end.y) == screen.cursor[:2], name
        assert "$ ls" in end.history, name  # and the old screen is above


def test_s6_clusters_are_painted_in_the_mode_in_which_they_were_drawn() -> None:
    one, other = Screen(COLS, ROWS, 100), Screen(COLS, ROWS, 100)
    one.feed("\x1b[?2027h👍🏽👨\u200d👩\u200d👧x".encode())
    other.feed(one.paint(0))
    assert differences(state(one), state(other)) == {}


def test_s6_lines_stay_lines_after_detach() -> None:
    (end,) = shown([(COLS, ROWS, [USED, SAVE, farewell(COLS, ROWS), LINE])])
    assert "┌──┐" in end.lines
