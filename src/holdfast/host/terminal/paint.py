"""Writes a terminal's whole state as bytes for any xterm-compatible terminal of that size.

This module owns the order in which state is written. It knows an `Emulator` and nothing of viewers.
A plain dump of the grid gets the following wrong; each point was found with a real program:
- The primary screen lies under the alternate one and appears when vim or less ends, so it is
  painted first. To read it, a copy of the emulator gets `CSI ?1049l`; that also yields the cursor
  which leaving will restore.
- The pen (SGR at the cursor) is part of the state. top switches colours between cells, and a dump
  between two cells without the pen draws the next cells wrong. The same holds for charset, pending
  wrap, saved cursor, tab stops and kitty's stack.
- Trailing blank rows are rows: without them the history stays on the screen.
- The cell before the cursor is written last: ncurses sends a character and then `CSI n b` (repeat),
  and a combining mark that follows joins that cell. This also restores pending wrap, which a cursor
  move would cancel.
- A row that continues in the next row is written without a line break, so that copying a long line
  out of the native scrollback, and reflow, keep working. The rows needed are made first: wrapping
  at the bottom would scroll in lines of the pen's background colour.
- No text is cleared that the user may want back: the terminal's old content scrolls up, and there
  is no `CSI 3 J`. `ESC 7` comes before `CSI ?1049l`, which otherwise jumps to an old saved cursor
  on a terminal that is not in the alternate screen. Mode 1049 is always used to enter the alternate
  screen, because some terminals know no other.
- The alternate screen is entered once even if not in use, to reset kitty's stack and the pen there,
  and to save the cursor that a program saved there.
- Terminals disagree on the width of some characters (`contested_width`). In the screen the column
  is stated after each of these; in the history it is not.

Settings of the user (title, palette, the modes of `PREFERENCES`) are set if the program set them,
and left alone if not. In-band size reports (2048) and visibility reports (2033) are never passed
on: the host answers those.

Not painted: protection of cells (DECSCA), modes saved by XTSAVE, text that a program left in the
alternate screen, images, marks (OSC 133), the working directory (OSC 7), links in the history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.core.screen.blank import blank
from holdfast.core.screen.contested_width import contested
from holdfast.core.screen.sequences import LINK_SCHEMES
from holdfast.host.terminal.emulator import Emulator
from holdfast.host.terminal.grid import SGR

KITTY_DEPTH = 8  # entries of kitty's keyboard stack that the emulator keeps
TITLE_MAX = 1024

# Modes with the same default on all terminals; always written. Mouse modes are in the order in
# which programs set them, because the last one counts.
SWITCHES = (1, 5, 45, 1045, 9, 1000, 1002, 1003, 1005, 1015, 1006, 1016, 1004, 2004, 2031)
CLUSTERS = 2027  # decides how many cells a character of several code points takes
PREFERENCES = {67: False, 1007: True, 1035: True, 1036: True, 1039: False}
ALTERNATES = (47, 1047)
REPORTS = (2033, 2048)

_CAN_ST = b"\x18\x1b\\"  # ends any unfinished sequence
# GR before GL: xterm.js takes `ESC }` for a change of GL, and SI undoes that.
_CHARSETS = b"\x1b(B\x1b)B\x1b*B\x1b+B\x1b}\x0f"
_ASCII_CHARSET = re.compile(rb"\x1b[()*+]B")
_RIGHT_CHARSET = re.compile(rb"\x1b[|}~]")
_PEN = b'\x1b[0m\x1b]8;;\x1b\\\x1b[0"q' + _CHARSETS
_NO_KEYS = b"\x1b[<99u"
_BLANK = b"\x1b[0m "


def _switch(modes: tuple[int, ...], on: bool) -> bytes:
    return b"".join(b"\x1b[?%d%c" % (mode, b"h" if on else b"l") for mode in modes)


_SANE = (
    _PEN
    + b"\x1b[2l\x1b[4l\x1b[12h\x1b[20l\x1b>\x1b[?7h"
    + _switch((*SWITCHES, CLUSTERS, *REPORTS), False)
    + b"\x1b[>4m\x1b[0 q"
    + _NO_KEYS
)
_WHOLE_SCREEN = b"\x1b7\x1b[?69l\x1b[?6l\x1b[r\x1b8"  # margins off, cursor kept


@dataclass(frozen=True, slots=True)
class _Place:
    """A cursor's position and pen."""

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
        charsets = _ASCII_CHARSET.sub(b"", charsets)  # _PEN has set it
        right = b"".join(_RIGHT_CHARSET.findall(charsets))
        if right:  # restate GL after GR, as in _CHARSETS
            charsets = right + b"\x0f" + _RIGHT_CHARSET.sub(b"", charsets)
        return cls(
            cursor.x, cursor.y, cursor.pending_wrap, emulator.mode(6), pen, protection, charsets
        )


def paint(emulator: Emulator, scrollback: int, over: bool = True) -> bytes:
    """Bytes that make a terminal show the screen below `scrollback` lines of history.

    The terminal, whatever its state was, then behaves as the emulator does. With `over` the
    old content scrolls up; else it is drawn over. An unfinished sequence of the emulator is left
    out.
    """
    cols, rows = emulator.size
    scratch = emulator.copy()
    keys, shape, last = _kitty_stack(scratch), _cursor_shape(scratch), _last_printed(scratch)
    scratch.write(b"\x1b8")
    saved = _Place.of(scratch)
    if not emulator.alternate:
        scratch.write(b"\x1b[?47h\x1b8")
    elsewhere = _Place.of(scratch)  # saved in the alternate screen

    primary, alternate = emulator, emulator.alternate
    if alternate:
        primary = emulator.copy(scrollback) if scrollback else scratch
        primary.write(b"\x1b[?1049l")
    out = [
        cleared(rows, over),
        _switch((CLUSTERS,), emulator.mode(CLUSTERS)),
        b"\x1b[?25l\x1b[?6l",
        blank(rows),
        emulator.extra("tabstops"),
        b"\x1b[H",
        _rows(primary, scrollback, cols, rows),
    ]
    if not alternate:
        # Reset what a program left in the alternate screen, except the saved cursor.
        out += [b"\x1b[?1049h", _PEN, _NO_KEYS, b"\x1b[?6l", _save(scratch, elsewhere)]
        out += [_PEN, b"\x1b[?6l\x1b[?1049l"]
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


def cleared(rows: int, over: bool) -> bytes:
    """Bytes that bring a terminal from any state to a known state of the primary screen.

    They begin a synchronized update. With `over` the old content scrolls up, into the terminal's
    own history.
    """
    start = _CAN_ST + b"\x1b[?2026h" + _NO_KEYS + b"\x1b7\x1b[?1049l" + _SANE + _WHOLE_SCREEN
    return start + (b"\n" * rows if over else b"")


# ---------------------------------------------------------------- rows


def _rows(emulator: Emulator, scrollback: int, cols: int, rows: int) -> bytes:
    """History and screen from the top left corner on, for a terminal whose screen is empty."""
    kept = emulator.history_rows
    first = max(0, kept - scrollback)
    lines = emulator.rows_vt(first, kept - first + rows)
    flows = [
        len(line) >= cols - 1 and emulator.flows_on(first + y) and emulator.width(line) >= cols - 1
        for y, line in enumerate(lines)
    ]
    for y in range(max(0, len(lines) - rows), len(lines)):
        text = b"" if lines[y].isascii() else SGR.sub(b"", lines[y])
        if any(map(contested, {*text.decode("utf-8", "replace")})):
            ends = emulator.contested_ends(first + y)
            flows[y] = flows[y] and cols not in ends
            lines[y] = _at_columns(emulator, first + y, ends)
        elif emulator.has_links(first + y):
            lines[y] = row(emulator, first + y)
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


def row(emulator: Emulator, y: int) -> bytes:
    """The cells of a row with SGR and links, without trailing default blanks."""
    return _cells(emulator, y, 0, emulator.size[0])


def _at_columns(emulator: Emulator, y: int, ends: list[int]) -> bytes:
    """A row that states the column after each character of contested width.

    In the last column there is no autowrap: a terminal that takes the character for wider would
    scroll.
    """
    cols, _ = emulator.size
    out, x = list[bytes](), 0
    for end in ends:
        cells = _cells(emulator, y, x, end)
        out.append(b"%b\x1b[%dG" % (cells, end + 1) if end < cols else _wrapless(cells))
        x = end
    return b"".join(out) + _cells(emulator, y, x, cols)


def _wrapless(cells: bytes) -> bytes:
    return b"\x1b[?7l%b\x1b[?7h" % cells


def _cells(emulator: Emulator, y: int, x: int, end: int) -> bytes:
    """The cells of a row from `x` up to but not including `end`, with SGR and links."""
    if not emulator.has_links(y):
        return emulator.cells_vt(y, x, end)
    out = list[bytes]()
    while x < end:
        link, run = emulator.link(x, y), x + 1
        while run < end and (emulator.is_wide_tail(run, y) or emulator.link(run, y) == link):
            run += 1
        cells = emulator.cells_vt(y, x, run)
        if run < end:
            cells += b" " * (run - x - emulator.width(cells))
        out.append(_linked(link, cells))
        x = run
    return b"".join(out)


def _linked(link: bytes, cells: bytes) -> bytes:
    return b"\x1b]8;;%b\x1b\\%b\x1b]8;;\x1b\\" % (link, cells) if _allowed(link) else cells


def _allowed(link: bytes) -> bool:
    return (
        link.lower().startswith(LINK_SCHEMES) and re.fullmatch(rb"[\x21-\x7e]+", link) is not None
    )


# ---------------------------------------------------------------- state


def _kitty_stack(scratch: Emulator) -> list[bytes]:
    """The bytes that fill an empty keyboard stack like this one. Empties the stack of `scratch`."""
    entries = []
    for _ in range(KITTY_DEPTH):
        entries.append(scratch.kitty_flags)
        scratch.write(b"\x1b[<u")
    while entries and not entries[-1]:
        entries.pop()
    return [b"\x1b[>%du" % flags for flags in reversed(entries)]


def _cursor_shape(scratch: Emulator) -> bytes:
    """DECSCUSR of the cursor; 0 (the user's shape) if the shape follows the default."""
    shapes = []
    for default in (0, 2):
        scratch.set_default_shape(default)
        scratch.take_replies()
        scratch.write(b"\x1bP$q q\x1b\\")
        shapes.append(b"".join(scratch.take_replies())[5:6])
    blink = b"\x1b[?12h" if scratch.mode(12) else b""
    return b"\x1b[%b q" % shapes[0] if shapes[0] == shapes[1] else b"\x1b[0 q" + blink


def _last_printed(scratch: Emulator) -> tuple[bytes, bytes] | None:
    """The character that `CSI b` would repeat: as shown, and as sent. Clears the screen."""
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
    """Moves the cursor to a place and saves it there (DECSC). Margins are off."""
    at = b"\x1b[?6h" if place.origin else b""
    at += b"\x1b[%d;%dH" % (place.y + 1, place.x + 1)
    if place.pending_wrap:
        start, text, link = _cell(emulator, place.x, place.y)
        at += b"\x1b[%d;%dH" % (place.y + 1, start + 1) + _linked(link, text or _BLANK)
    return at + place.pen + place.protection + place.charsets + b"\x1b7"


def _cell(emulator: Emulator, x: int, y: int) -> tuple[int, bytes, bytes]:
    """(column where the character of a cell begins, the character with SGR, its link)."""
    y += emulator.history_rows
    start = x - 1 if x and emulator.is_wide_tail(x, y) else x
    return start, emulator.cells_vt(y, start, x + 1), emulator.link(start, y)


_CELL = re.compile(rb"((?:\x1b\[[0-9;:]*m)*)(.*?)(?:\x1b\[0m)*", re.DOTALL)


def _cursor(
    emulator: Emulator, place: _Place, last: tuple[bytes, bytes] | None, region: bytes
) -> bytes:
    """Pen and position. The character before the cursor is written again if it was the last."""
    top = left = 1
    if place.origin:
        rows, columns = re.search(rb"(\d+);\d+r", region), re.search(rb"(\d+);\d+s", region)
        top, left = int(rows[1]) if rows else 1, int(columns[1]) if columns else 1

    def move(x: int) -> bytes:
        return b"\x1b[%d;%dH" % (place.y + 2 - top, x + 2 - left)

    links = re.fullmatch(
        rb"\x1b\]8;(id=[\x21-\x39\x3c-\x7e]*)?;(.*)\x1b\\", emulator.extra("hyperlink"), re.DOTALL
    )
    tail = (links[0] if links and _allowed(links[2]) else b"") + place.protection
    before = place.x if place.pending_wrap else place.x - 1
    start, text, link = _cell(emulator, before, place.y) if before >= 0 else (0, b"", b"")
    match = _CELL.fullmatch(text)
    if last and match and match[2] == last[0] and start + emulator.width(text) == before + 1:
        pen = match[1] or b"\x1b[0m"
        written = place.charsets + move(start) + pen + _linked(link, last[1])
        if not place.pending_wrap and contested(match[2].decode("utf-8", "replace")):
            written += move(place.x)
        return written + (place.pen if place.pen != pen else b"") + tail
    if place.pending_wrap:
        written = move(start) + _linked(link, text or _BLANK)
        return written + place.pen + tail + place.charsets
    return move(place.x) + place.pen + tail + place.charsets
