"""A session's screen drawn for a viewer whose terminal has another size.

This module decides which part of the screen the viewer sees, which frame surrounds that part, and
which bytes update the terminal from the last drawing to the next. It does not know where cells come
from (`host/terminal/screen.py` makes a `Frame`) nor when to draw.

Larger terminal: the screen stands at the top left. A dim line marks its end on the right and below.
The line below (or the room on the right) names the holder of that size. Smaller terminal: a window
on the screen.
- The window follows the cursor only when the cursor leaves it, and then by at least a third of its
  size, so that typing at an edge does not move it with every key. A hidden cursor is not followed:
  programs that hide it (top, htop) leave it anywhere.
- A smaller terminal gets no mark: all its cells show content, and a mark would hide some.
- A wide character cut by an edge becomes a space in its own colours.

Drawing:
- Rows are drawn one by one, each after a cursor position, and only rows that differ from the
  terminal's. Nothing is cleared with ED (some terminals move what `CSI 2 J` clears to the
  scrollback), no line feed is sent, and autowrap is off meanwhile: a terminal with another opinion
  on the width of a character must not wrap at the last row and scroll. So the viewer's native
  scrollback does not change.
- After a character of contested width the column is stated again. In the terminal's last column a
  character of several code points is reduced to its first (after composition): without autowrap the
  cursor stays on that column, and a combining mark would join the cell to the left.
- A full row is not followed by EL: in the pending-wrap state that would erase the last cell.
- The first drawing sets the state that drawing relies on (margins, origin, insert mode, character
  sets) and draws all rows. So does the first drawing after `resize`, because terminals reflow.
- A drawing is one synchronized update, so that no half-drawn frame is visible.

Rejected: differences inside a row (they need a model of each terminal's widths), and scrolling
regions for a screen that moved up (some terminals move scrolled-out lines to the scrollback).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.screen.contested_width import contested

MIN_VIEW = 2
"""A terminal with fewer columns or rows shows nothing useful and gets nothing."""

FOLLOW_DIVISOR = 3
"""When the cursor leaves the window, it moves by at least its size divided by this."""

MAX_TITLE = 256
"""Characters of a title that are passed on; title bars show fewer."""


class Cell(NamedTuple):
    """A visible character with its combining marks, `width` columns wide.

    `sgr` is the SGR sequence that sets its whole style after a reset, or empty.
    """

    text: str
    width: int
    sgr: bytes


Line = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A session's screen at one moment. Missing lines and the missing ends of lines are blank."""

    cols: int
    rows: int
    cursor_x: int
    cursor_y: int
    cursor_visible: bool
    lines: tuple[Line, ...]
    title: str


_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"
_WRAP_OFF, _WRAP_ON = b"\x1b[?7l", b"\x1b[?7h"
_CURSOR_OFF, _CURSOR_ON = b"\x1b[?25l", b"\x1b[?25h"
_PLAIN, _DIM, _ERASE_REST = b"\x1b[0m", b"\x1b[0;2m", b"\x1b[K"
# ST, which ends an unfinished sequence; margins, origin, insert mode, character sets, style
_KNOWN_STATE = b"\x1b\\\x1b[r\x1b[?6;69l\x1b[4l\x1b(B\x0f" + _PLAIN
_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")
_BELOW, _RIGHT, _CORNER = "─", "│", "┘"


class Letterbox:
    """A viewer's drawing: `render` gives the bytes for the terminal."""

    def __init__(self, view_cols: int, view_rows: int, holder: str = "") -> None:
        self.holder = holder  # the operator whose size the session has, named where there is room
        self._cols, self._rows = view_cols, view_rows
        self._left = self._top = 0
        self._cursor = (0, 0)
        self._shown: list[bytes] | None = None  # the rows on the viewer's terminal
        self._shown_cursor: tuple[int, int] | None = None  # None while it is hidden
        self._shown_title: str | None = None

    @property
    def offset(self) -> tuple[int, int]:
        """The column and row of the screen at the top left of the viewer's terminal."""
        return self._left, self._top

    def resize(self, view_cols: int, view_rows: int) -> None:
        """Draw all rows next time: the terminal was resized, or other programs wrote to it."""
        self._cols, self._rows = view_cols, view_rows
        self._shown = None

    def render(self, frame: Frame) -> bytes:
        """Return the bytes that make the terminal show `frame`; empty if it does already."""
        if self._cols < MIN_VIEW or self._rows < MIN_VIEW or frame.cols < 1 or frame.rows < 1:
            return b""
        self._place_window(frame)
        first = self._shown is None
        before = [] if self._shown is None else self._shown
        rows = [self._row(frame, y) for y in range(self._rows)]
        changed = [y for y, row in enumerate(rows) if first or row != before[y]]
        cursor = self._cursor_in_window(frame)
        title = frame.title.translate(_CONTROLS)[:MAX_TITLE]
        retitled = title != (self._shown_title or "")
        if not changed and not retitled and cursor == self._shown_cursor:
            return b""
        out = [_BEGIN]
        if first:
            out.append(_KNOWN_STATE)
        if retitled:
            out.append(b"\x1b]2;" + title.encode(errors="replace") + b"\x1b\\")
        if changed:
            if first or self._shown_cursor is not None:
                out.append(_CURSOR_OFF)
            out.append(_WRAP_OFF)
            out += [b"\x1b[%dH%b" % (y + 1, rows[y]) for y in changed]
            out.append(_WRAP_ON)
        if cursor is not None:
            out.append(b"\x1b[%d;%dH" % (cursor[1] + 1, cursor[0] + 1))
            if changed or self._shown_cursor is None:
                out.append(_CURSOR_ON)
        elif self._shown_cursor is not None and not changed:
            out.append(_CURSOR_OFF)
        out.append(_END)
        self._shown, self._shown_cursor, self._shown_title = rows, cursor, title
        return b"".join(out)

    # -- the window

    def _place_window(self, frame: Frame) -> None:
        x, y = (
            min(max(frame.cursor_x, 0), frame.cols - 1),
            min(max(frame.cursor_y, 0), frame.rows - 1),
        )
        self._cursor = x, y
        follow = frame.cursor_visible
        self._left = _follow(self._left, self._cols, x, max(0, frame.cols - self._cols), follow)
        self._top = _follow(self._top, self._rows, y, max(0, frame.rows - self._rows), follow)

    def _cursor_in_window(self, frame: Frame) -> tuple[int, int] | None:
        x, y = self._cursor[0] - self._left, self._cursor[1] - self._top
        inside = 0 <= x < self._cols and 0 <= y < self._rows
        return (x, y) if frame.cursor_visible and inside else None

    # -- rows of the viewer's terminal

    def _row(self, frame: Frame, y: int) -> bytes:
        width = min(self._cols, frame.cols - self._left)  # columns of the screen in the window
        height = min(self._rows, frame.rows - self._top)
        room = self._cols - width
        if y < height:
            line = frame.lines[self._top + y] if self._top + y < len(frame.lines) else ()
            row, used = _clip(line, self._left, width, to_edge=not room)
            if room:
                note = f" {self._note(frame)}" if y == 0 and height == self._rows else ""
                strip = _RIGHT + (note if _columns(note) < room else "")
                row += b"\x1b[%dG%b%b%b" % (width + 1, _DIM, strip.encode(errors="replace"), _PLAIN)
                # the blank end of the row may still show an earlier drawing
                row = (_ERASE_REST if used < width else b"") + row
                used = width + _columns(strip)
            return row if used >= self._cols else row + _ERASE_REST
        if y > height:
            return _ERASE_REST
        note = f"{_BELOW} {self._note(frame)} "
        below = note if _columns(note) < width else ""
        below += _BELOW * (width - _columns(below)) + (_CORNER if room else "")
        rest = _ERASE_REST if room > 1 else b""
        return _DIM + below.encode(errors="replace") + _PLAIN + rest

    def _note(self, frame: Frame) -> str:
        size = f"{frame.cols}x{frame.rows}"
        return f"{size} of {self.holder.translate(_CONTROLS)}" if self.holder else size


def _follow(start: int, size: int, cursor: int, edge: int, follow: bool) -> int:
    """Return the new start of a window of `size`, from 0 to `edge`, for a cursor position."""
    start = min(max(start, 0), edge)
    if follow and not start <= cursor < start + size:
        step = max(1, -(-size // FOLLOW_DIVISOR))
        if cursor < start:
            start -= max(step, start - cursor)
        else:
            start += max(step, cursor - (start + size - 1))
    return min(max(start, 0), edge)


def _columns(text: str) -> int:
    """Return the columns of a note; names may have wide characters and combining marks."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def _clip(line: Line, start: int, width: int, to_edge: bool) -> tuple[bytes, int]:
    """Return the part of a line from column `start`, and the number of columns it covers.

    `to_edge`: the last column of the part is the last column of the viewer's terminal.
    """
    pieces: list[tuple[bytes, str, int]] = []  # style, characters, columns
    column, end = 0, start + width
    for text, columns, sgr in line:
        left, column = column, column + max(columns, 0)
        if column <= start:
            continue
        if left >= end:
            break
        seen = min(column, end) - max(left, start)
        pieces.append((sgr, text if seen == columns and text else " " * seen, seen))
    while pieces and not pieces[-1][0] and not pieces[-1][1].strip(" "):
        pieces.pop()
    out, style, used, restate = [], b"", 0, False
    run: list[str] = []
    for sgr, text, columns in pieces:
        if sgr != style or restate:
            out.append("".join(run).translate(_CONTROLS).encode(errors="replace"))
            run.clear()
            if restate:
                out.append(b"\x1b[%dG" % (used + 1))
            if sgr != style:
                out.append(_PLAIN + sgr)
                style = sgr
        used += columns
        restate = text != " " * columns and contested(text)
        if restate and to_edge and used == width:
            out.append("".join(run).translate(_CONTROLS).encode(errors="replace") + _ERASE_REST)
            run = [unicodedata.normalize("NFC", text)[0]]
        else:
            run.append(text)
    out.append("".join(run).translate(_CONTROLS).encode(errors="replace"))
    if restate and used < width:
        out.append(b"\x1b[%dG" % (used + 1))
    if style:
        out.append(_PLAIN)
    return b"".join(out), used
