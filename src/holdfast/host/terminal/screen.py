"""The model of one session's terminal: what a viewer would see, derived from the raw bytes.

Owns: the exact offset at which a terminal query ended, what may be answered to it, the safe place to cut the stream,
the snapshot blob, and the views of the screen. It knows no ring, no viewer, no clock. The emulator is behind
`emulator.py`, the bytes for a viewer's terminal are composed in `paint.py`.

Offsets. `pending` is how many of the bytes fed last belong to an unfinished escape sequence or character. `paint()` and
`save()` describe the screen as of (bytes fed - pending): whoever uses them goes on with the raw bytes from there. So
the unfinished part is in neither, and a viewer's filter sees whole sequences. A string longer than PENDING_MAX (an
image, an endless OSC) is not waited for: then `pending` is 0, and paint and blob end inside a string that is ignored.
An incomplete UTF-8 character is kept here and fed with its end: the emulator draws a substitute when one is cut.

Replies. The emulator answers while it reads, without saying where. Whether a sequence is answered does not depend on
the terminal's state, so when something was answered (rare), the chunk goes once more through a blank terminal, in
pieces that end after every sequence that could be (`_CUT`, a superset). A reply belongs to the first point outside any
sequence after it came: the same place however the stream was chunked, so that a restarted host recognises a query it
has answered. Cutting every chunk instead cost 40% of the speed on coloured text. Only shapes without any program-chosen
text pass (`_SAFE`): a reply is typed into a shell. Colours, clipboard, title, termcap: no answer; programs that ask for
a colour ask for DA1 as well and stop waiting on its answer.

DECCOLM: 132 columns on request would resize the model alone, so the size is put back.

The blob holds the emulator's own snapshot (exact, only for the same library build), and beside it painted bytes, from
which any build can restore all but the older history. Rejected: painted bytes alone (no XTSAVE, no protection, 10x
slower for 10,000 lines); replaying the ring (the bytes that drew the screen roll off).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from holdfast.host import paint
from holdfast.host.emulator import CONTINUATION_MAX, Buffer, Emulator, version
from holdfast.model.limits import COLS_MAX, COLS_MIN, ROWS_MAX, ROWS_MIN, SCROLLBACK_LINES

PENDING_MAX = CONTINUATION_MAX // 2  # the longest unfinished sequence that is waited for
INTRODUCER_BYTES = 8  # of an unfinished sequence: enough to know its kind
HALVES_BYTES = 12  # incomplete characters in a row that are kept back; a stream of them is not text
PORTABLE_LINES = 500  # history in the portable half of a blob
UNPACKED_MAX = 256 << 20  # a blob unpacks to at most this much

FORMAT = 1
_MAGIC = b"HFSCREEN"
_HEAD = struct.Struct("<8sH16s")
_BODY = struct.Struct("<HHIHHII")

_BROKEN = rb"[\x18\x1a\x1b\x80-\x9f]"  # ends or restarts a string
_CUT = re.compile(
    rb"\x1b(?:"
    rb"\[[^\x18\x1a\x1b\x40-\x7e\x80-\xff]*+[chnpqrtux\x80-\xff]"  # CSI that may be answered
    rb"|[\x00-\x17\x19\x1c-\x2f\x7f]*+[Z\x80-\xff]"  # DECID; a C1 byte, which acts inside a sequence
    rb"|P[^\x18\x1a\x1b\x80-\x9f]*+"
    + _BROKEN
    + rb"|[X^_][^\x18\x1a\x1b\x80-\x9f]*+"
    + _BROKEN
    + rb")"
)
_SAFE = re.compile(
    rb"\x1b\[(?:\?62;22c|>1;277;0c|0n|\d{1,5};\d{1,5}R|\??\d{1,5};[0-4]\$y|\?\d{1,2}u|\?999;[12]n"
    rb"|8;\d{1,5};\d{1,5}t|48;\d{1,5};\d{1,5};0;0t)"
    rb"|\x1bP(?:!\|0{8}|>\|holdfast|[01]\$r(?:[0-9;:]{0,120}(?:m|r|s| q))?)\x1b\\"
)
_HALF = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})+\Z")
_NAMES = {
    1: "application_cursor",
    5: "reverse_video",
    6: "origin",
    7: "autowrap",
    66: "application_keypad",
    1004: "focus_events",
    1006: "mouse_sgr",
    2004: "bracketed_paste",
    2026: "synchronized_output",
}
_MOUSE = (9, 1000, 1002, 1003)

_ASCII = re.compile(rb"(?:\x1b[()*+]B|\x0f)*")


class SnapshotUnreadable(Exception):
    """A blob that is not one of ours, is damaged, or comes from a format this release cannot read."""


class Screen:
    """A terminal's state. One thread at a time; feeding releases the GIL and does not copy."""

    def __init__(self, cols: int, rows: int, scrollback_lines: int = SCROLLBACK_LINES) -> None:
        _check_size(cols, rows)
        self._start(Emulator(cols, rows, scrollback_lines), cols, rows, scrollback_lines)

    def _start(self, emulator: Emulator, cols: int, rows: int, scrollback_lines: int) -> None:
        self._emulator, self._cols, self._rows, self._lines = emulator, cols, rows, scrollback_lines
        self._carry = b""  # an incomplete character, not fed yet
        self._unfinished = 0  # bytes since the ESC of a sequence that is not finished
        self._introducer = b""  # its first bytes
        self._ground = True
        self._late: list[bytes] = []  # answers to a sequence that is not quite finished

    def close(self) -> None:
        """Free the native memory now rather than with the object."""
        self._emulator.close()

    @property
    def size(self) -> tuple[int, int]:
        return self._cols, self._rows

    # -- input --------------------------------------------------------------------------------------------------------

    def feed(self, data: Buffer) -> bytes:
        """Take output of the program; what the terminal answers to it."""
        return b"".join(reply for _, reply in self.feed_replies(data))

    def feed_replies(self, data: Buffer) -> list[tuple[int, bytes]]:
        """Take output; (index in data just after a query, answer) of each query in it."""
        end = len(data) - self._hold(data)
        if end <= 0:
            return []
        emulator, at, answered = self._emulator, 0, list[tuple[int, bytes]]()
        with emulator.writer(data) as writer:
            if not self._ground:
                at = writer.write_until_ground(0, end)
                if emulator.ground:
                    self._late += _safe(emulator.take_replies())
                    answered, self._late = [(at, reply) for reply in self._late], []
            writer.write(at, end)
        self._ground = emulator.ground
        if replies := self._late + _safe(emulator.take_replies()):
            places = _places(data, at, end)
            answered += zip(places, replies, strict=False)
            self._late = replies[len(places) :]
        if emulator.size != self.size:
            emulator.resize(*self.size)
        self._count_unfinished(data, end)
        return answered

    def _hold(self, data: Buffer) -> int:
        """Keep an incomplete character at the end back, and feed one that was; how many bytes of data are kept."""
        half = _HALF.search((self._carry + bytes(data[-HALVES_BYTES:]))[-HALVES_BYTES:])
        kept = half[0] if half else b""
        of_data = min(len(kept), len(data))
        due = self._carry[: len(self._carry) - (len(kept) - of_data)]
        self._carry = kept
        if due:
            self._emulator.write(due)
            self._ground = False
            self._unfinished += len(due) if self._unfinished else 0
        return of_data

    def _count_unfinished(self, data: Buffer, end: int) -> None:
        begun = b"" if self._ground else self._emulator.continuation()
        if begun is not None and not begun.startswith(b"\x1b"):
            self._unfinished, self._introducer = 0, b""
            return
        escape = _last_escape(data, end)
        if escape >= 0:
            self._unfinished, self._introducer = 0, b""
        start = max(escape, 0)
        self._unfinished += end - start
        if len(self._introducer) < INTRODUCER_BYTES:
            self._introducer += bytes(data[start : min(end, start + INTRODUCER_BYTES)])

    @property
    def pending(self) -> int:
        """How many of the bytes fed last are the start of something unfinished. `paint` and `save` are without them."""
        return 0 if self._overlong else self._unfinished + len(self._carry)

    @property
    def _overlong(self) -> bool:
        return self._unfinished > PENDING_MAX

    def resize(self, cols: int, rows: int) -> bytes:
        """Change the size; what a program that asked for in-band size reports is told."""
        _check_size(cols, rows)
        if (cols, rows) == self.size:
            return b""
        self._emulator.resize(cols, rows)
        self._cols, self._rows = cols, rows
        return b"\x1b[48;%d;%d;0;0t" % (rows, cols) if self._emulator.mode(2048) else b""

    def compact(self) -> None:
        """Compress the history in memory, for a session that is idle (10,000 lines: 6.5 to 0.3 MB in 20 ms)."""
        self._emulator.compact()

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def save(self, complete: bool = True) -> bytes:
        """The whole state, as of (bytes fed - pending). Not `complete`: quicker, larger, for this build only."""
        with self._without_overlong() as inside:
            native = self._emulator.encode()
            complete = complete or not native
            portable = self._paint(PORTABLE_LINES, over=False) + inside if complete else b""
        level = 1 if complete else 0
        parts = (
            version().encode(),
            inside,
            zlib.compress(native, level),
            zlib.compress(portable, level),
        )
        lengths = [len(part) for part in parts]
        body = b"".join((_BODY.pack(self._cols, self._rows, self._lines, *lengths), *parts))
        return _HEAD.pack(_MAGIC, FORMAT, blake2b(body, digest_size=16).digest()) + body

    @classmethod
    def restore(cls, blob: bytes) -> Screen:
        """The Screen that was saved; SnapshotUnreadable if the blob does not verify."""
        if len(blob) < _HEAD.size + _BODY.size:
            raise SnapshotUnreadable(f"{len(blob)} bytes are too few for a screen snapshot")
        magic, form, digest = _HEAD.unpack_from(blob)
        body = memoryview(blob)[_HEAD.size :]
        if magic != _MAGIC or form != FORMAT:
            raise SnapshotUnreadable(
                f"not a screen snapshot of format {FORMAT}: {magic!r} format {form}"
            )
        if blake2b(body, digest_size=16).digest() != digest:
            raise SnapshotUnreadable("the screen snapshot is damaged: its checksum is wrong")
        cols, rows, lines, *lengths = _BODY.unpack_from(body)
        parts, at = [], _BODY.size
        for length in lengths:
            parts.append(bytes(body[at : at + length]))
            at += length
        library, inside, native, portable = parts
        try:
            _check_size(cols, rows)
            emulator = Emulator.decode(_unpack(native)) if library == version().encode() else None
            if emulator is not None and emulator.size == (cols, rows):
                emulator.write(b"\x18" if not emulator.ground else b"")
                emulator.write(inside)
            else:
                emulator = Emulator(cols, rows, lines)
                painted = _unpack(portable)
                if not painted:
                    raise ValueError("it is for another build of the emulator, and not complete")
                emulator.write(painted)
        except (ValueError, zlib.error) as error:
            raise SnapshotUnreadable(f"the screen snapshot makes no sense: {error}") from error
        emulator.take_replies()
        self = cls.__new__(cls)
        self._start(emulator, cols, rows, lines)
        if inside:
            self._ground, self._unfinished, self._introducer = False, PENDING_MAX + 1, inside
        return self

    # -- for viewers' terminals ---------------------------------------------------------------------------------------

    def paint(self, scrollback: int, over: bool = True) -> bytes:
        """Bytes that bring any xterm-compatible terminal of this size, in whatever state, to the state of this one as
        of (bytes fed - pending), after up to `scrollback` lines of history. What the terminal showed scrolls up; without `over` it is gone."""
        with self._without_overlong() as inside:
            return self._paint(scrollback, over) + inside

    def unpaint(self) -> bytes:
        """Bytes that put a viewer's terminal back in order when it leaves."""
        return paint.unpaint(self._emulator)

    def _paint(self, scrollback: int, over: bool) -> bytes:
        return paint.paint(self._emulator, max(0, min(scrollback, self._lines)), over)

    @contextmanager
    def _without_overlong(self) -> Iterator[bytes]:
        """With the parser at ground if a string is too long to be kept; gives what opens one to ignore in its place."""
        if not self._overlong:
            yield b""
            return
        inside = _OPENERS.get(self._introducer[1:2], b"\x1bX")
        self._emulator.write(b"\x18")
        try:
            yield inside
        finally:
            self._emulator.write(inside)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def flows_plainly(self) -> bool:
        """Whether text just fills lines and scrolls: primary screen, at ground, no margins, odd modes or charsets."""
        emulator = self._emulator
        return (
            not self.pending
            and emulator.ground
            and not emulator.alternate
            and emulator.mode(7)
            and not any(emulator.mode(mode) for mode in (6, 45, 69, 1045, 2026))
            and not emulator.mode(4, ansi=True)
            and not emulator.mode(20, ansi=True)
            and not emulator.extra("scrolling_region")
            and _ASCII.fullmatch(emulator.extra("charsets")) is not None
        )

    @property
    def cursor(self) -> tuple[int, int, bool]:
        """(x, y, visible), from 0."""
        cursor = self._emulator.cursor
        return cursor.x, cursor.y, self._emulator.mode(25)

    @property
    def alternate(self) -> bool:
        return self._emulator.alternate

    @property
    def title(self) -> str:
        return self._emulator.title.decode("utf-8", "replace")

    def modes(self) -> dict[str, bool]:
        """Modes that matter to whoever types or watches, by name."""
        emulator = self._emulator
        named = {name: emulator.mode(mode) for mode, name in _NAMES.items()}
        named["mouse"] = any(emulator.mode(mode) for mode in _MOUSE)
        named["insert"] = emulator.mode(4, ansi=True)
        named["cursor_visible"] = emulator.mode(25)
        named["kitty_keyboard"] = emulator.kitty_flags != 0
        return named | {"alternate_screen": self.alternate}

    def text(self) -> list[str]:
        """The visible rows, trailing spaces trimmed."""
        return self._emulator.rows_text(self._emulator.history_rows, self._rows)

    def history_text(self, count: int) -> list[str]:
        """The newest rows of the history (of the active screen), oldest first."""
        kept = self._emulator.history_rows
        count = max(0, min(count, kept))
        return self._emulator.rows_text(kept - count, count)

    def ansi(self) -> bytes:
        """The visible rows as text with SGR, one line each, without trailing blanks."""
        return b"".join(
            line + b"\x1b[0m\n"
            for line in self._emulator.rows_vt(self._emulator.history_rows, self._rows)
        )

    def width(self, text: str) -> int:
        """Columns that a text takes."""
        return self._emulator.width(text.encode("utf-8", "replace"))

    def row_vt(self, y: int, start: int = 0, end: int | None = None) -> bytes:
        """Columns start to end of a visible row as text with SGR, complete in itself and padded with blanks."""
        if not 0 <= y < self._rows:
            raise ValueError(f"row {y} of {self._rows}")
        end = self._cols if end is None else min(end, self._cols)
        start = max(0, min(start, end))
        at = self._emulator.history_rows + y
        cells = paint.row(self._emulator, at, start, end)
        return b"\x1b[0m" + cells + b"\x1b[0m" + b" " * (end - start - self._emulator.width(cells))


def _safe(replies: list[bytes]) -> list[bytes]:
    return [reply for reply in replies if _SAFE.fullmatch(reply)]


def _places(data: Buffer, start: int, end: int) -> list[int]:
    """Where in data the queries that were answered end: the same bytes go through a blank terminal in pieces."""
    blank, places, at = Emulator(COLS_MIN, ROWS_MIN, 0), list[int](), start
    with blank.writer(data) as writer:
        for match in _CUT.finditer(data, start, end):
            if match.end() <= at:
                continue
            writer.write(at, match.end())
            at = match.end()
            if not blank.ground:
                at = writer.write_until_ground(at, end)
            if blank.ground:
                places += [at] * len(_safe(blank.take_replies()))
        writer.write(at, end)
    if blank.ground:
        places += [end] * len(_safe(blank.take_replies()))
    blank.close()
    return places


_OPENERS = {b"]": b"\x1b]7718;", b"[": b"\x1b[ 0"}
"""What to be inside of while the rest of a sequence is ignored: an OSC ends with BEL too, other strings do not."""


def _check_size(cols: int, rows: int) -> None:
    if not (COLS_MIN <= cols <= COLS_MAX and ROWS_MIN <= rows <= ROWS_MAX):
        raise ValueError(
            f"a terminal of {cols}x{rows}; {COLS_MIN}x{ROWS_MIN} to {COLS_MAX}x{ROWS_MAX} are possible"
        )


def _unpack(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, UNPACKED_MAX)
    if not unpacker.eof:
        raise ValueError("more than a screen can hold, or cut short")
    return data


def _last_escape(data: Buffer, end: int) -> int:
    """Where the last ESC before end is, or -1. Sequences are short, so the search goes backwards in small pieces."""
    block = 256
    while end > 0:
        start = max(0, end - block)
        found = bytes(data[start:end]).rfind(b"\x1b")
        if found >= 0:
            return start + found
        end, block = start, block * 4
    return -1
