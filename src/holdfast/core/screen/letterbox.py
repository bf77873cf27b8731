"""A session's screen drawn for a viewer whose terminal has another size.

Owns what such a viewer sees: which part of the screen, what stands around it, and which bytes bring the
terminal from what it showed last to what it must show now. It must not know where cells come from
(`host/screen.py` makes a `Frame`) nor when to draw.

Larger terminal: the screen stands at the top left, a dim line marks where it ends on the right and below, and
the line below (or the room on the right) says whose size that is. Smaller terminal: a window on the screen.
- The window follows the cursor only when the cursor leaves it, and then by at least a third of its size, so
  that typing at an edge does not move it with every key. A hidden cursor is not followed: programs that hide
  it (top, htop) leave it anywhere. After `pan` the window stays until the cursor moves.
- A smaller terminal gets no mark that it is smaller: all its cells show content, and a mark would hide some.
- A wide character cut by an edge becomes a space in its own colours.

How it is drawn.
- Row by row, each with a cursor position before it, and only rows that differ from what stands there. Nothing
  is cleared with ED (some terminals push what `CSI 2 J` clears into the scrollback), no line feed is sent,
  and autowrap is off meanwhile: a terminal that takes a character for wider than we do must not wrap at the
  last row and scroll. So the viewer's native scrollback stays as it was.
- After a character of several code points the column is stated again: terminals disagree on their width. In
  the terminal's last column such a character is reduced to its first code point (after composing it): without
  autowrap the cursor stays on that column, and a combining mark would join the cell to the left of it.
- A full row is not followed by EL: in the pending-wrap state that would erase its last cell.
- The first drawing sets what drawing relies on (margins, origin, insert mode, character sets) and draws all
  rows; so does the first after `resize`, because terminals reflow.
- All of it stands in one synchronized update, so that no half-drawn frame is seen.

Rejected: differences inside a row (they need a model of what each terminal thinks of widths), and scrolling
regions for a screen that moved up (in some terminals what scrolls out of one goes to the scrollback).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

MIN_VIEW = 2
"""A terminal with fewer columns or rows than this shows nothing useful and gets nothing."""

FOLLOW_DIVISOR = 3
"""The window moves by at least its size over this when the cursor leaves it."""

MAX_TITLE = 256
"""Characters of a title that are passed on; a window's title bar shows fewer."""


class Cell(NamedTuple):
    """One character as the user sees it, with its combining marks, `width` columns wide.

    `sgr` is the SGR sequence that sets its whole style on a terminal whose style was reset, or empty.
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
# ST, which ends whatever was unfinished; margins, origin, insert mode, character sets, style
_KNOWN_STATE = b"\x1b\\\x1b[r\x1b[?6;69l\x1b[4l\x1b(B\x0f" + _PLAIN
_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")
_BELOW, _RIGHT, _CORNER = "─", "│", "┘"


class Letterbox:
    """One viewer's drawing: `render` gives the bytes for its terminal."""

    def __init__(self, view_cols: int, view_rows: int, holder: str = "") -> None:
        self.holder = (
            holder  # whose size the session has; part of the note where there is room for one
        )
        self._cols, self._rows = view_cols, view_rows
        self._left = self._top = 0
        self._edge: tuple[int, int] | None = (
            None  # how far the window may move to the right and down
        )
        self._panned_at: tuple[int, int] | None = None  # where the cursor was at the last `pan`
        self._cursor = (0, 0)
        self._shown: list[bytes] | None = None  # the rows on the viewer's terminal
        self._shown_cursor: tuple[int, int] | None = None  # None while it is hidden
        self._shown_title: str | None = None

    @property
    def offset(self) -> tuple[int, int]:
        """The column and row of the screen at the top left of the viewer's terminal."""
        return self._left, self._top

    def resize(self, view_cols: int, view_rows: int) -> None:
        """The viewer's terminal has another size, or was written to by others: draw all of it next time."""
        self._cols, self._rows = view_cols, view_rows
        self._edge = None
        self._shown = None

    def pan(self, dx: int, dy: int) -> None:
        """Move the window; it stays there until the cursor moves."""
        self._left, self._top = max(0, self._left + dx), max(0, self._top + dy)
        if self._edge is not None:
            self._left, self._top = min(self._left, self._edge[0]), min(self._top, self._edge[1])
        self._panned_at = self._cursor

    def render(self, frame: Frame) -> bytes:
        """The bytes that make the viewer's terminal show `frame`; nothing when it does already."""
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
        if self._panned_at is not None and self._panned_at != (x, y):
            self._panned_at = None
        self._cursor = x, y
        self._edge = max(0, frame.cols - self._cols), max(0, frame.rows - self._rows)
        follow = frame.cursor_visible and self._panned_at is None
        self._left = _follow(self._left, self._cols, x, self._edge[0], follow)
        self._top = _follow(self._top, self._rows, y, self._edge[1], follow)

    def _cursor_in_window(self, frame: Frame) -> tuple[int, int] | None:
        x, y = self._cursor[0] - self._left, self._cursor[1] - self._top
        inside = 0 <= x < self._cols and 0 <= y < self._rows
        return (x, y) if frame.cursor_visible and inside else None

    # -- rows of the viewer's terminal

    def _row(self, frame: Frame, y: int) -> bytes:
        width = min(
            self._cols, frame.cols - self._left
        )  # columns of the screen that are in the window
        height = min(self._rows, frame.rows - self._top)
        room = self._cols - width
        if y < height:
            line = frame.lines[self._top + y] if self._top + y < len(frame.lines) else ()
            row, used = _clip(line, self._left, width, to_edge=not room)
            if room:
                note = f" {self._note(frame)}" if y == 0 and height == self._rows else ""
                strip = _RIGHT + (note if _columns(note) < room else "")
                row += b"\x1b[%dG%b%b%b" % (width + 1, _DIM, strip.encode(errors="replace"), _PLAIN)
                # what the row leaves blank in front of the line may still show an earlier one
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
    """Where a window of `size` at `start` goes for a cursor at `cursor`; it can be 0 to `edge`."""
    start = min(max(start, 0), edge)
    if follow and not start <= cursor < start + size:
        step = max(1, -(-size // FOLLOW_DIVISOR))
        if cursor < start:
            start -= max(step, start - cursor)
        else:
            start += max(step, cursor - (start + size - 1))
    return min(max(start, 0), edge)


def _columns(text: str) -> int:
    """The columns of a note; names may have wide characters and combining marks."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def _clip(line: Line, start: int, width: int, to_edge: bool) -> tuple[bytes, int]:
    """The part of a line from column `start` on, as bytes, and how many columns those cover.

    `to_edge`: its last column is the last one of the viewer's terminal.
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
        restate = len(text) > 1 and text != " " * columns
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
