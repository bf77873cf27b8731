"""The terminal emulator behind a small interface: takes bytes, gives replies and readable state.

`screen.py` and `paint.py` know only the class `Emulator` (rows and cells are in `grid.py`). So
another emulator with the same methods can replace libghostty-vt. The emulator must not know of
sessions, viewers, blobs or offsets.

Traps of the library that are handled here:
- The library ignores a line limit alone (it keeps about 1,000 rows in any case), so a byte limit is
  set too. It prunes history by pages of some hundred rows: "lines" is approximate.
- The parser draws DEL, which all other terminals ignore, so DEL is left out.
- The library refuses to write a snapshot of a screen with half a wide character at the right edge.
  A resize leaves such halves of CJK text in the alternate screen. See `resize` and `_encode_part`.
- The library cannot read the inactive screen, the saved cursor or kitty's stack. For those there is
  `copy`: the caller sends the copy the bytes that a program would send, and reads the result.
- Kitty graphics are switched off: images are not in a snapshot, and would be gone after a restart.

One thread at a time may use an Emulator. Native calls release the GIL.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass

from holdfast.host.terminal.ghostty import C, Native, native
from holdfast.host.terminal.grid import Grid

HISTORY_MAX_BYTES = 64 << 20  # per session, uncompressed; 10,000 lines of 80 columns take 6.5 MB
CONTINUATION_MAX = 16 << 10  # longest unfinished sequence kept; beyond that the content is dropped
APC_MAX = 4096  # no APC protocol is in use
COPY_BUDGET = 512 << 10  # bytes of a snapshot that hold the visible screens
COPY_BUDGET_CELL = 16  # additional bytes for each wanted cell of the history

Buffer = bytes | bytearray | memoryview
Colour = tuple[int, int, int]

_DEL = re.compile(rb"\x7f+")


def version() -> str:
    """Names the exact library build: native snapshots are only exchanged between equal ones."""
    return native().version


@dataclass(frozen=True, slots=True)
class Cursor:
    x: int
    y: int
    pending_wrap: bool  # the last column was written; the next character goes to the next line


class Emulator(Grid):
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

    def _adopt(self, library: Native, terminal: C) -> None:
        self._bind(library, terminal)
        self._free = weakref.finalize(self, library.lib.ghostty_terminal_free, terminal)
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

    def _set(self, option: str, ctype: str, value: int) -> None:
        pointer = self._ffi.new(ctype + "*", value)
        self._check(
            self._lib.ghostty_terminal_set(self._t, self._native.opt[option], pointer), option
        )

    # ------------------------------------------------------------ input

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
        """Whether the parser is outside any escape sequence and any UTF-8 character."""
        return bool(self._read("VT_GROUND", self._flag))

    def continuation(self) -> bytes | None:
        """The bytes that bring a parser at ground to this parser's state; None if too many."""
        buffer, length = self._ffi.new("uint8_t[]", CONTINUATION_MAX), self._ffi.new("size_t*")
        if self._lib.ghostty_terminal_continuation_buf(self._t, buffer, CONTINUATION_MAX, length):
            return None
        return bytes(self._ffi.buffer(buffer, length[0]))

    def resize(self, cols: int, rows: int) -> None:
        wrap = self.mode(7)
        self._set_mode(7, True)  # always reflow lines: else the library cuts characters
        self._check(
            self._lib.ghostty_terminal_resize(self._t, cols, rows, 0, 0), f"size {cols}x{rows}"
        )
        self._set_mode(7, wrap)
        self._link.cols, self._link.rows = cols, rows
        self._blank_halves()

    def _set_mode(self, mode: int, value: bool) -> None:
        """Sets a DEC mode's flag without the other effects of the escape sequence."""
        config = self._ffi.new("GhosttyTerminalModeConfig*", {"mode": mode, "value": value})
        self._check(
            self._lib.ghostty_terminal_set(self._t, self._native.opt["MODE"], config),
            f"mode {mode}",
        )

    def _blank_halves(self) -> None:
        """Erases half characters that a resize left at the right edge of the alternate screen."""
        cols, first, cursor = self._link.cols, self.history_rows, self.cursor
        rows = range(self._link.rows) if self.alternate else ()
        if halves := [y for y in rows if self.is_wide_head(cols - 1, first + y)]:
            origin, pen = self.mode(6), self.extra("style")
            self._set_mode(6, False)
            erase = b"".join(b"\x1b[%d;%dH\x1b[X" % (y + 1, cols) for y in halves)
            self.write(b"\x1b[0m%b%b\x1b[%d;%dH" % (erase, pen, cursor.y + 1, cursor.x + 1))
            self._set_mode(6, origin)

    def set_default_shape(self, shape: int) -> None:
        """Sets the shape of a cursor that the program left at the default."""
        self._set("DEFAULT_CURSOR_STYLE", "int", shape)

    # ------------------------------------------------------------ state

    @property
    def size(self) -> tuple[int, int]:
        return self._read("COLS", self._short), self._read("ROWS", self._short)

    @property
    def cursor(self) -> Cursor:
        x, y = self._read("CURSOR_X", self._short), self._read("CURSOR_Y", self._short)
        # After a tab backwards the flag is still set, but a restored snapshot would not have the
        # flag. So the flag counts only at the edge.
        at_edge = x == self._link.cols - 1 or self.mode(69)
        return Cursor(x, y, at_edge and bool(self._read("CURSOR_PENDING_WRAP", self._flag)))

    @property
    def alternate(self) -> bool:
        return bool(self._get("ACTIVE_SCREEN", "int"))

    @property
    def kitty_flags(self) -> int:
        return int(self._get("KITTY_KEYBOARD_FLAGS", "uint8_t"))

    @property
    def title(self) -> bytes:
        text = self._get("TITLE", "GhosttyString")
        return bytes(self._ffi.buffer(text.ptr, text.len)) if text.len else b""

    def palette_changes(self) -> list[tuple[int, Colour]]:
        """Palette entries that the program changed."""
        now, was = self._ffi.new("GhosttyColorRgb[256]"), self._ffi.new("GhosttyColorRgb[256]")
        for key, out in (("COLOR_PALETTE", now), ("COLOR_PALETTE_DEFAULT", was)):
            self._check(self._lib.ghostty_terminal_get(self._t, self._native.data[key], out), key)
        if self._ffi.buffer(now)[:] == self._ffi.buffer(was)[:]:
            return []
        pairs = (
            (i, (now[i].r, now[i].g, now[i].b), (was[i].r, was[i].g, was[i].b)) for i in range(256)
        )
        return [(i, colour) for i, colour, default in pairs if colour != default]

    def dynamic_colours(self) -> list[tuple[int, Colour]]:
        """Foreground (10), background (11) and cursor (12) colours that the program set."""
        found = []
        for number, key in (
            (10, "COLOR_FOREGROUND"),
            (11, "COLOR_BACKGROUND"),
            (12, "COLOR_CURSOR"),
        ):
            out = self._ffi.new("GhosttyColorRgb*")
            if not self._lib.ghostty_terminal_get(self._t, self._native.data[key], out):
                found.append((number, (out.r, out.g, out.b)))
        return found

    # ------------------------------------------------------------ snapshots

    def encode(self) -> bytes:
        """The whole state in the library's format; b"" if the library refuses to write it."""
        return self._encode_part(0)[0]

    def copy(self, history: int = 0) -> Emulator:
        """A copy to experiment with: at ground, with both screens, all state, and history.

        It has at least `history` lines. A snapshot has the newest rows first, so its beginning is
        enough. If the library refuses a snapshot, the copy is blank.
        """
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
        """A snapshot or, with a budget, its first bytes; and whether these are all.

        The library refuses when a resize cut a character in two in the alternate screen. `resize`
        repairs the screen in use; the text that an ended program left in the alternate screen is
        given up.
        """
        parts, refused = self._try_encode(budget)
        if refused and not self.alternate:
            self.write(b"\x1b[?47h\x1b[2J\x1b[?47l")
            parts, refused = self._try_encode(budget)
        if refused:
            return b"", True
        return parts, not budget or len(parts) < budget

    def _try_encode(self, budget: int) -> tuple[bytes, bool]:
        parts = bytearray()

        def collect(_userdata: C, data: C, length: int) -> bool:
            parts.extend(self._ffi.buffer(data, length))
            return not budget or len(parts) < budget

        callback = self._ffi.callback("bool(void*, const uint8_t*, size_t)", collect)
        writer = self._ffi.new("GhosttyWriter*", {"write": callback, "userdata": self._ffi.NULL})
        result = self._lib.ghostty_snapshot_encode(self._t, writer[0])
        return bytes(parts), bool(result) and not (budget and len(parts) >= budget)

    @classmethod
    def decode(cls, snapshot: bytes, cut: bool = False, history: bool = True) -> Emulator | None:
        """The emulator that `encode` wrote; None if unreadable.

        With `cut`, the end may be missing: the emulator then has the history that is there.
        """
        library = native()
        ffi, lib, check = library.ffi, library.lib, library.check
        decoder, terminal = ffi.new("GhosttySnapshotDecoder*"), ffi.new("GhosttyTerminal*")
        limit = library.decoder["MAX_CONTINUATION_BYTES"]
        keep = library.decoder["RETAIN_CONTINUATION"]
        with ffi.from_buffer("uint8_t[]", snapshot) as buffer:
            check(
                lib.ghostty_snapshot_decoder_new_buf(ffi.NULL, decoder, buffer, len(snapshot)),
                "decoder",
            )
            try:
                check(
                    lib.ghostty_snapshot_decoder_set(
                        decoder[0], limit, ffi.new("size_t*", CONTINUATION_MAX)
                    ),
                    "limit",
                )
                check(
                    lib.ghostty_snapshot_decoder_set(decoder[0], keep, ffi.new("bool*", True)),
                    "keep",
                )
                decode = (
                    lib.ghostty_snapshot_decoder_ready
                    if cut
                    else lib.ghostty_snapshot_decoder_decode
                )
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
        """Writes from `start` to the end of the sequence in progress; returns where that is."""
        if end <= start:
            return start
        consumed = self._ffi.new("size_t*")
        write = self._lib.ghostty_terminal_vt_write_until_ground
        unfinished = write(self._terminal, self._buffer + start, end - start, consumed)
        return end if unfinished else start + int(consumed[0])
