"""The terminal emulator: libghostty-vt behind a small interface.

Owns every call into the native library. `screen.py` and `paint.py` know only the class `Emulator`, so another emulator
can take its place by offering the same few methods. It must not know about sessions, viewers, blobs or offsets.

Why not `import pyghostty`: its import parses the whole C header (230 ms here, a third of a host restart), of which we use
a fifth. So only its shared library is loaded, with the declarations below. The library describes its own types
(`ghostty_type_json`): constants are taken from there and the layout of every struct is compared when it is loaded, so a
library that does not fit fails with `EmulatorUnusable` instead of corrupting memory.

What is answered to the program (`Emulator.write` collects it, `screen.py` lets only a fixed set of shapes through):
- DA1 says VT220 with colour, DA2 says level 277, from which vim concludes that the SGR mouse works. XTVERSION says
  holdfast. Sizes are cells; pixel sizes are 0, because viewers differ.
- title reports, ENQ, the clipboard and kitty graphics are off in the library; an image would not survive a snapshot.

A byte limit is set beside the line limit because the line limit alone is ignored below the library's default byte limit
(about 1,000 rows kept, whatever was asked). History is pruned by pages of some hundred rows, so "lines" is approximate.

One thread at a time per Emulator. Native calls release the GIL.
"""

from __future__ import annotations

import json
import os
import re
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

HISTORY_MAX_BYTES = 64 << 20  # per session, uncompressed; 10,000 lines of 80 columns need 6.5 MB
CONTINUATION_MAX = 16 << 10  # longest unfinished escape sequence that is kept; beyond it, its content is given up
APC_MAX = 4096  # no APC protocol is in use
READY_BUDGET = 512 << 10  # enough of a native snapshot to hold the visible screens, whatever the history
XTVERSION = b"holdfast"
DA_LEVEL, DA_FEATURES, DA_TYPE, DA_FIRMWARE = 62, (22,), 1, 277

Buffer = bytes | bytearray | memoryview

_CDEF = """
typedef struct TerminalImpl* GhosttyTerminal;
typedef struct DecoderImpl* GhosttySnapshotDecoder;
typedef struct FormatterImpl* GhosttyFormatter;
typedef struct { const uint8_t* ptr; size_t len; } GhosttyString;
typedef struct { uint8_t r; uint8_t g; uint8_t b; } GhosttyColorRgb;
typedef struct { uint16_t conformance_level; uint16_t features[64]; size_t num_features; } GhosttyDeviceAttributesPrimary;
typedef struct { uint16_t device_type; uint16_t firmware_version; uint16_t rom_cartridge; }
    GhosttyDeviceAttributesSecondary;
typedef struct { uint32_t unit_id; } GhosttyDeviceAttributesTertiary;
typedef struct { GhosttyDeviceAttributesPrimary primary; GhosttyDeviceAttributesSecondary secondary;
    GhosttyDeviceAttributesTertiary tertiary; } GhosttyDeviceAttributes;
typedef struct { uint16_t rows; uint16_t columns; uint32_t cell_width; uint32_t cell_height; } GhosttySizeReportSize;
typedef struct { bool (*write)(void*, const uint8_t*, size_t); void* userdata; } GhosttyWriter;
typedef struct { uint16_t x; uint32_t y; uint64_t pad; } PointValue; /* a union in C: a struct has the same call ABI */
typedef struct { int tag; PointValue value; } GhosttyPoint;
typedef struct { size_t size; void* node; uint16_t x; uint16_t y; } GhosttyGridRef;
typedef struct { size_t size; GhosttyGridRef start; GhosttyGridRef end; bool rectangle; } GhosttySelection;
typedef struct { size_t size; bool cursor; bool style; bool hyperlink; bool protection; bool kitty_keyboard;
    bool charsets; } GhosttyFormatterScreenExtra;
typedef struct { size_t size; bool palette; bool modes; bool scrolling_region; bool tabstops; bool pwd; bool keyboard;
    GhosttyFormatterScreenExtra screen; } GhosttyFormatterTerminalExtra;
typedef struct { size_t size; int emit; bool unwrap; bool trim; GhosttyFormatterTerminalExtra extra;
    const GhosttySelection* selection; } GhosttyFormatterTerminalOptions;
typedef struct { uint16_t mode; bool value; } GhosttyTerminalModeConfig;

const char* ghostty_type_json(void);
void ghostty_free(const void*, uint8_t*, size_t);
int ghostty_terminal_new(const void*, GhosttyTerminal*, uint16_t, uint16_t);
void ghostty_terminal_free(GhosttyTerminal);
int ghostty_terminal_resize(GhosttyTerminal, uint16_t, uint16_t, uint32_t, uint32_t);
int ghostty_terminal_set(GhosttyTerminal, int, const void*);
int ghostty_terminal_get(GhosttyTerminal, int, void*);
void ghostty_terminal_vt_write(GhosttyTerminal, const uint8_t*, size_t);
int ghostty_terminal_vt_write_until_ground(GhosttyTerminal, const uint8_t*, size_t, size_t*);
int ghostty_terminal_continuation_buf(GhosttyTerminal, uint8_t*, size_t, size_t*);
int ghostty_terminal_compress(GhosttyTerminal, int, int*);
int ghostty_terminal_grid_ref(GhosttyTerminal, GhosttyPoint, GhosttyGridRef*);
int ghostty_grid_ref_row(const GhosttyGridRef*, uint64_t*);
int ghostty_grid_ref_cell(const GhosttyGridRef*, uint64_t*);
int ghostty_grid_ref_hyperlink_uri(const GhosttyGridRef*, uint8_t*, size_t, size_t*);
uint8_t ghostty_unicode_codepoint_width(uint32_t);
int ghostty_row_get(uint64_t, int, void*);
int ghostty_cell_get(uint64_t, int, void*);
int ghostty_formatter_terminal_new(const void*, GhosttyFormatter*, GhosttyTerminal, GhosttyFormatterTerminalOptions);
int ghostty_formatter_format_alloc(GhosttyFormatter, const void*, uint8_t**, size_t*);
void ghostty_formatter_free(GhosttyFormatter);
int ghostty_snapshot_encode(GhosttyTerminal, GhosttyWriter);
int ghostty_snapshot_encode_alloc(GhosttyTerminal, const void*, uint8_t**, size_t*);
int ghostty_snapshot_decoder_new_buf(const void*, GhosttySnapshotDecoder*, const uint8_t*, size_t);
int ghostty_snapshot_decoder_set(GhosttySnapshotDecoder, int, const void*);
int ghostty_snapshot_decoder_ready(GhosttySnapshotDecoder, GhosttyTerminal*);
int ghostty_snapshot_decoder_next(GhosttySnapshotDecoder);
int ghostty_snapshot_decoder_decode(GhosttySnapshotDecoder, GhosttyTerminal*);
void ghostty_snapshot_decoder_free(GhosttySnapshotDecoder);
"""
_STRUCTS = (
    "GhosttyString GhosttyColorRgb GhosttyDeviceAttributes GhosttySizeReportSize GhosttyWriter GhosttyPoint "
    "GhosttyGridRef GhosttySelection GhosttyFormatterScreenExtra GhosttyFormatterTerminalExtra "
    "GhosttyFormatterTerminalOptions GhosttyTerminalModeConfig"
).split()


SGR = re.compile(rb"\x1b\[[0-9;:]*m")
_SHOWS = re.compile(rb"\x1b\[(?:4|7m|9m|53m)")  # attributes that show on a blank cell
_GAP = re.compile(rb"((?:\x1b\[[0-9;:]*m)+)[^\x1b]*?( +)\x1b\[0m")


class EmulatorUnusable(Exception):
    """The native library is missing, does not fit these declarations, or refused a call that cannot fail."""


@dataclass(slots=True)
class _Link:
    """What native callbacks reach of an Emulator: no cycle, so that freeing needs no garbage collection."""

    replies: list[bytes]
    cols: int
    rows: int


class _Native:
    """The loaded library: functions, constants by name, callbacks shared by all terminals."""

    def __init__(self) -> None:
        from cffi import FFI

        path = _library_path()
        self.ffi: Any = FFI()
        self.ffi.cdef(_CDEF)
        try:
            self.lib: Any = self.ffi.dlopen(path)
            described = self.ffi.string(self.lib.ghostty_type_json())
        except (OSError, AttributeError) as error:
            raise EmulatorUnusable(f"cannot load the terminal emulator {path}: {error}") from error
        types = json.loads(described)
        self.version = f"{types['library_version']}-{zlib.crc32(described):08x}-{os.stat(path).st_size:x}"
        self._types: dict[str, Any] = types["types"]
        for name in _STRUCTS:
            self._compare(name)
        self.result = self._constants("GhosttyResult")
        self.opt = self._constants("GhosttyTerminalOption")
        self.data = self._constants("GhosttyTerminalData")
        self.row = self._constants("GhosttyRowData")
        self.cell = self._constants("GhosttyCellData")
        self.wide = self._constants("GhosttyCellWide")
        self.emit = self._constants("GhosttyFormatterFormat")
        self.point = self._constants("GhosttyPointTag")
        self.decoder = self._constants("GhosttySnapshotDecoderOption")
        self.compression = self._constants("GhosttyTerminalCompressionMode")
        self._version_text = self.ffi.new("uint8_t[]", XTVERSION)
        callback = self.ffi.callback
        self.callbacks = {
            "WRITE_PTY": callback("void(GhosttyTerminal, void*, const uint8_t*, size_t)", self._on_reply),
            "XTVERSION": callback("GhosttyString(GhosttyTerminal, void*)", self._on_xtversion),
            "SIZE": callback("bool(GhosttyTerminal, void*, GhosttySizeReportSize*)", self._on_size),
            "DEVICE_ATTRIBUTES": callback("bool(GhosttyTerminal, void*, GhosttyDeviceAttributes*)", self._on_attributes),
        }

    def _compare(self, name: str) -> None:
        ours, theirs = self.ffi.typeof(name), self._types.get(name, {})
        same = self.ffi.sizeof(ours) == theirs.get("size")
        if same and "fields" in theirs:
            offsets = {field: at.offset for field, at in ours.fields}
            same = offsets == {field: at["offset"] for field, at in theirs["fields"].items()}
        if not same:
            raise EmulatorUnusable(f"the terminal emulator has another layout of {name}: version {self.version}")

    def _constants(self, name: str) -> dict[str, int]:
        try:
            values: dict[str, int] = self._types[name]["values"]
        except KeyError as error:
            raise EmulatorUnusable(f"the terminal emulator does not know {name}: version {self.version}") from error
        return values

    def check(self, result: int, what: str) -> None:
        if result:
            raise EmulatorUnusable(f"the terminal emulator refused: {what} ({result})")

    def _on_reply(self, _terminal: Any, userdata: Any, data: Any, length: int) -> None:
        self.ffi.from_handle(userdata).replies.append(self.ffi.buffer(data, length)[:])

    def _on_xtversion(self, _terminal: Any, _userdata: Any) -> Any:
        return {"ptr": self._version_text, "len": len(XTVERSION)}

    def _on_size(self, _terminal: Any, userdata: Any, out: Any) -> bool:
        link = self.ffi.from_handle(userdata)
        out.rows, out.columns, out.cell_width, out.cell_height = link.rows, link.cols, 0, 0
        return True

    def _on_attributes(self, _terminal: Any, _userdata: Any, out: Any) -> bool:
        out.primary.conformance_level, out.primary.num_features = DA_LEVEL, len(DA_FEATURES)
        for i, feature in enumerate(DA_FEATURES):
            out.primary.features[i] = feature
        out.secondary.device_type, out.secondary.firmware_version, out.secondary.rom_cartridge = DA_TYPE, DA_FIRMWARE, 0
        out.tertiary.unit_id = 0
        return True


def _library_path() -> str:
    if path := os.environ.get("PYGHOSTTY_LIB"):
        return path
    spec = find_spec("pyghostty")
    if spec is None or spec.origin is None:
        raise EmulatorUnusable("the package pyghostty, which carries the terminal emulator, is not installed")
    name = "libghostty-vt.dylib" if sys.platform == "darwin" else "libghostty-vt.so"
    return os.path.join(os.path.dirname(spec.origin), "_lib", name)


_native = cache(_Native)


def version() -> str:
    """Names the exact library build: native snapshots are only exchanged between equal ones."""
    return _native().version


@dataclass(frozen=True, slots=True)
class Cursor:
    x: int
    y: int
    pending_wrap: bool  # the last column was written; the next character goes to the next line


class Emulator:
    """A terminal: bytes in, replies and inspectable state out."""

    def __init__(self, cols: int, rows: int, scrollback_lines: int) -> None:
        native = _native()
        handle = native.ffi.new("GhosttyTerminal*")
        native.check(native.lib.ghostty_terminal_new(native.ffi.NULL, handle, cols, rows), "a new terminal")
        self._adopt(native, handle[0])
        self._set("SCROLLBACK_MAX_BYTES", "size_t", HISTORY_MAX_BYTES)
        self._set("SCROLLBACK_MAX_LINES", "size_t", scrollback_lines)
        self._set("DEFAULT_CURSOR_BLINK", "bool", False)

    def _adopt(self, native: _Native, terminal: Any) -> None:
        self._native, self._ffi, self._lib, self._t = native, native.ffi, native.lib, terminal
        self.close = weakref.finalize(self, native.lib.ghostty_terminal_free, terminal)
        self._link = _Link([], self._get("COLS", "uint16_t"), self._get("ROWS", "uint16_t"))
        self._link_handle = self._ffi.new_handle(self._link)
        self._check(self._lib.ghostty_terminal_set(terminal, native.opt["USERDATA"], self._link_handle), "userdata")
        for name, callback in native.callbacks.items():
            self._check(self._lib.ghostty_terminal_set(terminal, native.opt[name], callback), name)
        self._set("CONTINUATION_MAX_BYTES", "size_t", CONTINUATION_MAX)
        self._set("KITTY_IMAGE_STORAGE_LIMIT", "uint64_t", 0)
        self._set("APC_MAX_BYTES", "size_t", APC_MAX)
        self._set("GLYPH_PROTOCOL", "bool", False)

    def _check(self, result: int, what: str) -> None:
        self._native.check(result, what)

    def _set(self, option: str, ctype: str, value: int) -> None:
        pointer = self._ffi.new(ctype + "*", value)
        self._check(self._lib.ghostty_terminal_set(self._t, self._native.opt[option], pointer), option)

    def _get(self, key: str, ctype: str) -> Any:
        out = self._ffi.new(ctype + "*")
        self._check(self._lib.ghostty_terminal_get(self._t, self._native.data[key], out), key)
        return out[0]

    # -- input --------------------------------------------------------------------------------------------------------

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
        return bool(self._get("VT_GROUND", "bool"))

    def continuation(self) -> bytes | None:
        """The bytes that bring a parser at ground to where this one is; None when they were too many to keep."""
        buffer, length = self._ffi.new("uint8_t[]", CONTINUATION_MAX), self._ffi.new("size_t*")
        if self._lib.ghostty_terminal_continuation_buf(self._t, buffer, CONTINUATION_MAX, length):
            return None
        return bytes(self._ffi.buffer(buffer, length[0]))

    def resize(self, cols: int, rows: int) -> None:
        self._check(self._lib.ghostty_terminal_resize(self._t, cols, rows, 0, 0), f"size {cols}x{rows}")
        self._link.cols, self._link.rows = cols, rows

    def set_mode(self, mode: int, value: bool) -> None:
        """Set a DEC mode's flag without the effects that the escape sequence has."""
        config = self._ffi.new("GhosttyTerminalModeConfig*", {"mode": mode, "value": value})
        self._check(self._lib.ghostty_terminal_set(self._t, self._native.opt["MODE"], config), f"mode {mode}")

    def follow_cursor_shape(self, shape: int) -> None:
        """Set the shape of a cursor that the program left at the default."""
        self._set("DEFAULT_CURSOR_STYLE", "int", shape)

    def compact(self) -> None:
        """Compress the history in memory. It is unpacked again when it is read."""
        result = self._ffi.new("int*")
        self._check(self._lib.ghostty_terminal_compress(self._t, self._native.compression["FULL"], result), "compress")

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        return self._get("COLS", "uint16_t"), self._get("ROWS", "uint16_t")

    @property
    def cursor(self) -> Cursor:
        wrap = bool(self._get("CURSOR_PENDING_WRAP", "bool"))
        return Cursor(self._get("CURSOR_X", "uint16_t"), self._get("CURSOR_Y", "uint16_t"), wrap)

    @property
    def alternate(self) -> bool:
        return bool(self._get("ACTIVE_SCREEN", "int"))

    @property
    def history_rows(self) -> int:
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
        self._check(self._lib.ghostty_terminal_get(self._t, self._native.data["MODE"], config), f"mode {mode}")
        return bool(config.value)

    def palette_changes(self) -> list[tuple[int, tuple[int, int, int]]]:
        """Palette entries that the program changed."""
        size = 256 * 3
        now, was = self._ffi.new("GhosttyColorRgb[256]"), self._ffi.new("GhosttyColorRgb[256]")
        for key, out in (("COLOR_PALETTE", now), ("COLOR_PALETTE_DEFAULT", was)):
            self._check(self._lib.ghostty_terminal_get(self._t, self._native.data[key], out), key)
        if self._ffi.buffer(now, size) == self._ffi.buffer(was, size):
            return []
        pairs = ((i, (now[i].r, now[i].g, now[i].b), (was[i].r, was[i].g, was[i].b)) for i in range(256))
        return [(i, rgb) for i, rgb, default in pairs if rgb != default]

    def dynamic_colours(self) -> list[tuple[int, tuple[int, int, int]]]:
        """Foreground (10), background (11) and cursor (12) colours that the program set."""
        found = []
        for number, key in ((10, "COLOR_FOREGROUND"), (11, "COLOR_BACKGROUND"), (12, "COLOR_CURSOR")):
            out = self._ffi.new("GhosttyColorRgb*")
            if not self._lib.ghostty_terminal_get(self._t, self._native.data[key], out):
                found.append((number, (out.r, out.g, out.b)))
        return found

    # -- cells: y counts from the oldest row of history -----------------------------------------------------------------

    def rows_vt(self, first: int, count: int) -> list[bytes]:
        """Rows as text with SGR, each complete in itself, without trailing default blanks."""
        rows = self._rows("VT", b"\r\n", first, count, False)
        return [self._true_gaps(row, 0, first + i) if _SHOWS.search(row) else row for i, row in enumerate(rows)]

    def rows_text(self, first: int, count: int) -> list[str]:
        """Rows as plain text, trailing spaces trimmed."""
        return [row.decode("utf-8", "replace").rstrip(" ") for row in self._rows("PLAIN", b"\n", first, count, True)]

    def cells_vt(self, y: int, x: int, end: int) -> bytes:
        """The cells from x up to but not including end of one row as text with SGR."""
        if end <= x:
            return b""
        cells = self._format("VT", (x, y), (end - 1, y))
        return self._true_gaps(cells, x, y) if _SHOWS.search(cells) else cells

    def _true_gaps(self, cells: bytes, x: int, y: int) -> bytes:
        """The library writes empty cells between two texts in the style of the first one, where a background, an underline
        or reverse video would show. Write them in no style."""
        out, done = [], 0
        for match in _GAP.finditer(cells):
            if not _SHOWS.search(match[1]) or match.end() == len(cells):
                continue
            end = x + self._width(cells[: match.end(2)])
            styled = self._format("VT", (end - len(match[2]), y), (end - 1, y)).count(b" ")
            if styled < len(match[2]):
                out += [cells[done : match.start(2) + styled], b"\x1b[0m", match[2][styled:]]
                done = match.end(2)
        return b"".join((*out, cells[done:]))

    def _width(self, cells: bytes) -> int:
        text = SGR.sub(b"", cells)
        if text.isascii():
            return len(text)
        width = self._lib.ghostty_unicode_codepoint_width
        return sum(1 if char < "\x7f" else width(ord(char)) for char in text.decode("utf-8", "replace"))

    def extra(self, *names: str) -> bytes:
        """State of the active screen as VT: style, charsets, hyperlink, protection, tabstops, scrolling_region, keyboard."""
        cell = (0, self.history_rows)
        with_cell, alone = self._format("VT", cell, cell, extra=names), self._format("VT", cell, cell)
        if alone and with_cell.startswith(alone):
            return with_cell[len(alone) :]
        return with_cell.removesuffix(alone)

    def wrapped(self, y: int) -> bool:
        """Whether row y flows on into the next one and, printed again, would do so by itself."""
        cols = self._link.cols
        last = self._ref(cols - 1, y)
        raw, flag = self._ffi.new("uint64_t*"), self._ffi.new("bool*")
        self._check(self._lib.ghostty_grid_ref_row(last, raw), "row")
        self._check(self._lib.ghostty_row_get(raw[0], self._native.row["WRAP"], flag), "wrap")
        if not flag[0] or y + 1 >= self.history_rows + self._link.rows:
            return False
        if self._wide(last) == self._native.wide["SPACER_HEAD"]:
            return self._wide(self._ref(0, y + 1)) == self._native.wide["WIDE"]
        return self._wide(last) == self._native.wide["SPACER_TAIL"] or self.cells_vt(y, cols - 1, cols) != b""

    def is_wide_head(self, x: int, y: int) -> bool:
        return self._wide(self._ref(x, y)) == self._native.wide["WIDE"]

    def is_wide_tail(self, x: int, y: int) -> bool:
        return self._wide(self._ref(x, y)) == self._native.wide["SPACER_TAIL"]

    def has_links(self, y: int) -> bool:
        raw, flag = self._ffi.new("uint64_t*"), self._ffi.new("bool*")
        self._check(self._lib.ghostty_grid_ref_row(self._ref(0, y), raw), "row")
        self._check(self._lib.ghostty_row_get(raw[0], self._native.row["HYPERLINK"], flag), "hyperlink")
        return bool(flag[0])

    def link(self, x: int, y: int) -> bytes:
        """The hyperlink of a cell, or nothing."""
        length, ref = self._ffi.new("size_t*"), self._ref(x, y)
        self._lib.ghostty_grid_ref_hyperlink_uri(ref, self._ffi.NULL, 0, length)
        if not length[0]:
            return b""
        buffer = self._ffi.new("uint8_t[]", length[0])
        self._check(self._lib.ghostty_grid_ref_hyperlink_uri(ref, buffer, length[0], length), "hyperlink")
        return bytes(self._ffi.buffer(buffer, length[0]))

    def _wide(self, ref: Any) -> int:
        raw, out = self._ffi.new("uint64_t*"), self._ffi.new("int*")
        self._check(self._lib.ghostty_grid_ref_cell(ref, raw), "cell")
        self._check(self._lib.ghostty_cell_get(raw[0], self._native.cell["WIDE"], out), "width")
        return int(out[0])

    def _ref(self, x: int, y: int) -> Any:
        ref = self._ffi.new("GhosttyGridRef*", {"size": self._ffi.sizeof("GhosttyGridRef")})
        point = self._ffi.new("GhosttyPoint*", {"tag": self._native.point["SCREEN"], "value": {"x": x, "y": y}})
        self._check(self._lib.ghostty_terminal_grid_ref(self._t, point[0], ref), f"cell {x},{y}")
        return ref

    def _rows(self, emit: str, newline: bytes, first: int, count: int, trim: bool) -> list[bytes]:
        if count <= 0:
            return []
        end = (self._link.cols - 1, first + count - 1)
        rows = self._format(emit, (0, first), end, trim=trim).split(newline)
        return rows + [b""] * (count - len(rows))

    def _format(
        self, emit: str, start: tuple[int, int], end: tuple[int, int], extra: Iterable[str] = (), trim: bool = False
    ) -> bytes:
        ffi, lib = self._ffi, self._lib
        selection = ffi.new("GhosttySelection*", {"size": ffi.sizeof("GhosttySelection")})
        selection.start, selection.end = self._ref(*start)[0], self._ref(*end)[0]
        options = ffi.new("GhosttyFormatterTerminalOptions*")
        options.size, options.extra.size = ffi.sizeof(options[0]), ffi.sizeof("GhosttyFormatterTerminalExtra")
        options.extra.screen.size = ffi.sizeof("GhosttyFormatterScreenExtra")
        options.emit, options.trim, options.selection = self._native.emit[emit], trim, selection
        for name in extra:
            target = options.extra if hasattr(options.extra, name) else options.extra.screen
            setattr(target, name, True)
        formatter = ffi.new("GhosttyFormatter*")
        self._check(lib.ghostty_formatter_terminal_new(ffi.NULL, formatter, self._t, options[0]), "formatter")
        try:
            return self._allocated(lambda out, n: lib.ghostty_formatter_format_alloc(formatter[0], ffi.NULL, out, n))
        finally:
            lib.ghostty_formatter_free(formatter[0])

    def _allocated(self, call: Callable[[Any, Any], int]) -> bytes:
        out, length = self._ffi.new("uint8_t**"), self._ffi.new("size_t*")
        self._check(call(out, length), "output")
        try:
            return bytes(self._ffi.buffer(out[0], length[0])) if length[0] else b""
        finally:
            self._lib.ghostty_free(self._ffi.NULL, out[0], length[0])

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Everything, history included, in the library's own format. Fails when the continuation was given up."""
        lib, null = self._lib, self._ffi.NULL
        return self._allocated(lambda out, n: lib.ghostty_snapshot_encode_alloc(self._t, null, out, n))

    def scratch(self) -> Emulator:
        """A copy to try things on: both screens and all state, little of the history, parser at ground."""
        parts: list[bytes] = []
        budget = READY_BUDGET

        def collect(_userdata: Any, data: Any, length: int) -> bool:
            nonlocal budget
            parts.append(bytes(self._ffi.buffer(data, length)))
            budget -= length
            return budget > 0

        callback = self._ffi.callback("bool(void*, const uint8_t*, size_t)", collect)
        writer = self._ffi.new("GhosttyWriter*", {"write": callback, "userdata": self._ffi.NULL})
        self._lib.ghostty_snapshot_encode(self._t, writer[0])
        copy = Emulator.decode(b"".join(parts), history=0) or Emulator.decode(self.encode(), history=0)
        if copy is None:
            raise EmulatorUnusable("the terminal emulator does not read its own snapshot")
        if not copy.ground:
            copy.write(b"\x18")
        return copy

    @classmethod
    def decode(cls, snapshot: bytes, history: int | None = None) -> Emulator | None:
        """What `encode` gave, with at least `history` lines of history (None: all); None if it is not readable."""
        native = _native()
        ffi, lib = native.ffi, native.lib
        decoder, terminal = ffi.new("GhosttySnapshotDecoder*"), ffi.new("GhosttyTerminal*")
        with ffi.from_buffer("uint8_t[]", snapshot) as buffer:
            native.check(lib.ghostty_snapshot_decoder_new_buf(ffi.NULL, decoder, buffer, len(snapshot)), "decoder")
            try:
                keep = native.decoder["MAX_CONTINUATION_BYTES"], native.decoder["RETAIN_CONTINUATION"]
                native.check(lib.ghostty_snapshot_decoder_set(decoder[0], keep[0], ffi.new("size_t*", CONTINUATION_MAX)), "")
                native.check(lib.ghostty_snapshot_decoder_set(decoder[0], keep[1], ffi.new("bool*", True)), "")
                decode = lib.ghostty_snapshot_decoder_decode if history is None else lib.ghostty_snapshot_decoder_ready
                if decode(decoder[0], terminal):
                    return None
                self = cls.__new__(cls)
                self._adopt(native, terminal[0])
                while history is not None and self.history_rows < history:
                    if lib.ghostty_snapshot_decoder_next(decoder[0]):
                        break
                return self
            finally:
                lib.ghostty_snapshot_decoder_free(decoder[0])


class _Writer:
    def __init__(self, emulator: Emulator, data: Buffer) -> None:
        self._emulator, self._data = emulator, data
        self._lib, self._ffi = emulator._lib, emulator._ffi

    def __enter__(self) -> _Writer:
        self._buffer = self._ffi.from_buffer("uint8_t[]", self._data)
        return self

    def __exit__(self, *_: object) -> None:
        self._ffi.release(self._buffer)

    def write(self, start: int, end: int) -> None:
        if end > start:
            self._lib.ghostty_terminal_vt_write(self._emulator._t, self._buffer + start, end - start)

    def write_until_ground(self, start: int, end: int) -> int:
        """Write from start only as far as needed to finish the sequence in progress; how far that was."""
        length = end - start
        if length <= 0:
            return start
        consumed = self._ffi.new("size_t*")
        result = self._lib.ghostty_terminal_vt_write_until_ground(
            self._emulator._t, self._buffer + start, length, consumed
        )
        return start + (length if result else int(consumed[0]))
