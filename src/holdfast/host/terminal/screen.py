"""The model of one session's terminal: the screen a viewer would see, derived from the raw bytes.

It owns the exact offset at which a terminal query ended, the answers that are allowed, the safe
place to cut the stream, the snapshot blob, and the views of the screen. It knows no ring, no viewer
and no clock. The emulator is behind `emulator.py`; `paint.py` composes the bytes for a viewer's
terminal.

Offsets. `pending` is how many of the bytes fed last belong to an unfinished escape sequence or
character. `paint()` and `save()` describe the screen as of (bytes fed - pending): the caller goes
on with the raw bytes from there. So neither contains the unfinished part, and a viewer's filter
sees whole sequences. A string longer than PENDING_MAX (an image, an endless OSC) is not waited for:
then `pending` is 0, and paint and blob end inside a string that is ignored. An incomplete UTF-8
character is kept here and fed with its end, because the emulator draws a substitute for a cut
character.

Replies. The emulator answers while it reads, without saying where. Whether a sequence is answered
does not depend on the terminal's state. So when there was an answer (rare), the chunk goes once
more through a blank terminal, in pieces that end after every sequence that might be answered
(`_CUT`, a superset). A reply belongs to the first point outside any sequence after the reply came.
That place is the same however the stream was chunked, so a restarted host recognises a query that
was answered. Cutting every chunk instead cost 40% of the speed on coloured text. Only shapes
without any program-chosen text pass (`_SAFE`), because a reply is typed into a shell. Queries for
colours, clipboard, title or termcap get no answer; programs that ask for a colour ask for DA1 as
well and stop waiting on that answer.

DECCOLM: 132 columns on request would resize the model alone, so the size is put back.

The blob holds the emulator's snapshot (exact, only for the same library build) and painted bytes,
from which any build can restore all but the older history. Rejected: painted bytes alone (no
XTSAVE, no protection, 10x slower for 10,000 lines); replaying the ring (the bytes that drew the
screen roll off).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from holdfast.host.terminal import paint
from holdfast.host.terminal.emulator import CONTINUATION_MAX, Buffer, Emulator, version
from holdfast.model.limits import COLS_MAX, COLS_MIN, ROWS_MAX, ROWS_MIN, SCROLLBACK_LINES

PENDING_MAX = CONTINUATION_MAX // 2  # the longest unfinished sequence that is waited for
INTRODUCER_BYTES = 8  # of an unfinished sequence: enough to know the kind
HALVES_BYTES = 12  # incomplete characters in a row that are kept back; a longer row is not text
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
    rb"|[\x00-\x17\x19\x1c-\x2f\x7f]*+[Z\x80-\xff]"  # DECID; a C1 byte acts inside a sequence
    rb"|P[^\x18\x1a\x1b\x80-\x9f]*+"
    + _BROKEN
    + rb"|[X^_][^\x18\x1a\x1b\x80-\x9f]*+"
    + _BROKEN
    + rb"|\]1[0-2];\?[\x07\x1b]"  # OSC 10 to 12: the colours of text, background and cursor
    + rb")"
)
_SAFE = re.compile(
    rb"\x1b\[(?:\?62;22c|>1;277;0c|0n|\d{1,5};\d{1,5}R|\??\d{1,5};[0-4]\$y|\?\d{1,2}u|\?999;[12]n"
    rb"|8;\d{1,5};\d{1,5}t|48;\d{1,5};\d{1,5};0;0t)"
    rb"|\x1b\]1[0-2];rgb:[0-9a-f]{4}/[0-9a-f]{4}/[0-9a-f]{4}(?:\x07|\x1b\\)"
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
    """A blob that is no screen, is damaged, or has a format that this release cannot read."""


class Screen:
    """A terminal's state. One thread at a time; feeding releases the GIL and does not copy."""

    def __init__(self, cols: int, rows: int, scrollback_lines: int = SCROLLBACK_LINES) -> None:
        _check_size(cols, rows)
        self._start(Emulator(cols, rows, scrollback_lines), cols, rows, scrollback_lines)

    def _start(self, emulator: Emulator, cols: int, rows: int, scrollback_lines: int) -> None:
        self._emulator, self._cols, self._rows, self._lines = emulator, cols, rows, scrollback_lines
        self._carry = b""  # an incomplete character, not fed yet
        self._unfinished = 0  # bytes since the ESC of a sequence that is not finished
        self._introducer = b""  # the first bytes of that sequence
        self._ground = True
        self._late: list[bytes] = []  # answers to a sequence that is not quite finished

    def close(self) -> None:
        """Frees the native memory now rather than with the object."""
        self._emulator.close()

    @property
    def size(self) -> tuple[int, int]:
        return self._cols, self._rows

    # ------------------------------------------------------------ input

    def feed(self, data: Buffer) -> bytes:
        """Takes output of the program; returns the terminal's answers."""
        return b"".join(reply for _, reply in self.feed_replies(data))

    def feed_replies(self, data: Buffer) -> list[tuple[int, bytes]]:
        """Takes output; returns (index in data just after a query, answer) of each query."""
        end = len(data) - self._hold(data)
        if end <= 0:
            return []
        emulator, at, answered = self._emulator, 0, list[tuple[int, bytes]]()
        colours = emulator.dynamic_colours()
        with emulator.writer(data) as writer:
            if not self._ground:
                at = writer.write_until_ground(0, end)
                if emulator.ground:
                    self._late += _safe(emulator.take_replies())
                    answered, self._late = [(at, reply) for reply in self._late], []
            writer.write(at, end)
        self._ground = emulator.ground
        if replies := self._late + _safe(emulator.take_replies()):
            places = _places(data, at, end, colours)
            answered += zip(places, replies, strict=False)
            rest = replies[len(places) :]
            # A finished query is answered now: the program may print nothing before the answer.
            answered += [(end, reply) for reply in rest] if self._ground else []
            self._late = [] if self._ground else rest
        if emulator.size != self.size:
            emulator.resize(*self.size)
        self._count_unfinished(data, end)
        return answered

    def _hold(self, data: Buffer) -> int:
        """Keeps back an incomplete character at the end of data, and feeds an earlier one.

        Returns how many bytes of data are kept.
        """
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
        """How many of the bytes fed last belong to an unfinished sequence or character.

        `paint` and `save` are without them.
        """
        return 0 if self._overlong else self._unfinished + len(self._carry)

    @property
    def _overlong(self) -> bool:
        return self._unfinished > PENDING_MAX

    def resize(self, cols: int, rows: int) -> bytes:
        """Changes the size; returns the in-band size report if the program asked for reports."""
        _check_size(cols, rows)
        if (cols, rows) == self.size:
            return b""
        self._emulator.resize(cols, rows)
        self._cols, self._rows = cols, rows
        return b"\x1b[48;%d;%d;0;0t" % (rows, cols) if self._emulator.mode(2048) else b""

    # ------------------------------------------------------------ snapshots

    def save(self, complete: bool = True) -> bytes:
        """The whole state as of (bytes fed - pending).

        Not `complete`: quicker, larger, for this build of the library only.
        """
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
        """The saved Screen; SnapshotUnreadable if the blob does not verify."""
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

    # ------------------------------------------------------------ for viewers' terminals

    def paint(self, scrollback: int, over: bool = True) -> bytes:
        """Bytes that bring an xterm-compatible terminal of this size to the state of this one.

        That is the state as of (bytes fed - pending), after up to `scrollback` lines of history.
        The terminal's old content scrolls up; without `over` it is erased.
        """
        with self._without_overlong() as inside:
            return self._paint(scrollback, over) + inside

    def _paint(self, scrollback: int, over: bool) -> bytes:
        return paint.paint(self._emulator, max(0, min(scrollback, self._lines)), over)

    @contextmanager
    def _without_overlong(self) -> Iterator[bytes]:
        """Leaves an overlong string during the block.

        Yields the bytes that open a string to be ignored in its place.
        """
        if not self._overlong:
            yield b""
            return
        inside = _OPENERS.get(self._introducer[1:2], b"\x1bX")
        self._emulator.write(b"\x18")
        try:
            yield inside
        finally:
            self._emulator.write(inside)

    # ------------------------------------------------------------ reading

    @property
    def flows_plainly(self) -> bool:
        """Whether text just fills lines and scrolls.

        That holds in the primary screen, at ground, without margins, unusual modes or charsets.
        """
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
        """Modes that matter for typing or watching, by name."""
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

    def row_vt(self, y: int) -> bytes:
        """A visible row as text with SGR, padded with blanks."""
        if not 0 <= y < self._rows:
            raise ValueError(f"row {y} of {self._rows}")
        cells = paint.row(self._emulator, self._emulator.history_rows + y)
        return b"\x1b[0m" + cells + b"\x1b[0m" + b" " * (self._cols - self._emulator.width(cells))


def _safe(replies: list[bytes]) -> list[bytes]:
    return [reply for reply in replies if _SAFE.fullmatch(reply)]


def _places(
    data: Buffer, start: int, end: int, colours: list[tuple[int, tuple[int, int, int]]]
) -> list[int]:
    """Where the answered queries end in data: feeds it to a blank terminal in pieces.

    `colours`: those that the program has set before, and so may ask for.
    """
    blank, places, at = Emulator(COLS_MIN, ROWS_MIN, 0), list[int](), start
    blank.write(b"".join(b"\x1b]%d;#%02x%02x%02x\x1b\\" % (n, *rgb) for n, rgb in colours))
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
"""Opens a string in which the rest of a sequence is ignored: only an OSC also ends with BEL."""


def _check_size(cols: int, rows: int) -> None:
    if not (COLS_MIN <= cols <= COLS_MAX and ROWS_MIN <= rows <= ROWS_MAX):
        raise ValueError(
            f"a terminal of {cols}x{rows}; "
            f"{COLS_MIN}x{ROWS_MIN} to {COLS_MAX}x{ROWS_MAX} are possible"
        )


def _unpack(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, UNPACKED_MAX)
    if not unpacker.eof:
        raise ValueError("more than a screen can hold, or cut short")
    return data


def _last_escape(data: Buffer, end: int) -> int:
    """The index of the last ESC before `end`, or -1.

    Sequences are short, so the search goes backwards in small pieces.
    """
    block = 256
    while end > 0:
        start = max(0, end - block)
        found = bytes(data[start:end]).rfind(b"\x1b")
        if found >= 0:
            return start + found
        end, block = start, block * 4
    return -1
