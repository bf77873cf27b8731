"""The terminal emulator behind a small interface: bytes in, replies and inspectable state out.

`screen.py` and `paint.py` know only the class `Emulator`, so another emulator can take libghostty-vt's place by offering
the same methods. It must not know of sessions, viewers, blobs or offsets.

Traps of the library that end here:
- The line limit alone is ignored (about 1,000 rows are kept, whatever was asked), so a byte limit is set beside it.
  History is pruned by pages of some hundred rows: "lines" is approximate.
- Its formatter writes empty cells between two texts in the style of the first: a gap after a cell with a background
  comes out coloured. `_true_gaps` takes that back, and only looks where it could show. And it takes rows without text
  for blank, though a background may have been erased into them: `_without_text`. In history, where a look at every
  cell of every blank row would cost too much, such a row is found only if its background reaches an edge.
- Its parser draws DEL, which every other terminal ignores, so DEL is left out.
- It formats the active screen only, and offers no way to look at the other one, at the saved cursor or at kitty's stack.
  For those there is `copy`: whoever wants to know sends the copy what a program would send, and looks.
- Kitty graphics are switched off: images are not in a snapshot, so they would be gone after a restart.

One thread at a time per Emulator. Native calls release the GIL.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from holdfast.host.native import EmulatorUnusable, Link, Native, native

HISTORY_MAX_BYTES = 64 << 20  # per session, uncompressed; 10,000 lines of 80 columns take 6.5 MB
CONTINUATION_MAX = 16 << 10  # longest unfinished sequence kept; beyond it, its content is given up
APC_MAX = 4096  # no APC protocol is in use
COPY_BUDGET = 512 << 10  # of a snapshot: holds the visible screens, whatever the history
COPY_BUDGET_CELL = 16  # and more for each cell of the history wanted

Buffer = bytes | bytearray | memoryview
Colour = tuple[int, int, int]

SGR = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\]8;[^\x1b]*\x1b\\")
_SHOWS = re.compile(rb"\x1b\[(?:4|7m|9m|53m)")  # attributes that show on a blank cell
_DEL = re.compile(rb"\x7f+")
_RUN = re.compile(rb"((?:\x1b\[[0-9;:]*m)*)([^\x1b]*)")
_SPACES = re.compile(rb"( +)")


def version() -> str:
    """Names the exact library build: native snapshots are only exchanged between equal ones."""
    return native().version


@dataclass(frozen=True, slots=True)
class Cursor:
    x: int
    y: int
    pending_wrap: bool  # the last column was written; the next character goes to the next line


class Emulator:
    """A terminal with its two screens and the history of the primary one."""

    def __init__(self, cols: int, rows: int, scrollback_lines: int) -> None:
        library = native()
        handle = library.ffi.new("GhosttyTerminal*")
        library.check(
            library.lib.ghostty_terminal_new(library.ffi.NULL, handle, cols, rows), "a new terminal"
        )
        self._adopt(library, handle[0])
        self._set("SCROLLBACK_MAX_BYTES", "size_t", HISTORY_MAX_BYTES)
        self._set("SCROLLBACK_MAX_LINES", "size_t", scrollback_lines)
        self._set("DEFAULT_CURSOR_BLINK", "bool", False)

    def _adopt(self, library: Native, terminal: Any) -> None:
        self._native, self._ffi, self._lib, self._t = library, library.ffi, library.lib, terminal
        self._free = weakref.finalize(self, library.lib.ghostty_terminal_free, terminal)
        new = self._ffi.new
        self._point = new("GhosttyPoint*", {"tag": library.point["SCREEN"]})
        self._raw, self._number = new("uint64_t*"), new("int*")
        self._flag, self._short = new("bool*"), new("uint16_t*")
        self._link = Link([], self._get("COLS", "uint16_t"), self._get("ROWS", "uint16_t"))
        self._link_handle = self._ffi.new_handle(self._link)
        for name, value in {"USERDATA": self._link_handle, **library.callbacks}.items():
            self._check(self._lib.ghostty_terminal_set(terminal, library.opt[name], value), name)
        self._set("CONTINUATION_MAX_BYTES", "size_t", CONTINUATION_MAX)
        self._set("KITTY_IMAGE_STORAGE_LIMIT", "uint64_t", 0)
        self._set("APC_MAX_BYTES", "size_t", APC_MAX)
        self._set("GLYPH_PROTOCOL", "bool", False)

    def close(self) -> None:
        self._free()
        self._t = self._ffi.NULL

    def _check(self, result: int, what: str) -> None:
        self._native.check(result, what)

    def _set(self, option: str, ctype: str, value: int) -> None:
        pointer = self._ffi.new(ctype + "*", value)
        self._check(self._lib.ghostty_terminal_set(self._t, self._native.opt[option], pointer), option)

    def _get(self, key: str, ctype: str) -> Any:
        return self._read(key, self._ffi.new(ctype + "*"))

    def _read(self, key: str, out: Any) -> Any:
        self._check(self._lib.ghostty_terminal_get(self._t, self._native.data[key], out), key)
        return out[0]

    # -- input ---------------------------------------------------------------------------------------------

    def writer(self, data: Buffer) -> _Writer:
        """A context in which slices of `data` are written without copying it."""
        return _Writer(self, data)

    def write(self, data: Buffer) -> None:
        with self.writer(data) as writer:
            writer.write(0, len(data))

    def take_replies(self) -> list[bytes]:
        if not self._link.replies:
            return []
        replies, self._link.replies = self._link.replies, []
        return replies

    @property
    def ground(self) -> bool:
        """Outside any escape sequence and any UTF-8 character."""
        return bool(self._read("VT_GROUND", self._flag))

    def continuation(self) -> bytes | None:
        """The bytes that bring a parser at ground to where this one is; None when they were too many to keep."""
        buffer, length = self._ffi.new("uint8_t[]", CONTINUATION_MAX), self._ffi.new("size_t*")
        if self._lib.ghostty_terminal_continuation_buf(self._t, buffer, CONTINUATION_MAX, length):
            return None
        return bytes(self._ffi.buffer(buffer, length[0]))

    def resize(self, cols: int, rows: int) -> None:
        wrap = self.mode(7)
        self._set_mode(7, True)  # lines are always reflowed, for the library cuts characters otherwise
        self._check(self._lib.ghostty_terminal_resize(self._t, cols, rows, 0, 0), f"size {cols}x{rows}")
        self._set_mode(7, wrap)
        self._link.cols, self._link.rows = cols, rows
        self._blank_halves()

    def _set_mode(self, mode: int, value: bool) -> None:
        """Set a DEC mode's flag without what the escape sequence does beside that."""
        config = self._ffi.new("GhosttyTerminalModeConfig*", {"mode": mode, "value": value})
        self._check(self._lib.ghostty_terminal_set(self._t, self._native.opt["MODE"], config), f"mode {mode}")

    def _blank_halves(self) -> None:
        """Erase characters of which a resize left one half, at the right edge of the alternate screen."""
        cols, first, cursor = self._link.cols, self.history_rows, self.cursor
        rows = range(self._link.rows) if self.alternate else ()
        if halves := [y for y in rows if self.is_wide_head(cols - 1, first + y)]:
            origin, pen = self.mode(6), self.extra("style")
            self._set_mode(6, False)
            erase = b"".join(b"\x1b[%d;%dH\x1b[X" % (y + 1, cols) for y in halves)
            self.write(b"\x1b[0m%b%b\x1b[%d;%dH" % (erase, pen, cursor.y + 1, cursor.x + 1))
            self._set_mode(6, origin)

    def set_default_shape(self, shape: int) -> None:
        """Set the shape of a cursor that the program left at the default."""
        self._set("DEFAULT_CURSOR_STYLE", "int", shape)

    def compact(self) -> None:
        """Compress the history in memory. It is unpacked again when it is read."""
        mode = self._native.compression["FULL"]
        self._check(self._lib.ghostty_terminal_compress(self._t, mode, self._number), "compress")

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        return self._read("COLS", self._short), self._read("ROWS", self._short)

    @property
    def cursor(self) -> Cursor:
        wrap = bool(self._get("CURSOR_PENDING_WRAP", "bool"))
        return Cursor(self._get("CURSOR_X", "uint16_t"), self._get("CURSOR_Y", "uint16_t"), wrap)

    @property
    def alternate(self) -> bool:
        return bool(self._get("ACTIVE_SCREEN", "int"))

    @property
    def history_rows(self) -> int:
        """Rows of history of the active screen; the alternate one has none."""
        return int(self._get("SCROLLBACK_ROWS", "size_t"))

    @property
    def kitty_flags(self) -> int:
        return int(self._get("KITTY_KEYBOARD_FLAGS", "uint8_t"))

    @property
    def title(self) -> bytes:
        text = self._get("TITLE", "GhosttyString")
        return bytes(self._ffi.buffer(text.ptr, text.len)) if text.len else b""

    def mode(self, mode: int, ansi: bool = False) -> bool:
        config = self._ffi.new("GhosttyTerminalModeConfig*", {"mode": mode | (ansi << 15)})
        self._check(
            self._lib.ghostty_terminal_get(self._t, self._native.data["MODE"], config), f"mode {mode}"
        )
        return bool(config.value)

    def palette_changes(self) -> list[tuple[int, Colour]]:
        """Palette entries that the program changed."""
        now, was = self._ffi.new("GhosttyColorRgb[256]"), self._ffi.new("GhosttyColorRgb[256]")
        for key, out in (("COLOR_PALETTE", now), ("COLOR_PALETTE_DEFAULT", was)):
            self._check(self._lib.ghostty_terminal_get(self._t, self._native.data[key], out), key)
        if self._ffi.buffer(now)[:] == self._ffi.buffer(was)[:]:
            return []
        pairs = ((i, (now[i].r, now[i].g, now[i].b), (was[i].r, was[i].g, was[i].b)) for i in range(256))
        return [(i, colour) for i, colour, default in pairs if colour != default]

    def dynamic_colours(self) -> list[tuple[int, Colour]]:
        """Foreground (10), background (11) and cursor (12) colours that the program set."""
        found = []
        for number, key in ((10, "COLOR_FOREGROUND"), (11, "COLOR_BACKGROUND"), (12, "COLOR_CURSOR")):
            out = self._ffi.new("GhosttyColorRgb*")
            if not self._lib.ghostty_terminal_get(self._t, self._native.data[key], out):
                found.append((number, (out.r, out.g, out.b)))
        return found

    def extra(self, name: str) -> bytes:
        """State of the active screen as VT: style, charsets, hyperlink, protection, tabstops, scrolling_region
        or keyboard. Nothing where it is at its default."""
        cell = (0, self.history_rows)
        alone, with_cell = self._format("VT", cell, cell), self._format("VT", cell, cell, extra=name)
        return with_cell.removesuffix(alone) if name == "tabstops" else with_cell.removeprefix(alone)

    # -- cells: y counts from the oldest row of history ----------------------------------------------------

    def rows_vt(self, first: int, count: int) -> list[bytes]:
        """Rows as text with SGR, each complete in itself, without trailing default blanks."""
        rows, cols, screen = (
            self._rows("VT", b"\r\n", first, count, False),
            self._link.cols,
            self.history_rows,
        )
        for y, row in enumerate(rows, first):
            if not row:
                if y >= screen or any(self._raw_cells(y, x, x + 1) != [0] for x in (0, cols - 1)):
                    rows[y - first] = self._without_text(y, 0, cols)
            elif _SHOWS.search(row):
                rows[y - first] = self._true_gaps(row, 0, y)
        return rows

    def rows_text(self, first: int, count: int) -> list[str]:
        """Rows as plain text, trailing spaces trimmed."""
        rows = self._rows("PLAIN", b"\n", first, count, True)
        return [row.decode("utf-8", "replace").rstrip(" ") for row in rows]

    def cells_vt(self, y: int, x: int, end: int) -> bytes:
        """The cells from x up to but not including end of one row, as rows_vt gives them."""
        if end <= x:
            return b""
        cells = self._format("VT", (x, y), (end - 1, y))
        if not cells:
            return self._without_text(y, x, end)
        return self._true_gaps(cells, x, y) if _SHOWS.search(cells) else cells

    def width(self, cells: bytes) -> int:
        """Columns that text with SGR takes."""
        text = SGR.sub(b"", cells)
        if text.isascii():
            return len(text)
        chars = text.decode("utf-8", "replace")
        if not self.mode(2027):
            width = self._lib.ghostty_unicode_codepoint_width
            return sum(1 if char < "\x7f" else width(ord(char)) for char in chars)
        points, out, at, total = (
            self._ffi.new("uint32_t[]", [ord(c) for c in chars]),
            self._ffi.new("uint8_t*"),
            0,
            0,
        )
        while at < len(chars):
            at += max(1, self._lib.ghostty_unicode_grapheme_width(points + at, len(chars) - at, out))
            total += out[0]
        return total

    def flows_on(self, y: int) -> bool:
        """Whether row y goes on in the next row and, printed again, would do so by itself."""
        last, wide = self._ref(self._link.cols - 1, y), self._native.wide
        if not self._row_flag(last, "WRAP") or y + 1 >= self.history_rows + self._link.rows:
            return False
        kind = self._wide(last)
        if kind == wide["SPACER_HEAD"]:  # left free because a wide character did not fit
            return self._wide(self._ref(0, y + 1)) == wide["WIDE"]
        return kind == wide["SPACER_TAIL"] or self.cells_vt(y, self._link.cols - 1, self._link.cols) != b""

    def is_wide_head(self, x: int, y: int) -> bool:
        return self._wide(self._ref(x, y)) == self._native.wide["WIDE"]

    def is_wide_tail(self, x: int, y: int) -> bool:
        return self._wide(self._ref(x, y)) == self._native.wide["SPACER_TAIL"]

    def has_links(self, y: int) -> bool:
        return self._row_flag(self._ref(0, y), "HYPERLINK")

    def link(self, x: int, y: int) -> bytes:
        """The hyperlink of a cell, or nothing."""
        length, ref = self._ffi.new("size_t*"), self._ref(x, y)
        self._lib.ghostty_grid_ref_hyperlink_uri(ref, self._ffi.NULL, 0, length)
        if not length[0]:
            return b""
        buffer = self._ffi.new("uint8_t[]", length[0])
        self._check(self._lib.ghostty_grid_ref_hyperlink_uri(ref, buffer, length[0], length), "hyperlink")
        return bytes(self._ffi.buffer(buffer, length[0]))

    def _row_flag(self, ref: Any, name: str) -> bool:
        self._check(self._lib.ghostty_grid_ref_row(ref, self._raw), "row")
        self._check(self._lib.ghostty_row_get(self._raw[0], self._native.row[name], self._flag), name)
        return bool(self._flag[0])

    def _wide(self, ref: Any) -> int:
        self._check(self._lib.ghostty_grid_ref_cell(ref, self._raw), "cell")
        return int(self._cell(self._raw[0], "WIDE", self._number))

    def _cell(self, cell: int, key: str, out: Any) -> Any:
        self._check(self._lib.ghostty_cell_get(cell, self._native.cell[key], out), key)
        return out[0]

    def _ref(self, x: int, y: int) -> Any:
        ref = self._ffi.new("GhosttyGridRef*")
        ref.size = self._ffi.sizeof("GhosttyGridRef")
        value = self._point.value
        value.x, value.y = x, y
        self._check(self._lib.ghostty_terminal_grid_ref(self._t, self._point[0], ref), f"cell {x},{y}")
        return ref

    def _raw_cells(self, y: int, x: int, end: int) -> list[int]:
        """Cells as the library has them; 0 is an empty one."""
        ref, raw, get, cells = self._ref(x, y), self._raw, self._lib.ghostty_grid_ref_cell, []
        for ref.x in range(x, end):
            self._check(get(ref, raw), "cell")
            cells.append(int(raw[0]))
        return cells

    def _background(self, cell: int) -> bytes:
        """The style of a cell that has a background and no text, or nothing."""
        kind = self._native.tag
        tag = self._cell(cell, "CONTENT_TAG", self._number)
        if tag == kind["BG_COLOR_PALETTE"]:
            return b"\x1b[0m\x1b[48;5;%dm" % self._cell(cell, "COLOR_PALETTE", self._ffi.new("uint8_t*"))
        if tag == kind["BG_COLOR_RGB"]:
            colour = self._cell(cell, "COLOR_RGB", self._ffi.new("GhosttyColorRgb*"))
            return b"\x1b[0m\x1b[48;2;%d;%d;%dm" % (colour.r, colour.g, colour.b)
        return b""

    def _without_text(self, y: int, x: int, end: int) -> bytes:
        """Cells of which none has text: what backgrounds there are. The formatter leaves those out."""
        cells = self._raw_cells(y, x, end)
        styles = {cell: self._background(cell) for cell in {*cells} - {0}} | {0: b""}
        runs = [(style, len(list(run))) for style, run in groupby(styles[cell] for cell in cells)]
        while runs and not runs[-1][0]:
            runs.pop()
        return b"".join((style or b"\x1b[0m") + b" " * length for style, length in runs) + (
            b"\x1b[0m" if runs else b""
        )

    def _true_gaps(self, row: bytes, x: int, y: int) -> bytes:
        """The formatter writes empty cells in the style of the text before them. Write them in no style."""
        out = []
        for style, text in _RUN.findall(row):
            out += [style, text]
            if b" " in text and _SHOWS.search(style):
                out.pop()
                for piece in _SPACES.split(text):
                    if piece.startswith(b" "):
                        empty = ((cell == 0, b" ") for cell in self._raw_cells(y, x, x + len(piece)))
                        for gap, blanks in groupby(empty, lambda cell: cell[0]):
                            out.append((b"\x1b[0m%b" + style if gap else b"%b") % b"".join(b for _, b in blanks))
                    else:
                        out.append(piece)
                    x += self.width(piece)
            else:
                x += self.width(text)
        return b"".join(out)

    def _rows(self, emit: str, newline: bytes, first: int, count: int, trim: bool) -> list[bytes]:
        if count <= 0:
            return []
        end = (self._link.cols - 1, first + count - 1)
        rows = self._format(emit, (0, first), end, trim=trim).split(newline)
        return rows + [b""] * (count - len(rows))

    def _format(
        self, emit: str, start: tuple[int, int], end: tuple[int, int], extra: str = "", trim: bool = False
    ) -> bytes:
        ffi, lib = self._ffi, self._lib
        selection = ffi.new("GhosttySelection*", {"size": ffi.sizeof("GhosttySelection")})
        selection.start, selection.end = self._ref(*start)[0], self._ref(*end)[0]
        options = ffi.new("GhosttyFormatterTerminalOptions*")
        options.size, options.extra.size = ffi.sizeof(options[0]), ffi.sizeof("GhosttyFormatterTerminalExtra")
        options.extra.screen.size = ffi.sizeof("GhosttyFormatterScreenExtra")
        options.emit, options.trim, options.selection = self._native.emit[emit], trim, selection
        if extra:
            setattr(options.extra if hasattr(options.extra, extra) else options.extra.screen, extra, True)
        formatter = ffi.new("GhosttyFormatter*")
        self._check(lib.ghostty_formatter_terminal_new(ffi.NULL, formatter, self._t, options[0]), "formatter")
        try:
            return self._allocated(
                lambda out, n: lib.ghostty_formatter_format_alloc(formatter[0], ffi.NULL, out, n)
            )
        finally:
            lib.ghostty_formatter_free(formatter[0])

    def _allocated(self, call: Callable[[Any, Any], int]) -> bytes:
        out, length = self._ffi.new("uint8_t**"), self._ffi.new("size_t*")
        self._check(call(out, length), "output")
        try:
            return bytes(self._ffi.buffer(out[0], length[0])) if length[0] else b""
        finally:
            self._lib.ghostty_free(self._ffi.NULL, out[0], length[0])

    # -- snapshots -----------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Everything, in the library's own format; nothing if the library refuses to write it."""
        return self._encode_part(0)[0]

    def copy(self, history: int = 0) -> Emulator:
        """A copy to try things on, at ground, with both screens, all state and `history` lines or more of history.

        A snapshot has the newest rows first, so its beginning is enough. Where there is none, the copy is a blank."""
        budget = COPY_BUDGET + history * self._link.cols * COPY_BUDGET_CELL
        while True:
            part, whole = self._encode_part(budget)
            copy = Emulator.decode(part, cut=True, history=history > 0)
            if copy is None and not whole:
                budget *= 4
                continue
            if copy is None:
                copy = Emulator(*self.size, 0)
                copy.write(b"\x1b[?1049h" if self.alternate else b"")
            copy.write(b"" if copy.ground else b"\x18")
            copy.take_replies()
            return copy

    def _encode_part(self, budget: int) -> tuple[bytes, bool]:
        """A snapshot, or its first bytes up to the budget if there is one, and whether they are all.

        The library refuses when a resize cut a character in two in the alternate screen. The one in use was looked
        after in `resize`; what an ended program left in the other one is given up."""
        parts, refused = self._try_encode(budget)
        if refused and not self.alternate:
            self.write(b"\x1b[?47h\x1b[2J\x1b[?47l")
            parts, refused = self._try_encode(budget)
        if refused:
            return b"", True
        return parts, not budget or len(parts) < budget

    def _try_encode(self, budget: int) -> tuple[bytes, bool]:
        parts = bytearray()

        def collect(_userdata: Any, data: Any, length: int) -> bool:
            parts.extend(self._ffi.buffer(data, length))
            return not budget or len(parts) < budget

        callback = self._ffi.callback("bool(void*, const uint8_t*, size_t)", collect)
        writer = self._ffi.new("GhosttyWriter*", {"write": callback, "userdata": self._ffi.NULL})
        result = self._lib.ghostty_snapshot_encode(self._t, writer[0])
        return bytes(parts), bool(result) and not (budget and len(parts) >= budget)

    @classmethod
    def decode(cls, snapshot: bytes, cut: bool = False, history: bool = True) -> Emulator | None:
        """What `encode` gave, or None if it is not readable. With `cut`, the end may be missing: as much history as
        there is."""
        library = native()
        ffi, lib, check = library.ffi, library.lib, library.check
        decoder, terminal = ffi.new("GhosttySnapshotDecoder*"), ffi.new("GhosttyTerminal*")
        limit, keep = library.decoder["MAX_CONTINUATION_BYTES"], library.decoder["RETAIN_CONTINUATION"]
        with ffi.from_buffer("uint8_t[]", snapshot) as buffer:
            check(lib.ghostty_snapshot_decoder_new_buf(ffi.NULL, decoder, buffer, len(snapshot)), "decoder")
            try:
                check(
                    lib.ghostty_snapshot_decoder_set(decoder[0], limit, ffi.new("size_t*", CONTINUATION_MAX)),
                    "limit",
                )
                check(lib.ghostty_snapshot_decoder_set(decoder[0], keep, ffi.new("bool*", True)), "keep")
                decode = lib.ghostty_snapshot_decoder_ready if cut else lib.ghostty_snapshot_decoder_decode
                if decode(decoder[0], terminal):
                    return None
                while cut and history and not lib.ghostty_snapshot_decoder_next(decoder[0]):
                    pass
            finally:
                lib.ghostty_snapshot_decoder_free(decoder[0])
        self = cls.__new__(cls)
        self._adopt(library, terminal[0])
        return self


class _Writer:
    def __init__(self, emulator: Emulator, data: Buffer) -> None:
        self._terminal, self._lib, self._ffi = emulator._t, emulator._lib, emulator._ffi
        self._data = data

    def __enter__(self) -> _Writer:
        self._buffer = self._ffi.from_buffer("uint8_t[]", self._data)
        return self

    def __exit__(self, *_: object) -> None:
        self._ffi.release(self._buffer)

    def write(self, start: int, end: int) -> None:
        for match in _DEL.finditer(self._data, start, end):
            self._write(start, match.start())
            start = match.end()
        self._write(start, end)

    def _write(self, start: int, end: int) -> None:
        if end > start:
            self._lib.ghostty_terminal_vt_write(self._terminal, self._buffer + start, end - start)

    def write_until_ground(self, start: int, end: int) -> int:
        """Write from start only as far as needed to finish the sequence in progress; how far that was."""
        if end <= start:
            return start
        consumed = self._ffi.new("size_t*")
        write = self._lib.ghostty_terminal_vt_write_until_ground
        unfinished = write(self._terminal, self._buffer + start, end - start, consumed)
        return end if unfinished else start + int(consumed[0])
