"""The cells of a terminal as text with SGR: uses the library's formatter and corrects its errors.

Traps that are handled here:
- The formatter writes empty cells between two texts in the style of the first text: a gap after a
  cell with a background comes out coloured. `_true_gaps` undoes that where it could show.
- The formatter takes rows without text for blank, though a background may have been erased into
  them: see `_without_text`. In the history, a look at every cell of every blank row would cost too
  much; there such a row is found only if the background reaches an edge.
- The formatter leaves out hyperlinks; `paint.py` adds them with `link`.

Rows are formatted in one call for the whole range (3 us per row), and read cell by cell (0.7 us per
cell) only where one of these cases may apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby

from holdfast.core.screen.contested_width import contested
from holdfast.host.terminal.ghostty import C, Link, Native

SGR = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\]8;[^\x1b]*\x1b\\")
_SHOWS = re.compile(rb"\x1b\[(?:4|7m|9m|53m)")  # attributes that show on a blank cell
_RUN = re.compile(rb"((?:\x1b\[[0-9;:]*m)*)([^\x1b]*)")
_SPACES = re.compile(rb"( +)")


class Grid:
    """The rows of a terminal's active screen; y counts from the oldest row of its history."""

    _native: Native
    _ffi: C
    _lib: C
    _t: C
    _link: Link

    def _bind(self, library: Native, terminal: C) -> None:
        self._native, self._ffi, self._lib, self._t = library, library.ffi, library.lib, terminal
        new = self._ffi.new
        self._point = new("GhosttyPoint*", {"tag": library.point["SCREEN"]})
        self._raw, self._number = new("uint64_t*"), new("int*")
        self._flag, self._short = new("bool*"), new("uint16_t*")
        self._link = Link([], self._get("COLS", "uint16_t"), self._get("ROWS", "uint16_t"))

    def _check(self, result: int, what: str) -> None:
        self._native.check(result, what)

    def _get(self, key: str, ctype: str) -> C:
        return self._read(key, self._ffi.new(ctype + "*"))

    def _read(self, key: str, out: C) -> C:
        self._check(self._lib.ghostty_terminal_get(self._t, self._native.data[key], out), key)
        return out[0]

    @property
    def history_rows(self) -> int:
        """Rows of history of the active screen; the alternate screen has none."""
        return int(self._get("SCROLLBACK_ROWS", "size_t"))

    def mode(self, mode: int, ansi: bool = False) -> bool:
        config = self._ffi.new("GhosttyTerminalModeConfig*", {"mode": mode | (ansi << 15)})
        self._check(
            self._lib.ghostty_terminal_get(self._t, self._native.data["MODE"], config),
            f"mode {mode}",
        )
        return bool(config.value)

    def extra(self, name: str) -> bytes:
        """State of the active screen as VT; empty where it is the default.

        `name`: style, charsets, hyperlink, protection, tabstops, scrolling_region or keyboard.
        """
        cell = (0, self.history_rows)
        alone = self._format("VT", cell, cell)
        with_cell = self._format("VT", cell, cell, extra=name)
        return (
            with_cell.removesuffix(alone) if name == "tabstops" else with_cell.removeprefix(alone)
        )

    def rows_vt(self, first: int, count: int) -> list[bytes]:
        """Rows as text with SGR, each self-contained, without trailing default blanks."""
        rows, cols = self._rows("VT", b"\r\n", first, count, False), self._link.cols
        screen = self.history_rows
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
        """The cells of a row from `x` up to but not including `end`, as in `rows_vt`."""
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
        points = self._ffi.new("uint32_t[]", [ord(c) for c in chars])
        out, at, total = self._ffi.new("uint8_t*"), 0, 0
        while at < len(chars):
            at += max(
                1, self._lib.ghostty_unicode_grapheme_width(points + at, len(chars) - at, out)
            )
            total += out[0]
        return total

    def flows_on(self, y: int) -> bool:
        """Whether row y continues in the next row and, printed again, would wrap by itself."""
        last, wide = self._ref(self._link.cols - 1, y), self._native.wide
        if not self._row_flag(last, "WRAP") or y + 1 >= self.history_rows + self._link.rows:
            return False
        kind = self._wide(last)
        if kind == wide["SPACER_HEAD"]:  # left free because a wide character did not fit
            return self._wide(self._ref(0, y + 1)) == wide["WIDE"]
        return (
            kind == wide["SPACER_TAIL"]
            or self.cells_vt(y, self._link.cols - 1, self._link.cols) != b""
        )

    def is_wide_head(self, x: int, y: int) -> bool:
        return self._wide(self._ref(x, y)) == self._native.wide["WIDE"]

    def is_wide_tail(self, x: int, y: int) -> bool:
        return self._wide(self._ref(x, y)) == self._native.wide["SPACER_TAIL"]

    def contested_ends(self, y: int) -> list[int]:
        """The columns after each character of contested width in a row."""
        ends, wide, tag = list[int](), self._native.wide, self._native.tag
        point = self._ffi.new("uint32_t*")
        for x, cell in enumerate(self._raw_cells(y, 0, self._link.cols)):
            if not cell or self._cell(cell, "WIDE", self._number) == wide["SPACER_TAIL"]:
                continue
            kind = self._cell(cell, "CONTENT_TAG", self._number)
            if kind == tag["CODEPOINT_GRAPHEME"] or (
                kind == tag["CODEPOINT"] and contested(chr(self._cell(cell, "CODEPOINT", point)))
            ):
                is_wide = self._cell(cell, "WIDE", self._number) == wide["WIDE"]
                ends.append(x + (2 if is_wide else 1))
        return ends

    def has_links(self, y: int) -> bool:
        return self._row_flag(self._ref(0, y), "HYPERLINK")

    def link(self, x: int, y: int) -> bytes:
        """The hyperlink of a cell, or b""."""
        length, ref = self._ffi.new("size_t*"), self._ref(x, y)
        self._lib.ghostty_grid_ref_hyperlink_uri(ref, self._ffi.NULL, 0, length)
        if not length[0]:
            return b""
        buffer = self._ffi.new("uint8_t[]", length[0])
        self._check(
            self._lib.ghostty_grid_ref_hyperlink_uri(ref, buffer, length[0], length), "hyperlink"
        )
        return bytes(self._ffi.buffer(buffer, length[0]))

    def _row_flag(self, ref: C, name: str) -> bool:
        self._check(self._lib.ghostty_grid_ref_row(ref, self._raw), "row")
        self._check(
            self._lib.ghostty_row_get(self._raw[0], self._native.row[name], self._flag), name
        )
        return bool(self._flag[0])

    def _wide(self, ref: C) -> int:
        self._check(self._lib.ghostty_grid_ref_cell(ref, self._raw), "cell")
        return int(self._cell(self._raw[0], "WIDE", self._number))

    def _cell(self, cell: int, key: str, out: C) -> C:
        self._check(self._lib.ghostty_cell_get(cell, self._native.cell[key], out), key)
        return out[0]

    def _ref(self, x: int, y: int) -> C:
        ref = self._ffi.new("GhosttyGridRef*")
        ref.size = self._ffi.sizeof("GhosttyGridRef")
        value = self._point.value
        value.x, value.y = x, y
        self._check(
            self._lib.ghostty_terminal_grid_ref(self._t, self._point[0], ref), f"cell {x},{y}"
        )
        return ref

    def _raw_cells(self, y: int, x: int, end: int) -> list[int]:
        """Cells in the library's format; 0 is an empty cell."""
        ref, raw, get, cells = self._ref(x, y), self._raw, self._lib.ghostty_grid_ref_cell, []
        for ref.x in range(x, end):
            self._check(get(ref, raw), "cell")
            cells.append(int(raw[0]))
        return cells

    def _background(self, cell: int) -> bytes:
        """The style of a cell with a background and no text, or b""."""
        kind = self._native.tag
        tag = self._cell(cell, "CONTENT_TAG", self._number)
        if tag == kind["BG_COLOR_PALETTE"]:
            return b"\x1b[0m\x1b[48;5;%dm" % self._cell(
                cell, "COLOR_PALETTE", self._ffi.new("uint8_t*")
            )
        if tag == kind["BG_COLOR_RGB"]:
            colour = self._cell(cell, "COLOR_RGB", self._ffi.new("GhosttyColorRgb*"))
            return b"\x1b[0m\x1b[48;2;%d;%d;%dm" % (colour.r, colour.g, colour.b)
        return b""

    def _without_text(self, y: int, x: int, end: int) -> bytes:
        """The backgrounds of cells without text, which the formatter leaves out."""
        cells = self._raw_cells(y, x, end)
        styles = {cell: self._background(cell) for cell in {*cells} - {0}} | {0: b""}
        runs = [(style, len(list(run))) for style, run in groupby(styles[cell] for cell in cells)]
        while runs and not runs[-1][0]:
            runs.pop()
        return b"".join((style or b"\x1b[0m") + b" " * length for style, length in runs) + (
            b"\x1b[0m" if runs else b""
        )

    def _true_gaps(self, row: bytes, x: int, y: int) -> bytes:
        """Writes empty cells without style; the formatter uses the style of the text before."""
        out = []
        for style, text in _RUN.findall(row):
            out += [style, text]
            if b" " in text and _SHOWS.search(style):
                out.pop()
                for piece in _SPACES.split(text):
                    if piece.startswith(b" "):
                        empty = (
                            (cell == 0, b" ") for cell in self._raw_cells(y, x, x + len(piece))
                        )
                        for gap, blanks in groupby(empty, lambda cell: cell[0]):
                            out.append(
                                (b"\x1b[0m%b" + style if gap else b"%b")
                                % b"".join(b for _, b in blanks)
                            )
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
        self,
        emit: str,
        start: tuple[int, int],
        end: tuple[int, int],
        extra: str = "",
        trim: bool = False,
    ) -> bytes:
        ffi, lib = self._ffi, self._lib
        selection = ffi.new("GhosttySelection*", {"size": ffi.sizeof("GhosttySelection")})
        selection.start, selection.end = self._ref(*start)[0], self._ref(*end)[0]
        options = ffi.new("GhosttyFormatterTerminalOptions*")
        options.size = ffi.sizeof(options[0])
        options.extra.size = ffi.sizeof("GhosttyFormatterTerminalExtra")
        options.extra.screen.size = ffi.sizeof("GhosttyFormatterScreenExtra")
        options.emit, options.trim, options.selection = self._native.emit[emit], trim, selection
        if extra:
            setattr(
                options.extra if hasattr(options.extra, extra) else options.extra.screen,
                extra,
                True,
            )
        formatter = ffi.new("GhosttyFormatter*")
        self._check(
            lib.ghostty_formatter_terminal_new(ffi.NULL, formatter, self._t, options[0]),
            "formatter",
        )
        try:
            return self._allocated(
                lambda out, n: lib.ghostty_formatter_format_alloc(formatter[0], ffi.NULL, out, n)
            )
        finally:
            lib.ghostty_formatter_free(formatter[0])

    def _allocated(self, call: Callable[[C, C], int]) -> bytes:
        out, length = self._ffi.new("uint8_t**"), self._ffi.new("size_t*")
        self._check(call(out, length), "output")
        try:
            return bytes(self._ffi.buffer(out[0], length[0])) if length[0] else b""
        finally:
            self._lib.ghostty_free(self._ffi.NULL, out[0], length[0])
