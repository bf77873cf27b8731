"""The letterbox on a real terminal: libghostty is compared with a plain clipping."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyghostty import Terminal

from holdfast.core.screen.letterbox import (
    FOLLOW_DIVISOR,
    MAX_TITLE,
    MIN_VIEW,
    Cell,
    Frame,
    Letterbox,
    Line,
)
from tests.support.examples import examples

RED, BLUE_ON_WHITE = b"\x1b[31m", b"\x1b[1;34;47m"
ALPHABET = (*"abcXYZ019 .#", "é", "ß", "日", "本", "ｗ", "😀", "e\u0301", " ", " ")
Point = tuple[int, int]
WIDE = frozenset("日本ｗ😀")


def line(text: str, sgr: bytes = b"") -> Line:
    """A line of cells; combining marks join the character before them."""
    cells: list[Cell] = []
    for char in text:
        if char == "\u0301":
            cells[-1] = cells[-1]._replace(text=cells[-1].text + char)
        else:
            cells.append(Cell(char, 2 if char in WIDE else 1, sgr))
    return tuple(cells)


def frame(
    *lines: str, cursor: Point = (0, 0), visible: bool = True, cols: int = 10, rows: int = 4
) -> Frame:
    return Frame(cols, rows, *cursor, visible, tuple(line(text) for text in lines), "")


def grid(shown: Frame) -> list[list[str]]:
    """One entry per column; the second half of a wide character is empty."""
    rows = []
    for y in range(shown.rows):
        columns: list[str] = []
        for cell in shown.lines[y] if y < len(shown.lines) else ():
            columns += [cell.text] + [""] * (cell.width - 1)
        rows.append((columns + [" "] * shown.cols)[: shown.cols])
    return rows


def clipped(shown: Frame, cols: int, rows: int, left: int, top: int) -> list[str]:
    """Return the expected window: halves of wide characters become spaces."""
    out = []
    for columns in grid(shown)[top : top + rows]:
        part = columns[left : left + cols]
        if part and part[0] == "":
            part[0] = " "
        if left + cols < shown.cols and columns[left + cols] == "":
            part[-1] = " "
        out.append(composed("".join(part).rstrip()))
    return out


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


class Viewer:
    """A terminal of the viewer's size with a history, and the letterbox that draws there."""

    def __init__(self, cols: int, rows: int, holder: str = "", before: bytes = b"") -> None:
        self.terminal = Terminal(cols, rows)
        self.replies: list[bytes] = []
        self.terminal.on_reply(self.replies.append)
        self.terminal.feed(b"".join(b"history %d\r\n" % i for i in range(rows + 3)) + before)
        self.history = self.terminal.get("scrollback_rows", "size_t")
        self.box = Letterbox(cols, rows, holder)

    def show(self, shown: Frame) -> bytes:
        data = self.box.render(shown)
        self.terminal.feed(data)
        assert self.terminal.get("scrollback_rows", "size_t") == self.history
        assert self.replies == []
        return data

    def rows(self) -> list[str]:
        rows = composed(self.terminal.text()).split("\n")
        return [row.rstrip() for row in rows] + [""] * (self.terminal.size[1] - len(rows))

    @property
    def cursor(self) -> Point | None:
        return self.terminal.cursor if self.terminal.mode(25) else None

    def check(self, shown: Frame) -> None:
        """The terminal shows the frame, the edge and the cursor."""
        cols, rows = self.terminal.size
        left, top = self.box.offset
        content = clipped(shown, cols, rows, left, top)
        for y, row in enumerate(self.rows()):
            if y < len(content) and cols <= shown.cols:
                assert row == content[y]
            elif y < len(content):
                assert row.startswith(content[y].ljust(shown.cols - wide_columns(content[y])) + "│")
            elif y == len(content):
                assert set(row) & {"─", "┘"}
            else:
                assert row == ""
        x, y = shown.cursor_x - left, shown.cursor_y - top
        inside = 0 <= x < cols and 0 <= y < rows
        assert self.cursor == ((x, y) if shown.cursor_visible and inside else None)


def wide_columns(text: str) -> int:
    """How many more columns than characters a composed string has."""
    return sum(char in WIDE for char in text)


@st.composite
def frames(draw: st.DrawFn, cols: int | None = None, rows: int | None = None) -> Frame:
    cols = cols or draw(st.integers(1, 24))
    rows = rows or draw(st.integers(1, 10))
    lines = []
    for _ in range(draw(st.integers(0, rows))):
        cells: list[Cell] = []
        left = draw(st.integers(0, cols))
        while left > 0:
            text = draw(st.sampled_from(ALPHABET))
            cell = Cell(
                text,
                2 if text in WIDE else 1,
                draw(st.sampled_from((b"", b"", RED, BLUE_ON_WHITE))),
            )
            if cell.width > left:
                break
            cells.append(cell)
            left -= cell.width
        lines.append(tuple(cells))
    cursor = draw(st.integers(0, cols - 1)), draw(st.integers(0, rows - 1))
    title = draw(st.sampled_from(("", "title", "a\x1b]b")))
    return Frame(cols, rows, *cursor, draw(st.booleans()), tuple(lines), title)


views = st.tuples(st.integers(MIN_VIEW, 30), st.integers(MIN_VIEW, 14))


# -- larger


def test_s6_larger_terminal_shows_the_screen_its_edge_and_the_sizing_operator() -> None:
    viewer = Viewer(24, 7, "ada")
    viewer.show(frame("hello", "日本語", "", "0123456789", cursor=(5, 0), cols=10))
    assert viewer.rows() == [
        "hello     │",
        "日本語    │",
        "          │",
        "0123456789│",
        "──────────┘",  # too narrow for the note
        "",
        "",
    ]
    viewer.show(frame("hello", cols=20))
    assert viewer.rows()[0] == "hello               │"
    assert viewer.rows()[4] == "─ 20x4 of ada ──────┘"
    assert viewer.terminal.style(0, 4)["faint"]
    assert not viewer.terminal.style(0, 0)["faint"]


def test_note_on_the_right_when_nothing_is_below() -> None:
    viewer = Viewer(30, 4, "ada")
    viewer.show(frame("hello"))
    assert viewer.rows() == ["hello     │ 10x4 of ada", *["          │"] * 3]
    narrow = Viewer(12, 4, "ada")
    narrow.show(frame("hello"))
    assert narrow.rows() == ["hello     │"] + ["          │"] * 3


def test_note_below_when_nothing_is_on_the_right() -> None:
    viewer = Viewer(20, 6)
    viewer.show(frame("hello", cols=20))
    assert viewer.rows() == ["hello", "", "", "", "─ 20x4 ─────────────", ""]
    viewer.box.holder = "日本"
    viewer.show(frame("hello", cols=20))
    assert viewer.rows()[4] == "─ 20x4 of 日本 ─────"


# -- smaller


def test_window_cuts_wide_characters_to_spaces_in_their_colours() -> None:
    viewer = Viewer(5, 2)
    shown = Frame(9, 2, 0, 0, False, (line("a日本本本", BLUE_ON_WHITE),), "")
    viewer.show(shown)
    assert viewer.rows()[0] == "a日本"
    viewer.box._left = 2
    viewer.show(shown)
    assert viewer.rows()[0] == " 本本"
    assert viewer.terminal.style(0, 0)["bg"] == ("palette", 7)
    viewer.box._left = 3
    viewer.show(shown)
    assert viewer.rows()[0] == "本本"
    assert viewer.terminal.style(4, 0)["bg"] == ("palette", 7)


def test_window_follows_the_cursor_by_a_third_and_stays_while_it_is_inside() -> None:
    box = Letterbox(30, 12)
    wide = frame(cols=200, rows=60)
    box.render(wide)
    for x in (29, 5, 29):
        box.render(replace(wide, cursor_x=x))
        assert box.offset == (0, 0)
    box.render(replace(wide, cursor_x=30))
    assert box.offset == (10, 0)
    for x in (39, 10, 39):  # back and forth at both edges: no column moves
        box.render(replace(wide, cursor_x=x))
        assert box.offset == (10, 0)
    box.render(replace(wide, cursor_x=9))
    assert box.offset == (0, 0)
    box.render(replace(wide, cursor_x=199, cursor_y=59))
    assert box.offset == (170, 48)


def test_hidden_cursor_is_not_followed() -> None:
    box = Letterbox(10, 4)
    box.render(frame(cols=80, rows=24, cursor=(70, 20), visible=False))
    assert box.offset == (0, 0)
    box.render(frame(cols=80, rows=24, cursor=(70, 20)))
    assert box.offset == (61, 17)


# -- output


def test_nothing_for_the_same_frame_and_little_for_the_cursor() -> None:
    viewer = Viewer(30, 8, "ada")
    shown = frame("hello", "world", cursor=(1, 1))
    assert viewer.show(shown)
    assert viewer.show(shown) == b""
    assert len(viewer.show(replace(shown, cursor_x=2))) < 30
    assert viewer.cursor == (2, 1)
    assert len(viewer.show(replace(shown, cursor_visible=False))) < 30
    assert viewer.cursor is None
    one_row = viewer.show(replace(shown, lines=(line("hello"), line("there"))))
    assert b"there" in one_row
    assert b"hello" not in one_row
    viewer.check(replace(shown, lines=(line("hello"), line("there"))))


def test_one_synchronized_update_without_clearing_or_scrolling() -> None:
    for data in (
        Letterbox(30, 8).render(frame("a")),
        Letterbox(5, 2).render(frame("a" * 10, "b" * 10)),
    ):
        assert data.startswith(b"\x1b[?2026h")
        assert data.endswith(b"\x1b[?2026l")
        assert not {b"\n", b"\r"} & {data[i : i + 1] for i in range(len(data))}
        assert b"J" not in data


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (0, 24), (80, 1), (1, 24), (-3, 5)])
def test_degenerate_terminals_get_nothing_and_recover(size: Point) -> None:
    box = Letterbox(*size)
    assert box.render(frame("hello")) == b""
    viewer = Viewer(20, 6)
    viewer.show(frame("hello"))
    viewer.box.resize(*size)
    assert viewer.box.render(frame("other")) == b""
    viewer.box.resize(20, 6)
    viewer.show(frame("again"))
    viewer.check(frame("again"))


def test_degenerate_session_gives_nothing() -> None:
    assert Letterbox(20, 6).render(frame(cols=0, rows=0)) == b""


DIRTY = (
    b"\x1b[3;5r\x1b[?6h",  # margins, origin
    b"\x1b[?69h\x1b[3;9s",  # margins left and right
    b"\x1b[4h\x1b[1;31;44m",  # insert mode, colours
    b"\x1b(0\x0e\x1b)0",  # line drawing
    b"\x1b[?7l\x1b[?25l",
    b"\x1b]0;unfinished",
    b"\x1b[12;",
)


@pytest.mark.parametrize("before", DIRTY)
def test_the_first_drawing_copes_with_any_state_of_the_terminal(before: bytes) -> None:
    for cols, rows in ((20, 6), (6, 3)):
        viewer = Viewer(cols, rows, before=before)
        shown = frame("qqqqqqqqqq", "hello", "xyz", "0123456789", cursor=(2, 1))
        viewer.show(shown)
        viewer.check(shown)
        assert viewer.terminal.mode(7)
        assert viewer.terminal.style(cols - 1, rows - 1)["bg"] is None


def test_resize_draws_everything_again() -> None:
    viewer = Viewer(20, 6)
    shown = frame("hello", "日本語", cursor=(3, 1))
    viewer.show(shown)
    viewer.terminal.resize(7, 3)
    viewer.history = viewer.terminal.get("scrollback_rows", "size_t")
    viewer.box.resize(7, 3)
    viewer.show(shown)
    viewer.check(shown)


def test_titles_are_set_once_without_control_characters() -> None:
    box = Letterbox(20, 6)
    assert b"\x1b]2;" not in box.render(frame("a"))
    titled = replace(frame("a"), title="vim\x1b]52;c;AAAA\x07\x9b" + "x" * 1000)
    data = box.render(titled)
    title = data.split(b"\x1b]2;")[1].split(b"\x1b\\")[0].decode()
    assert title == ("vim ]52;c;AAAA  " + "x" * 1000)[:MAX_TITLE]
    assert box.render(titled) == b""
    assert b"\x1b]2;\x1b\\" in box.render(frame("a"))


def test_control_characters_in_cells_are_never_written() -> None:
    cells = tuple(Cell(text, 1, b"") for text in ("\x1b[6n", "\x9b", "\n", "x"))
    hostile = replace(frame(), lines=(cells,))
    viewer = Viewer(20, 6)
    viewer.show(hostile)
    assert viewer.rows()[0].startswith(" ")


def test_column_is_stated_again_after_characters_of_several_code_points() -> None:
    """A terminal with a different opinion on the width does not shift the rest of the row."""
    family = Cell("👩\u200d👩\u200d👧", 2, b"")
    shown = replace(frame(), lines=((family, *line("abc")),))
    viewer = Viewer(20, 6)
    viewer.terminal.feed(b"\x1b[?2027l")  # the terminal takes the text for three wide characters
    viewer.show(shown)
    assert viewer.terminal.text().split("\n")[0].rstrip().endswith("abc     │")
    data = Letterbox(20, 6).render(shown)
    assert "👧\x1b[3Gabc".encode() in data


def test_character_that_the_terminal_takes_for_wider_does_not_scroll_it() -> None:
    """The bottom row ends with a narrow character that the terminal takes for wide."""
    last = (*line("abcd"), Cell("日", 1, b""))
    viewer = Viewer(5, 2)
    viewer.show(Frame(5, 2, 0, 0, True, (line("first"), last), ""))
    assert viewer.rows()[0] == "first"
    assert viewer.rows()[1].startswith("abcd")


@pytest.mark.parametrize(
    ("last", "seen"),
    [
        (Cell("e\u0301", 1, b""), "abc é"),
        (Cell("x\u0307\u0323", 1, b""), "abc " + unicodedata.normalize("NFC", "x\u0307\u0323")[0]),
        (Cell("👩\u200d👧", 2, b""), "abc👩"),
    ],
)
def test_last_column_keeps_its_accent_to_itself(last: Cell, seen: str) -> None:
    viewer = Viewer(5, 2)
    viewer.show(Frame(5, 2, 0, 0, True, (line("#####"),), ""))
    viewer.show(Frame(5, 2, 0, 0, True, ((*line("abc "[: 5 - last.width]), last),), ""))
    assert viewer.rows()[0] == seen


# -- properties


@settings(max_examples=examples(250), deadline=None)
@given(views, st.lists(frames(), min_size=1, max_size=4))
def test_any_frames_on_any_terminal(view: Point, sequence: list[Frame]) -> None:
    viewer = Viewer(*view, holder="bob")
    for shown in sequence:
        viewer.show(shown)
        viewer.check(shown)
        assert viewer.box.render(shown) == b""


@settings(max_examples=examples(80), deadline=None)
@given(
    views,
    st.lists(frames(cols=20, rows=8), min_size=2, max_size=5),
)
def test_differences_lead_to_the_same_screen_as_drawing_afresh(
    view: Point, sequence: list[Frame]
) -> None:
    viewer = Viewer(*view)
    for shown in sequence:
        viewer.show(shown)
        viewer.check(shown)
    afresh = Viewer(*view)
    afresh.box._left, afresh.box._top = viewer.box.offset
    afresh.show(sequence[-1])
    assert afresh.box.offset == viewer.box.offset
    assert afresh.rows() == viewer.rows()
    assert afresh.cursor == viewer.cursor
    cols, rows = view
    for y in range(rows):
        for x in range(cols):
            assert afresh.terminal.style(x, y) == viewer.terminal.style(x, y)


@settings(max_examples=examples(300), deadline=None)
@given(views, st.lists(st.tuples(st.integers(0, 59), st.integers(0, 29)), min_size=1, max_size=30))
def test_window_keeps_the_cursor_and_does_not_jitter(view: Point, moves: list[Point]) -> None:
    box = Letterbox(*view)
    edges = max(0, 60 - view[0]), max(0, 30 - view[1])
    before = (0, 0)
    for cursor in moves:
        box.render(frame(cols=60, rows=30, cursor=cursor))
        for axis in (0, 1):
            start, size, was = box.offset[axis], view[axis], before[axis]
            assert 0 <= start <= edges[axis]
            assert start <= cursor[axis] < start + size
            if was <= cursor[axis] < was + size:
                assert start == was
            else:
                assert abs(start - was) >= size / FOLLOW_DIVISOR or start in (0, edges[axis])
        before = box.offset
