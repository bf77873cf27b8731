"""A terminal's whole state as bytes that any xterm-compatible terminal of the same size understands.

Owns the order in which state is written; it knows an `Emulator` and nothing of viewers. What a plain dump of the grid
gets wrong, each found with a real program:
- The primary screen lies under the alternate one and is seen when vim or less ends, so it is painted first. A copy of
  the emulator is sent `CSI ?1049l` to look at it; that also yields the cursor which leaving will restore.
- The pen (SGR at the cursor) is part of the state: top switches colours between cells, and a dump taken between them
  without the pen draws the next cells wrong. So are charset, pending wrap, saved cursor, tab stops, kitty's stack.
- Trailing blank rows are rows: without them the history stays on the screen.
- The cell before the cursor is written last, because ncurses sends a character and then `CSI n b` (repeat it), and
  because a combining mark that follows joins it. That also brings pending wrap back: a cursor move would cancel it.
- A row that flows on into the next is written without a line break, so that copying a long line out of the native
  scrollback, and reflow, go on working. The lines it needs are made first: wrapping at the bottom would scroll in
  lines of the pen's background colour.
- Nothing is cleared that the user may want back: what stood on the terminal scrolls up, and there is no `CSI 3 J`.
  `ESC 7` comes before `CSI ?1049l`, which otherwise jumps to an old saved cursor on a terminal that is not in the
  alternate screen. 1049 is also the one way in, whatever the program used, because some terminals know no other.
- The alternate screen is entered once even if it is not in use, to empty kitty's stack, pen and saved cursor there.

What belongs to the user (title, palette, the modes of `PREFERENCES`) is set where the program set it and left alone
where it did not. In-band size reports (2048) and visibility reports (2033) are never passed on: the host answers those.

Not painted: cells' protection (DECSCA), modes saved by XTSAVE, the contents that a program left behind in the alternate
screen, images, marks (OSC 133), the working directory (OSC 7), links in the history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.core.blank import blank
from holdfast.core.filter import LINK_SCHEMES
from holdfast.host.emulator import Emulator
from holdfast.host.grid import SGR

KITTY_DEPTH = 8  # entries of kitty's keyboard stack that the emulator keeps
TITLE_MAX = 1024

# Modes with one default everywhere; always written. Mouse modes stand in the order in which programs set them, for of
# several the last one counts.
SWITCHES = (1, 5, 45, 1045, 9, 1000, 1002, 1003, 1005, 1015, 1006, 1016, 1004, 2004, 2027, 2031)
PREFERENCES = {67: False, 1007: True, 1035: True, 1036: True, 1039: False}
ALTERNATES = (47, 1047)
REPORTS = (2033, 2048)

_CAN_ST = b"\x18\x1b\\"  # end whatever sequence the terminal is in
_CHARSETS = b"\x1b(B\x1b)B\x1b*B\x1b+B\x0f\x1b}"
_PEN = b'\x1b[0m\x1b]8;;\x1b\\\x1b[0"q' + _CHARSETS
_NO_KEYS = b"\x1b[<99u"
_BLANK = b"\x1b[0m "


def _switch(modes: tuple[int, ...], on: bool) -> bytes:
    return b"".join(b"\x1b[?%d%c" % (mode, b"h" if on else b"l") for mode in modes)


_SANE = (
    _PEN
    + b"\x1b[2l\x1b[4l\x1b[12h\x1b[20l\x1b>\x1b[?7h"
    + _switch((*SWITCHES, *REPORTS), False)
    + b"\x1b[>4m\x1b[0 q"
    + _NO_KEYS
)
_WHOLE_SCREEN = b"\x1b7\x1b[?69l\x1b[?6l\x1b[r\x1b8"  # margins off, cursor kept

_LEAVE = _CAN_ST + _NO_KEYS + b"\x1b7\x1b[?1049l" + _SANE + b"\x1b[?69l\x1b[?6l\x1b[r"
_LEFT = b"\x1b[?2027h\x1b[?25h\x1b[?2026l\x1b[23;2t\x1b[9999;1H\r\n"

UNPAINT = _LEAVE + _LEFT
"""Puts a terminal back in order after a session, without clearing anything; the cursor ends on a fresh line. It takes
back a title that was put away with `CSI 22;2 t`."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a cursor is and what it writes with."""

    x: int
    y: int
    pending_wrap: bool
    origin: bool
    pen: bytes
    protection: bytes
    charsets: bytes

    @classmethod
    def of(cls, emulator: Emulator) -> _Place:
        cursor = emulator.cursor
        pen, protection, charsets = (
            emulator.extra(name) for name in ("style", "protection", "charsets")
        )
        return cls(
            cursor.x, cursor.y, cursor.pending_wrap, emulator.mode(6), pen, protection, charsets
        )


def paint(emulator: Emulator, scrollback: int, over: bool = True) -> bytes:
    """Bytes that make a terminal show `scrollback` lines of history above the screen and behave as the emulator does.

    The terminal may be in any state. With `over`, it shows something that shall scroll up; else what it shows is drawn
    over. If the emulator is inside an unfinished sequence, that is left out.
    """
    cols, rows = emulator.size
    scratch = emulator.copy()
    keys, shape, last = _kitty_stack(scratch), _cursor_shape(scratch), _last_printed(scratch)
    scratch.write(b"\x1b8")
    saved = _Place.of(scratch)

    primary, alternate = emulator, emulator.alternate
    if alternate:
        primary = emulator.copy(scrollback) if scrollback else scratch
        primary.write(b"\x1b[?1049l")
    out = [
        _CAN_ST,
        b"\x1b[?2026h",
        _NO_KEYS,
        b"\x1b7\x1b[?1049l",
        _SANE,
        _WHOLE_SCREEN,
        b"\n" * rows if over else b"",
    ]
    out += [
        b"\x1b[?25l\x1b[?6l",
        blank(rows),
        emulator.extra("tabstops"),
        b"\x1b[H",
        _rows(primary, scrollback, cols, rows),
    ]
    if not alternate:
        out += [
            b"\x1b[?1049h",
            _PEN,
            _NO_KEYS,
            b"\x1b[?6l\x1b[H\x1b7\x1b[?1049l",
        ]  # what was left in it
    else:
        out += [*_kitty_stack(primary), _save(primary, _Place.of(primary)), b"\x1b[?1049h"]
        out += [_switch(tuple(mode for mode in ALTERNATES if emulator.mode(mode)), True)]
        out += [_PEN, _NO_KEYS, b"\x1b[?6l\x1b[H\x1b[J", _rows(emulator, 0, cols, rows)]
    out += [*keys, _save(emulator, saved), _PEN, b"\x1b[?6l", shape]
    out += [_title(emulator.title), *_colours(emulator), *_modes(emulator)]
    region = emulator.extra("scrolling_region")
    out += [
        b"\x1b[?69h" if emulator.mode(69) else b"",
        region,
        b"\x1b[?6h" if emulator.mode(6) else b"",
    ]
    out += [
        b"" if emulator.mode(2026) else b"\x1b[?2026l",
        b"\x1b[?25h" if emulator.mode(25) else b"",
    ]
    out += [_cursor(emulator, _Place.of(emulator), last, region)]
    out += [
        b"\x1b[4h" if emulator.mode(4, ansi=True) else b"",
        b"" if emulator.mode(7) else b"\x1b[?7l",
    ]
    return b"".join(out)


def unpaint(emulator: Emulator) -> bytes:
    """UNPAINT, and the user's own settings back where the session had changed them."""
    changed = [
        _switch((mode,), default)
        for mode, default in PREFERENCES.items()
        if emulator.mode(mode) != default
    ]
    changed += [b"\x1b]104\x1b\\"] if emulator.palette_changes() else []
    changed += [b"\x1b]%d\x1b\\" % (100 + number) for number, _ in emulator.dynamic_colours()]
    cols, _ = emulator.size
    usual = b"\x1b[3g" + b"".join(b"\x1b[%dG\x1bH" % (x + 1) for x in range(8, cols, 8)) + b"\x1b[H"
    changed += [usual] if emulator.extra("tabstops") != usual else []
    return b"".join((_LEAVE, *changed, _LEFT))


# -- rows -------------------------------------------------------------------------------------------------------------


def _rows(emulator: Emulator, scrollback: int, cols: int, rows: int) -> bytes:
    """History and screen from the top left corner on, for a terminal whose screen is empty."""
    kept = emulator.history_rows
    first = max(0, kept - scrollback)
    lines = emulator.rows_vt(first, kept - first + rows)
    for y in range(max(0, len(lines) - rows), len(lines)):
        if emulator.has_links(first + y):
            lines[y] = row(emulator, first + y, 0, cols)
    flows = [
        len(line) >= cols - 1 and emulator.flows_on(first + y) and emulator.width(line) >= cols - 1
        for y, line in enumerate(lines)
    ]
    out: list[bytes] = []
    at = 0
    while at < len(lines):
        end = at
        while flows[end] and lines[end + 1] and end - at < rows - 1:
            end += 1
        if end > at:
            out.append(b"\n" * (end - at) + b"\x1b[%dA" % (end - at))
        out += lines[at : end + 1]
        out.append(b"\r\n")
        at = end + 1
    return b"".join(out[:-1])


def row(emulator: Emulator, y: int, start: int, end: int) -> bytes:
    """Cells of one row with SGR and links, without trailing default blanks; half a wide character is a space."""
    cols, _ = emulator.size
    lead = trail = b""
    if start > 0 and emulator.is_wide_tail(start, y):
        lead, start = b" ", start + 1
    if 0 < end < cols and end > start and emulator.is_wide_head(end - 1, y):
        trail, end = b" ", end - 1
    if not emulator.has_links(y):
        return lead + emulator.cells_vt(y, start, end) + trail
    out, x = [lead], start
    while x < end:
        link, run = emulator.link(x, y), x + 1
        while run < end and (emulator.is_wide_tail(run, y) or emulator.link(run, y) == link):
            run += 1
        cells = emulator.cells_vt(y, x, run)
        if run < end:
            cells += b" " * (run - x - emulator.width(cells))
        allowed = _allowed(link)
        out.append(b"\x1b]8;;%b\x1b\\%b\x1b]8;;\x1b\\" % (link, cells) if allowed else cells)
        x = run
    return b"".join((*out, trail))


def _allowed(link: bytes) -> bool:
    return (
        link.lower().startswith(LINK_SCHEMES) and re.fullmatch(rb"[\x21-\x7e]+", link) is not None
    )


# -- state ------------------------------------------------------------------------------------------------------------


def _kitty_stack(scratch: Emulator) -> list[bytes]:
    """What fills an empty keyboard stack as this one is filled. Empties it."""
    entries = []
    for _ in range(KITTY_DEPTH):
        entries.append(scratch.kitty_flags)
        scratch.write(b"\x1b[<u")
    while entries and not entries[-1]:
        entries.pop()
    return [b"\x1b[>%du" % flags for flags in reversed(entries)]


def _cursor_shape(scratch: Emulator) -> bytes:
    """DECSCUSR; 0, the user's own, if the shape follows the default when that is changed."""
    shapes = []
    for default in (0, 2):
        scratch.set_default_shape(default)
        scratch.take_replies()
        scratch.write(b"\x1bP$q q\x1b\\")
        shapes.append(b"".join(scratch.take_replies())[5:6])
    blink = b"\x1b[?12h" if scratch.mode(12) else b""
    return b"\x1b[%b q" % shapes[0] if shapes[0] == shapes[1] else b"\x1b[0 q" + blink


def _last_printed(scratch: Emulator) -> tuple[bytes, bytes] | None:
    """The character that `CSI b` would repeat, as it appears and as the program sent it. Clears the screen."""
    cell = scratch.history_rows
    scratch.write(b"\x1b[?6l\x1b[?69l\x1b[r\x1b[4l\x1b[?7h\x1b[0m\x1b[H\x1b[2J\x1b[b")
    shown = SGR.sub(b"", scratch.cells_vt(cell, 0, 2))
    scratch.write(b"\x1b[H\x1b[2J" + _CHARSETS + b"\x1b[b")
    sent = SGR.sub(b"", scratch.cells_vt(cell, 0, 2))
    return (shown, sent) if shown and sent else None


def _modes(emulator: Emulator) -> list[bytes]:
    out = [_switch((mode,), True) for mode in SWITCHES if emulator.mode(mode)]
    out += [
        _switch((mode,), not default)
        for mode, default in PREFERENCES.items()
        if emulator.mode(mode) != default
    ]
    out += [
        b"\x1b=" if emulator.mode(66) else b"",
        b"\x1b[20h" if emulator.mode(20, ansi=True) else b"",
    ]
    return [*out, emulator.extra("keyboard")]


def _title(title: bytes) -> bytes:
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", title.decode("utf-8", "replace"))[:TITLE_MAX]
    return b"\x1b]2;%b\x1b\\" % text.encode() if text else b""


def _colours(emulator: Emulator) -> list[bytes]:
    out = [
        b"\x1b]4;%d;rgb:%02x/%02x/%02x\x1b\\" % (i, *rgb) for i, rgb in emulator.palette_changes()
    ]
    return out + [
        b"\x1b]%d;rgb:%02x/%02x/%02x\x1b\\" % (n, *rgb) for n, rgb in emulator.dynamic_colours()
    ]


def _save(emulator: Emulator, place: _Place) -> bytes:
    """Bring the cursor to a place and save it there (DECSC). Margins are off."""
    at = b"\x1b[?6h" if place.origin else b""
    at += b"\x1b[%d;%dH" % (place.y + 1, place.x + 1)
    if place.pending_wrap:
        start, text = _cell(emulator, place.x, place.y)
        at += b"\x1b[%d;%dH" % (place.y + 1, start + 1) + (text or _BLANK)
    return at + place.pen + place.protection + place.charsets + b"\x1b7"


def _cell(emulator: Emulator, x: int, y: int) -> tuple[int, bytes]:
    """Where the character in a cell begins, and how it is written."""
    y += emulator.history_rows
    start = x - 1 if x and emulator.is_wide_tail(x, y) else x
    return start, emulator.cells_vt(y, start, x + 1)


_CELL = re.compile(rb"((?:\x1b\[[0-9;:]*m)*)(.*?)(?:\x1b\[0m)*", re.DOTALL)


def _cursor(
    emulator: Emulator, place: _Place, last: tuple[bytes, bytes] | None, region: bytes
) -> bytes:
    """Pen and position, by writing the character before the cursor once more if it was the last one written."""
    top = left = 1
    if place.origin:
        rows, columns = re.search(rb"(\d+);\d+r", region), re.search(rb"(\d+);\d+s", region)
        top, left = int(rows[1]) if rows else 1, int(columns[1]) if columns else 1

    def move(x: int) -> bytes:
        return b"\x1b[%d;%dH" % (place.y + 2 - top, x + 2 - left)

    links = re.fullmatch(
        rb"\x1b\]8;(id=[\x21-\x39\x3c-\x7e]*)?;(.*)\x1b\\", emulator.extra("hyperlink"), re.DOTALL
    )
    link = links[0] if links and _allowed(links[2]) else b""
    tail = link + place.protection
    before = place.x if place.pending_wrap else place.x - 1
    start, text = _cell(emulator, before, place.y) if before >= 0 else (0, b"")
    match = _CELL.fullmatch(text)
    if last and match and match[2] == last[0] and start + emulator.width(text) == before + 1:
        pen = match[1] or b"\x1b[0m"
        written = place.charsets + move(start) + pen + last[1]
        return written + (place.pen if place.pen != pen else b"") + tail
    if place.pending_wrap:
        return move(start) + (text or _BLANK) + place.pen + tail + place.charsets
    return move(place.x) + place.pen + tail + place.charsets
