"""Compares terminals: by cell through pyghostty's whole binding, by row with pyavt.

The formatter that `paint` is built on cannot be its own judge, so cells and styles are read one at
a time here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from avt._avt import Vt
from pyghostty.core import Terminal, ffi, init_sized, lib

from holdfast.host.terminal import paint
from holdfast.host.terminal.emulator import Emulator
from holdfast.host.terminal.screen import Screen

Cell = tuple[str, tuple[Any, ...]]
State = dict[str, Any]

MODES = (
    1,
    5,
    6,
    7,
    9,
    25,
    45,
    66,
    69,
    1000,
    1002,
    1003,
    1004,
    1005,
    1006,
    1015,
    1016,
    1045,
    2004,
    2026,
    2027,
    2031,
)
_NOT_SEEN_ON_A_BLANK = ("bold", "italic", "faint", "blink", "fg", "underline_color")


def emulator(screen: Screen) -> Emulator:
    return screen._emulator


def grid(of: Emulator, first: int, count: int) -> list[list[Cell]]:
    """Rows as a viewer sees them: (text, style) of each cell, an empty cell being a space."""
    terminal = Terminal.__new__(Terminal)
    terminal._t = [ffi.cast("GhosttyTerminal", int(of._ffi.cast("uintptr_t", of._t)))]
    cols, _ = of.size
    raw, known = ffi.new("GhosttyCell*"), dict[tuple[Any, int], Cell]()
    rows = []
    for y in range(first, first + count):
        row: list[Cell] = []
        ref = terminal.ref(0, y, "screen")
        for x in range(cols):
            ref.x = x
            assert lib.ghostty_grid_ref_cell(ref, raw) == 0
            value = int(raw[0])
            if _get(value, "CONTENT_TAG", "int") == lib.GHOSTTY_CELL_CONTENT_CODEPOINT_GRAPHEME:
                row.append(_cell(ref, value))
                continue
            if (ref.node, value) not in known:
                known[ref.node, value] = _cell(ref, value)
            row.append(known[ref.node, value])
        rows.append(row)
    return rows


@cache
def _get(cell: int, key: str, ctype: str) -> Any:
    out = ffi.new(ctype + "*")
    assert lib.ghostty_cell_get(cell, getattr(lib, "GHOSTTY_CELL_DATA_" + key), out) == 0
    return out[0]


def _cell(ref: Any, cell: int) -> Cell:
    if _get(cell, "WIDE", "int") == lib.GHOSTTY_CELL_WIDE_SPACER_HEAD:
        return (
            " ",
            (),
        )  # left free at the margin by a wide character; terminals differ in how they fill the cell
    buffer, length = ffi.new("uint32_t[32]"), ffi.new("size_t*")
    assert lib.ghostty_grid_ref_graphemes(ref, buffer, 32, length) == 0
    text = "".join(chr(buffer[i]) for i in range(length[0])) or " "
    style = init_sized("GhosttyStyle")
    assert lib.ghostty_grid_ref_style(ref, style) == 0
    seen = {name: getattr(style, name) for name in (*Terminal._STYLE_ATTRS, "underline")}
    seen |= {name: _colour(getattr(style, name + "_color")) for name in ("fg", "bg")}
    seen["underline_color"] = _colour(style.underline_color)
    tag = _get(cell, "CONTENT_TAG", "int")
    if tag == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_PALETTE:
        seen["bg"] = int(_get(cell, "COLOR_PALETTE", "uint8_t")) + 1
    elif tag == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_RGB:
        rgb = _get(cell, "COLOR_RGB", "GhosttyColorRgb")
        seen["bg"] = (rgb.r, rgb.g, rgb.b)
    lines = ("inverse", "underline", "strikethrough", "overline", "invisible")
    if text == " " and not any(seen[name] for name in lines):
        seen = {name: value for name, value in seen.items() if name not in _NOT_SEEN_ON_A_BLANK}
    return text, tuple(sorted((name, value) for name, value in seen.items() if value))


def _colour(colour: Any) -> int | tuple[int, int, int] | None:
    if colour.tag == lib.GHOSTTY_STYLE_COLOR_PALETTE:
        return int(colour.value.palette) + 1
    if colour.tag == lib.GHOSTTY_STYLE_COLOR_RGB:
        return colour.value.rgb.r, colour.value.rgb.g, colour.value.rgb.b
    return None


def _place(of: Emulator) -> tuple[Any, ...]:
    place = paint._Place.of(of)
    charsets = re.sub(rb"\x1b[()*+]B", b"", place.charsets)  # ASCII and the initial set print alike
    return place.x, place.y, place.pending_wrap, place.origin, place.pen, place.protection, charsets


def _keys(of: Emulator) -> list[int]:
    flags = []
    for _ in range(8):
        flags.append(of.kitty_flags)
        of.write(b"\x1b[<u")
    return flags


def _shape(of: Emulator) -> list[bytes]:
    """The cursor's shape under two different defaults."""
    shapes = []
    for default in (0, 2):
        of.set_default_shape(default)
        of.take_replies()
        of.write(b"\x1bP$q q\x1b\\")
        shapes += of.take_replies()
    return shapes


def state(screen: Screen, history: int = 0) -> State:
    """All state that shows or will show: terminals with equal states behave alike from here on."""
    of = emulator(screen)
    _, rows = of.size
    found: State = {
        "size": of.size,
        "alternate": of.alternate,
        "title": of.title,
        "place": _place(of),
    }
    found |= {f"mode {mode}": of.mode(mode) for mode in MODES}
    found |= {f"ansi mode {mode}": of.mode(mode, ansi=True) for mode in (4, 20)}
    found |= {
        name: of.extra(name) for name in ("scrolling_region", "tabstops", "keyboard", "hyperlink")
    }
    found["colours"] = of.palette_changes(), of.dynamic_colours()
    found["rows"] = grid(of, of.history_rows, rows)
    found["flows"] = [of.flows_on(of.history_rows + y) for y in range(rows)]
    scratch = of.copy()
    found["keys"], found["shape"] = _keys(scratch), _shape(scratch)
    scratch.write(b"\x1b8")
    found["saved"] = _place(scratch)
    primary = of
    if of.alternate:
        below = Emulator.decode(of.encode())
        assert below is not None
        primary = below
        primary.write(b"\x18\x1b[?1049l")
        found["rows below"] = grid(primary, primary.history_rows, rows)
        found["saved below"], found["keys below"] = _place(primary), _keys(primary)
    kept = min(history, primary.history_rows)
    found["history"] = [
        _as_painted(row) for row in grid(primary, primary.history_rows - kept, kept)
    ]
    return found


def _as_painted(row: list[Cell]) -> list[Cell]:
    """A row as `Emulator.rows_vt` paints it.

    A row of history without text keeps its backgrounds only if they reach an edge.
    """
    blank = (" ", ())
    lost = all(text == " " for text, _ in row) and row[0] == row[-1] == blank
    return [blank] * len(row) if lost else row


def differences(one: State, other: State, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The differences between two states, with the first differing row of a grid only."""
    found: dict[str, Any] = {}
    for key in sorted({*one, *other} - {*but}):
        a, b = one.get(key), other.get(key)
        if a == b:
            continue
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            found[key] = next(
                (i, p, q) for i, (p, q) in enumerate(zip(a, b, strict=True)) if p != q
            )
        else:
            found[key] = a, b
    return found


def second_opinion(cols: int, rows: int, data: bytes) -> tuple[list[str], tuple[int, int]]:
    """Rows and cursor according to another emulator."""
    terminal = Vt(cols, rows)
    terminal.feed_str(data.decode("utf-8", "replace"))
    return [line.text.rstrip(" ") for line in terminal.view()], (
        terminal.cursor.col,
        terminal.cursor.row,
    )
