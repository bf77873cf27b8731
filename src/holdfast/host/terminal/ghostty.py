"""Loads libghostty-vt: the library, the declarations in use, the constants and the callbacks.

Why not `import pyghostty`: that import parses the whole C header (230 ms here, much of a host's
restart), of which a fifth is in use. So only the shared library is loaded, with the declarations
below. The library describes its types (`ghostty_type_json`). Constants come from there, and the
layout of every struct is compared on loading: a library that does not fit raises
`EmulatorUnusable` instead of corrupting memory.

Answers to the program (`screen.py` lets only fixed shapes through): DA1 says VT220 with colour. DA2
says level 277, from which vim concludes that the SGR mouse works. XTVERSION says holdfast. Sizes
are in cells, with 0 for pixels, because viewers differ. Title reports, ENQ and the clipboard are
off in the library.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

C = Any
"""A value of the C library, as cffi gives it."""

XTVERSION = b"holdfast"
DA_LEVEL, DA_FEATURES, DA_TYPE, DA_FIRMWARE = 62, (22,), 1, 277

_CDEF = """
typedef struct TerminalImpl* GhosttyTerminal;
typedef struct DecoderImpl* GhosttySnapshotDecoder;
typedef struct FormatterImpl* GhosttyFormatter;
typedef struct { const uint8_t* ptr; size_t len; } GhosttyString;
typedef struct { uint8_t r; uint8_t g; uint8_t b; } GhosttyColorRgb;
typedef struct { uint16_t conformance_level; uint16_t features[64]; size_t num_features; }
    DAPrimary;
typedef struct { uint16_t device_type; uint16_t firmware_version; uint16_t rom_cartridge; }
    DASecondary;
typedef struct { uint32_t unit_id; } DATertiary;
typedef struct { DAPrimary primary; DASecondary secondary; DATertiary tertiary; }
    GhosttyDeviceAttributes;
typedef struct { uint16_t rows; uint16_t columns; uint32_t cell_width; uint32_t cell_height; }
    GhosttySizeReportSize;
typedef struct { bool (*write)(void*, const uint8_t*, size_t); void* userdata; } GhosttyWriter;
/* in libghostty a union, which is passed in the same way */
typedef struct { uint16_t x; uint32_t y; uint64_t pad; } PointValue;
typedef struct { int tag; PointValue value; } GhosttyPoint;
typedef struct { size_t size; void* node; uint16_t x; uint16_t y; } GhosttyGridRef;
typedef struct { size_t size; GhosttyGridRef start; GhosttyGridRef end; bool rectangle; }
    GhosttySelection;
typedef struct { size_t size; bool cursor; bool style; bool hyperlink; bool protection;
    bool kitty_keyboard; bool charsets; } GhosttyFormatterScreenExtra;
typedef struct { size_t size; bool palette; bool modes; bool scrolling_region; bool tabstops;
    bool pwd; bool keyboard; GhosttyFormatterScreenExtra screen; } GhosttyFormatterTerminalExtra;
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
int ghostty_terminal_grid_ref(GhosttyTerminal, GhosttyPoint, GhosttyGridRef*);
int ghostty_grid_ref_row(const GhosttyGridRef*, uint64_t*);
int ghostty_grid_ref_cell(const GhosttyGridRef*, uint64_t*);
int ghostty_grid_ref_hyperlink_uri(const GhosttyGridRef*, uint8_t*, size_t, size_t*);
int ghostty_row_get(uint64_t, int, void*);
int ghostty_cell_get(uint64_t, int, void*);
uint8_t ghostty_unicode_codepoint_width(uint32_t);
size_t ghostty_unicode_grapheme_width(const uint32_t*, size_t, uint8_t*);
int ghostty_formatter_terminal_new(const void*, GhosttyFormatter*, GhosttyTerminal,
    GhosttyFormatterTerminalOptions);
int ghostty_formatter_format_alloc(GhosttyFormatter, const void*, uint8_t**, size_t*);
void ghostty_formatter_free(GhosttyFormatter);
int ghostty_snapshot_encode(GhosttyTerminal, GhosttyWriter);
int ghostty_snapshot_decoder_new_buf(const void*, GhosttySnapshotDecoder*, const uint8_t*, size_t);
int ghostty_snapshot_decoder_set(GhosttySnapshotDecoder, int, const void*);
int ghostty_snapshot_decoder_ready(GhosttySnapshotDecoder, GhosttyTerminal*);
int ghostty_snapshot_decoder_next(GhosttySnapshotDecoder);
int ghostty_snapshot_decoder_decode(GhosttySnapshotDecoder, GhosttyTerminal*);
void ghostty_snapshot_decoder_free(GhosttySnapshotDecoder);
"""
_STRUCTS = (
    "GhosttyString",
    "GhosttyColorRgb",
    "GhosttyDeviceAttributes",
    "GhosttySizeReportSize",
    "GhosttyWriter",
    "GhosttyPoint",
    "GhosttyGridRef",
    "GhosttySelection",
    "GhosttyFormatterScreenExtra",
    "GhosttyFormatterTerminalExtra",
    "GhosttyFormatterTerminalOptions",
    "GhosttyTerminalModeConfig",
)


class EmulatorUnusable(Exception):
    """The library is missing, does not fit these declarations, or refused a call."""


@dataclass(slots=True)
class Link:
    """The part of an emulator that callbacks reach.

    It makes no reference cycle, so the emulator's memory is freed without a collection.
    """

    replies: list[bytes]
    cols: int
    rows: int


class Native:
    """The loaded library: functions, constants by name, callbacks shared by all terminals."""

    def __init__(self, path: str | None = None) -> None:
        path = path or _library_path()
        self.ffi: C = import_module("cffi").FFI()
        self.ffi.cdef(_CDEF)
        try:
            self.lib: C = self.ffi.dlopen(path)
            described: bytes = self.ffi.string(self.lib.ghostty_type_json())
        except (OSError, AttributeError) as error:
            raise EmulatorUnusable(f"cannot load the terminal emulator {path}: {error}") from error
        types = json.loads(described)
        self.version = (
            f"{types['library_version']}-{zlib.crc32(described):08x}-{os.stat(path).st_size:x}"
        )
        self._types: dict[str, Any] = types["types"]
        for name in _STRUCTS:
            self._compare(name)
        self.opt = self._constants("GhosttyTerminalOption")
        self.data = self._constants("GhosttyTerminalData")
        self.row = self._constants("GhosttyRowData")
        self.cell = self._constants("GhosttyCellData")
        self.tag = self._constants("GhosttyCellContentTag")
        self.wide = self._constants("GhosttyCellWide")
        self.emit = self._constants("GhosttyFormatterFormat")
        self.point = self._constants("GhosttyPointTag")
        self.decoder = self._constants("GhosttySnapshotDecoderOption")
        self._xtversion = self.ffi.new("uint8_t[]", XTVERSION)
        make = self.ffi.callback
        self.callbacks = {
            "WRITE_PTY": make(
                "void(GhosttyTerminal, void*, const uint8_t*, size_t)", self._on_reply
            ),
            "XTVERSION": make("GhosttyString(GhosttyTerminal, void*)", self._on_xtversion),
            "SIZE": make("bool(GhosttyTerminal, void*, GhosttySizeReportSize*)", self._on_size),
            "DEVICE_ATTRIBUTES": make(
                "bool(GhosttyTerminal, void*, GhosttyDeviceAttributes*)", self._on_da
            ),
        }

    def check(self, result: int, what: str) -> None:
        if result:
            raise EmulatorUnusable(f"the terminal emulator refused: {what} ({result})")

    def _compare(self, name: str) -> None:
        ours, theirs = self.ffi.typeof(name), self._types.get(name, {})
        same = self.ffi.sizeof(ours) == theirs.get("size")
        if same and "fields" in theirs:
            offsets = {field: at.offset for field, at in ours.fields}
            same = offsets == {field: at["offset"] for field, at in theirs["fields"].items()}
        if not same:
            raise EmulatorUnusable(
                f"the terminal emulator {self.version} has another layout of {name}"
            )

    def _constants(self, name: str) -> dict[str, int]:
        try:
            values: dict[str, int] = self._types[name]["values"]
        except KeyError as error:
            raise EmulatorUnusable(
                f"the terminal emulator {self.version} does not know {name}"
            ) from error
        return values

    def _on_reply(self, _terminal: C, userdata: C, data: C, length: int) -> None:
        self.ffi.from_handle(userdata).replies.append(self.ffi.buffer(data, length)[:])

    def _on_xtversion(self, _terminal: C, _userdata: C) -> C:
        return {"ptr": self._xtversion, "len": len(XTVERSION)}

    def _on_size(self, _terminal: C, userdata: C, out: C) -> bool:
        link = self.ffi.from_handle(userdata)
        out.rows, out.columns, out.cell_width, out.cell_height = link.rows, link.cols, 0, 0
        return True

    def _on_da(self, _terminal: C, _userdata: C, out: C) -> bool:
        out.primary.conformance_level, out.primary.num_features = DA_LEVEL, len(DA_FEATURES)
        for i, feature in enumerate(DA_FEATURES):
            out.primary.features[i] = feature
        out.secondary.device_type, out.secondary.firmware_version = DA_TYPE, DA_FIRMWARE
        out.secondary.rom_cartridge, out.tertiary.unit_id = 0, 0
        return True


def _library_path() -> str:
    spec = find_spec("pyghostty")
    if spec is None or spec.origin is None:
        raise EmulatorUnusable(
            "pyghostty, the package that carries the terminal emulator, is not installed"
        )
    name = "libghostty-vt.dylib" if sys.platform == "darwin" else "libghostty-vt.so"
    return os.path.join(os.path.dirname(spec.origin), "_lib", name)


@cache
def native() -> Native:
    """The library of the installed pyghostty, loaded when the first terminal is made."""
    return Native()
