"""What viewers' terminals must not see of a session's raw output, and how it is taken out.

Why. A program asks its terminal things ("where is the cursor?") and reads the answer as input. The host
answers, once. If the question reached the viewers too, each of their terminals would answer, and their
clients would send on, in somebody's name, input that nobody typed. So whatever makes some terminal answer is
removed here, with a few things that reach past the screen (clipboard, notifications, links with odd schemes,
orders to move, hide, raise or resize the window: it is the viewer's own, and the session's size follows the
turn) and Holdfast's own shell marks, which carry a nonce. All else passes byte for byte, as the same object
if nothing changed.

How a terminal reads: the VT500 machine (vt100.net/emu/dec_ansi_parser) as libghostty, which draws the host's
screen, has it. C0 controls act inside a sequence; CAN and SUB abort it; ESC restarts it from any state; a
string ends at ESC whatever follows (xterm wants the whole `ESC \\`, others run the string at once).
- What is removed leaves nothing, unless it had cut a sequence short: then `ESC \\` stays, or the open one
  would swallow what comes next (`ESC ESC [6n [6n` without its middle is a query again). After half a UTF-8
  character NUL stays, lest two halves join. C0 controls inside a removed ESC or CSI stay.
- Raw 0x80-0x9f are no introducers in text, OSC and DCS bodies: they are parts of UTF-8 characters there. A
  terminal that is not in UTF-8 mode (xterm in a Latin-1 locale) would take them for introducers: it cannot
  be given a UTF-8 session's raw bytes at all and needs rendered cells. And the stream shall not talk a
  terminal out of UTF-8: `ESC % @` is removed.
- Inside an unfinished ESC, CSI or APC those bytes do act in the VT500 machine, while some terminals skip
  them: they are respelled in 7 bits (0x9b as `ESC [`), which all read alike.
- C1 controls encoded in UTF-8 (0xc2 0x80-0x9f): libghostty and xterm ignore them, VTE and xterm.js obey them
  (0xc2 0x9b 6 n is a query there). Removed, so that all viewers show what the host's screen shows.
- ENQ is removed in every state: nothing has a use for it, and terminals differ in where strings end.

Waiting. Held back is only what may still have to be removed: an ESC or CSI until its final byte, a string
until its first bytes decide. Past MAX_HELD_BYTES an ESC or CSI passes and is cut by `ESC \\`, and an
undecided string is dropped to its end: a lost colour table costs less than an answer nobody typed, and must
not spill onto the screen.

Not covered: reports of events that a mode asks for (mouse, focus). Those are input, and the client's to
judge.
Rejected: one pattern for all queries (wrong at chunk edges and in strings); a machine run byte by byte (1.7
MB/s); rewriting strings that set and ask at once (`OSC 4;1;red;2;?`): they go whole.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

MAX_HELD_BYTES = 4096
"""The longest start of a sequence that is held back. Real queries have under 100 bytes."""

SHELL_MARK_OSC = 7717
"""The OSC number of Holdfast's authenticated shell marks."""

LINK_SCHEMES = (b"http:", b"https:", b"mailto:", b"file:")
"""Schemes an OSC 8 link may have; any other could start a program on the machine of whoever clicks."""


class FilterOptions(NamedTuple):
    """What a viewer may get beyond the default. Both reach out of the terminal's window, so both are off."""

    keep_notifications: bool = False
    allow_clipboard_write: bool = False


_ESC, _BEL, _CAN, _SUB, _C2, _BACKSLASH = 0x1B, 0x07, 0x18, 0x1A, 0xC2, 0x5C
_ST = b"\x1b\\"
_LINK_END = b"\x1b]8;;\x1b\\"

# CSI keyed by private marker + intermediates + final byte; these do nothing but ask.
_CSI_ASKS = frozenset(
    (
        *(b"c", b">c", b"=c"),  # DA1, DA2, DA3
        *(b"n", b"?n"),  # DSR, CPR, DECXCPR and the other DEC reports
        *(b"$p", b"?$p"),  # DECRQM
        *(b"x", b"*y", b"$w", b"$u", b"&u"),  # DECREQTPARM, DECRQCRA, DECRQPSR, DECRQTSR, DECRQUPSS
        *(b'"v', b"'|"),  # DECRQDE, DECRQLP
        *(b">q", b"#R", b"#S", b"#|"),  # XTVERSION, XTREPORTCOLORS, XTTITLEPOS, XTREPORTSGR
        *(b"?m", b"?g"),  # XTQMODKEYS, XTQFMTKEYS
        *(b"?u", b"?S"),  # kitty keyboard flags, XTSMGRAPHICS (answers when setting, too)
    )
)
_CSI_RESIZES = frozenset((b"$|", b"*|"))  # DECSCPP, DECSNLS
_WINDOW_TITLES = frozenset(
    (22, 23)
)  # all else that CSI t orders reports, moves, hides, raises or resizes the window
_ANSWERING_MODES = (
    b"2033",
    b"2048",
)  # visibility and in-band size reports: setting them is answered at once
_CSI_SUSPECT_FINALS = frozenset(key[-1] for key in (*_CSI_ASKS, *_CSI_RESIZES, b"t", b"h", b"r"))

_DCS_ASKS = frozenset(
    (
        *(b"$q", b"+q", b"+Q"),  # DECRQSS, XTGETTCAP, XTGETXRES
        b"@",  # kitty's remote control
        b"p",  # ReGIS, which can report, and tmux control mode, which makes iTerm2 type commands
    )
)
_ESC_DROPPED = frozenset((b"Z", b"%@"))  # DECID; leave UTF-8

# XTQALLOWED and its like; kitty's drag and drop, file transfer and clipboard, which answer to everything
_OSC_DROPPED = frozenset((SHELL_MARK_OSC, 60, 61, 62, 72, 5113, 5522))
_OSC_NOTIFIES = frozenset((9, 99, 777))
# colours, kitty colours, pointer shape, font, app id; urxvt's and mintty's own settings
_OSC_MAY_ASK = frozenset(
    (4, 5, *range(10, 23), 39, 49, 50, 176, *range(701, 714), *range(7700, 7800))
)
_OSC_1337_ASKS = (b"report", b"request", b"capabilities")
_OSC_1337_CLIPBOARD = (b"copy", b"endcopy")
_GLYPH_PROTOCOL = b"25a1"  # libghostty's glyph APC: every verb of it may answer


class _Verdict(enum.Enum):
    PASS = enum.auto()
    DROP = enum.auto()
    WAIT = enum.auto()


_PASS, _DROP, _WAIT = _Verdict.PASS, _Verdict.DROP, _Verdict.WAIT


class _Mode(enum.Enum):
    GROUND = enum.auto()
    STRING = enum.auto()  # inside a string that passes
    DROPPED = enum.auto()  # inside a string that does not


# Bytes that act or are skipped inside an ESC, CSI or DCS start without ending it.
_STAY = rb"\x00-\x17\x19\x1c-\x1f\x7f\xa0-\xff"
_ESC_START = re.compile(rb"\x1b[" + _STAY + rb" -/]*+")
_CSI_START = re.compile(rb"[" + _STAY + rb" -?]*+")
_DCS_START = re.compile(
    rb"[%b]*+(?:[<-?][%b]*+)?+(?:[0-9;][%b]*+)*+(?:[ -/][%b]*+)*+" % ((_STAY,) * 4)
)
_CSI_SHAPE = re.compile(rb"([<-?]?)([0-9:;]*)([ -/]*)")
_EXECUTED = bytes((*range(0x18), 0x19, *range(0x1C, 0x20)))
_NOT_EXECUTED = bytes(b for b in range(256) if b not in _EXECUTED)
_SKIPPED = bytes((*_EXECUTED, 0x7F, *range(0xA0, 0x100)))
_C0_AND_DEL = bytes((*range(0x20), 0x7F))

_C1_CHAR = re.compile(rb"\xc2(?:[\x80-\x9f]|\Z)")
_HALF_CHAR = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_ENQS = re.compile(rb"\x05+")
_LINK = re.compile(rb"0*8;[^;]*;?(.?)", re.DOTALL)
_GRAPHICS = re.compile(rb"G[ -~]*")
_OPENERS = b"[P]X^_"
_STRING_START = re.compile(rb"\x1b[" + _STAY + rb"]*+[P\]X^_]")

# The hot path: the first ESC that may have to go. Two lookaheads, not one with a branch, for speed on SGR:
# one skips a CSI of digits and a harmless final byte, the other what shells and editors send all the time.
_HARMLESS = (
    rb"(?!\[[0-;]*+[@-bd-mo-su-wy-~])"
    rb"(?!\[\?(?!0*20(?:33|48)[hl])[0-9]++[hl]|[()][0-9A-Z]|[78=>DEHMc\\]"
    rb"|\](?:[0127]|133);[^\x00-\x1f\xc2]*+(?:\x07|\x1b\\))"
)
_SUSPECT = re.compile(rb"\x1b" + _HARMLESS)
# Looked for before: the first ESC that does more than colour, erase or move within its line (SGR, EL, CUF, CUB, CHA, ECH, DCH, ICH,
# back to ASCII). A flood seldom has one, and who passes over floods (core/skim.py) asks the same: one answer for both.
_LEAVES_LINE = re.compile(rb"\x1b(?!\[[0-;]*+[mKCDGXP@]|\(B)")
_SUSPECT_OR_C1 = re.compile(
    rb"[\x1b\xc2](?:(?<=\x1b)" + _HARMLESS + rb"|(?<=\xc2)(?:[\x80-\x9f]|\Z))"
)

_OSC, _DCS, _APC, _CSI = (
    0x5D,
    0x50,
    0x5F,
    0x5B,
)  # SOS and PM are taken for APC, as libghostty takes them
_STRING_ENDS = {
    _OSC: re.compile(rb"[\x07\x18\x1a\x1b]"),
    _DCS: re.compile(rb"[\x18\x1a\x1b]"),
    _APC: re.compile(rb"[\x18\x1a\x1b\x80-\x9f]"),
}
_STRING_STOPS = {  # the same, and what must be taken out of a body that passes
    _OSC: re.compile(rb"\x07|\x18|\x1a|\x1b|\xc2(?:[\x80-\x9f]|\Z)"),
    _DCS: re.compile(rb"\x18|\x1a|\x1b|\xc2(?:[\x80-\x9f]|\Z)"),
    _APC: _STRING_ENDS[_APC],
}


class ViewerFilter:
    """The filter of one viewer's stream; the module's docstring says what it removes and why."""

    def __init__(self, options: FilterOptions | None = None) -> None:
        self._options = options or FilterOptions()
        self._mode = _Mode.GROUND
        self._string = _OSC  # which kind of string, when the mode is not GROUND
        self._held = b""  # the undecided end of the stream so far ...
        self._pending = 0  # ... and how many bytes it was when it came in
        self._cuts = False  # what comes next, an ESC, cuts short a sequence that has passed
        self._last = 0  # the last byte received
        self._tail = b""  # the last three bytes given out
        self._link_open = False  # the viewer's terminal is inside an OSC 8 link
        # the chunk at hand: its bytes, those dealt with, where the undecided end begins, what is given out
        self._buffer = b""
        self._done = 0
        self._held_from = 0
        self._respelled = -1
        self._out: list[bytes] = []
        self._suspect = _SUSPECT
        self.in_line = True  # what the last chunk decided prints text and moves and colours within its lines, no more

    @property
    def pending(self) -> int:
        """Bytes received, as they were received, and neither given out nor removed yet."""
        return self._pending

    def feed(self, chunk: bytes | memoryview) -> bytes | memoryview:
        """What the viewer gets; the chunk itself when nothing had to change and nothing is held back."""
        data = chunk if isinstance(chunk, bytes) else bytes(chunk)
        if not data:
            return chunk
        enquires = b"\x05" in data
        if self._mode is _Mode.GROUND and not self._held and not enquires:
            leaves = _LEAVES_LINE.search(data) if b"\x1b" in data else None
            if (leaves is None or _SUSPECT.search(data, leaves.start()) is None) and (
                b"\xc2" not in data or _C1_CHAR.search(data) is None
            ):
                self.in_line = leaves is None
                self._last = data[-1]
                self._tail = data[-3:] if len(data) > 2 else (self._tail + data)[-3:]
                return chunk
        carried = len(self._held)
        clean = self._without_enq(data) if enquires else data
        edited = self._edit(clean)
        self.in_line = self.in_line and not enquires
        if self._held and self._held_from < carried:
            self._pending += len(data)
        else:
            self._pending = len(self._held) - (self._held_from == self._respelled)
            if enquires and self._held:
                self._pending += _enqs_removed_after(len(clean) - self._pending, data, self._last)
        self._last = data[-1]
        return chunk if edited is data else edited

    def flush(self) -> bytes:
        """End the stream: what is held back is given out, and the filter is as new.

        An unfinished ESC or CSI is given out: what is written next ought to begin with ESC, which aborts it.
        The start of an undecided string is not: that next ESC would make a terminal run it.
        """
        held = b"" if self._mode is _Mode.DROPPED or _STRING_START.match(self._held) else self._held
        self._held, self._pending, self._last, self._tail = b"", 0, 0, b""
        self._mode, self._cuts = _Mode.GROUND, False
        return held

    # -- one chunk

    def _without_enq(self, data: bytes) -> bytes:
        return _ENQS.sub(lambda match: b"\0" * _enq_leaves_nul(match, self._last), data)

    def _edit(self, data: bytes) -> bytes:
        self._buffer = self._held + data if self._held else data
        c1 = _C1_CHAR.search(self._buffer) if b"\xc2" in self._buffer else None
        self._suspect = _SUSPECT_OR_C1 if c1 else _SUSPECT
        self._out, self._done, self._held_from, self._respelled = [], 0, -1, -1
        position = in_line_to = 0
        if self._mode is _Mode.GROUND and not self._cuts:
            end = c1.start() if c1 else len(self._buffer)
            leaves = _LEAVES_LINE.search(self._buffer)
            position = in_line_to = min(end, leaves.start()) if leaves else end
        while position < len(self._buffer):
            position = (
                self._ground(position) if self._mode is _Mode.GROUND else self._in_string(position)
            )
        if self._held_from < 0:
            self._held_from = len(self._buffer)
        self._held = self._buffer[self._held_from :]
        self.in_line = in_line_to >= self._held_from
        untouched = self._buffer is data and not self._out and not self._done and not self._held
        self._give(self._held_from)
        self._buffer = b""
        return data if untouched else b"".join(self._out)

    def _emit(self, piece: bytes) -> None:
        if piece:
            self._out.append(piece)
            self._tail = (self._tail + piece[-3:])[-3:]

    def _give(self, end: int) -> None:
        self._emit(self._buffer[self._done : end])
        self._done = end

    def _remove(self, start: int, end: int, instead: bytes = b"") -> None:
        self._give(start)
        if self._cuts and not instead.startswith(b"\x1b"):
            self._emit(_ST)
        elif not instead and _HALF_CHAR.search(self._tail):
            self._emit(b"\0")
        self._emit(instead)
        self._done = end
        self._cuts = False

    def _wait(self, start: int) -> int:
        self._held_from = start
        return len(self._buffer)

    def _respell_c1(self, index: int) -> None:
        seven_bit = bytes((_ESC, self._buffer[index] - 0x40))
        self._buffer = self._buffer[:index] + seven_bit + self._buffer[index + 1 :]
        self._respelled = index

    # -- the states: each takes a position and gives the next one

    def _ground(self, position: int) -> int:
        if self._cuts:
            return self._sequence(position)
        match = self._suspect.search(self._buffer, position)
        if match is None:
            return len(self._buffer)
        start = match.start()
        return self._c1_char(start) if self._buffer[start] == _C2 else self._sequence(start)

    def _c1_char(self, start: int) -> int:
        if start + 1 == len(self._buffer):
            return self._wait(start)
        self._remove(start, start + 2)
        return start + 2

    def _sequence(self, start: int) -> int:
        """The ESC at `start`, to its final byte or to the first byte of the string that it opens."""
        match = _ESC_START.match(self._buffer, start)
        assert match is not None
        index = match.end()
        elsewhere = self._not_final(start, index)
        if elsewhere is not None:
            return elsewhere
        intermediates = self._buffer[start + 1 : index].translate(None, _SKIPPED)
        final = self._buffer[index]
        executed = self._buffer[start:index].translate(None, _NOT_EXECUTED)
        if intermediates or final not in _OPENERS:
            drop = intermediates + bytes((final,)) in _ESC_DROPPED
            return self._finish(start, index + 1, executed if drop else None)
        if final not in (_CSI, _DCS):
            return self._string_start(start, index, executed)
        match = (_CSI_START if final == _CSI else _DCS_START).match(self._buffer, index + 1)
        assert match is not None
        end = match.end()
        if final == _DCS and end >= (limit := start + MAX_HELD_BYTES):
            return self._enter(_DCS, _DROP, start, limit, executed)
        elsewhere = self._not_final(start, end)
        if elsewhere is not None:
            return elsewhere
        header = self._buffer[index + 1 : end].translate(None, _SKIPPED)
        if final == _DCS:
            verdict = _judge_dcs(header, self._buffer[end])
            return self._enter(_DCS, verdict, start, end + 1, executed)
        instead = _judge_csi(header, self._buffer[end])
        if instead is not None:
            instead = self._buffer[start:end].translate(None, _NOT_EXECUTED) + instead
        return self._finish(start, end + 1, instead)

    def _not_final(self, start: int, index: int) -> int | None:
        """Where to go on if the byte at `index` does not end the sequence from `start`; None if it does."""
        limit = start + MAX_HELD_BYTES
        if index >= limit:
            self._give(limit)
            self._emit(_ST)
            self._cuts = False
            return limit
        if index == len(self._buffer):
            return self._wait(start)
        byte = self._buffer[index]
        if byte in (_CAN, _SUB):
            self._cuts = False
            return index + 1
        if 0x80 <= byte <= 0x9F:
            self._respell_c1(index)
        elif byte != _ESC:
            return None
        self._cuts = True
        return index

    def _finish(self, start: int, end: int, instead: bytes | None) -> int:
        if instead is not None:
            self._remove(start, end, instead)
        self._cuts = False
        return end

    def _enter(self, kind: int, verdict: _Verdict, start: int, body: int, instead: bytes) -> int:
        self._string = kind
        if verdict is _DROP:
            self._mode = _Mode.DROPPED
            self._remove(start, body, instead)
        else:
            self._mode = _Mode.STRING
            self._cuts = False
        return body

    def _string_start(self, start: int, opener: int, executed: bytes) -> int:
        """An OSC, APC, PM or SOS: judge it by its first bytes, or wait for more of them."""
        body, limit = opener + 1, start + MAX_HELD_BYTES
        kind = _OSC if self._buffer[opener] == _OSC else _APC
        match = _STRING_ENDS[kind].search(self._buffer, body, limit)
        end = match.start() if match else min(len(self._buffer), limit)
        head, whole = self._buffer[body:end], match is not None
        text = b""
        if kind == _OSC:
            text = _C1_CHAR.sub(b"", head).translate(None, _C0_AND_DEL)
            verdict = _judge_osc(text, whole, self._options)
        else:
            verdict = _judge_apc(head, whole)
        if verdict is _WAIT:
            if end < limit:
                return self._wait(start)
            verdict = _DROP
        if link := _LINK.match(text):
            if verdict is _DROP and self._link_open:
                executed += (
                    _LINK_END  # or the text of the link removed would belong to the one before it
                )
            self._link_open = verdict is _PASS and bool(link[1])
        if verdict is _PASS and kind == _APC and head.startswith(b"G"):
            header = head.partition(b";")[0]
            quiet = _quiet_graphics(header)
            if quiet != header:
                opening = bytes((_ESC, self._buffer[opener]))
                self._remove(start, body + len(header), executed + opening + quiet)
            body += len(header)
        return self._enter(kind, verdict, start, body, executed)

    def _in_string(self, position: int) -> int:
        dropped = self._mode is _Mode.DROPPED
        match = (_STRING_ENDS if dropped else _STRING_STOPS)[self._string].search(
            self._buffer, position
        )
        index = match.start() if match else len(self._buffer)
        if dropped:
            self._done = index
        if match is None:
            return index
        byte = self._buffer[index]
        if byte == _C2:
            return self._c1_char(index)
        if 0x80 <= byte <= 0x9F:
            self._respell_c1(index)
            byte = _ESC
        if dropped and byte == _ESC and index + 1 == len(self._buffer):
            return self._wait(index)
        self._mode = _Mode.GROUND
        if byte != _ESC:
            if dropped and byte == _BEL:
                self._done = index + 1
            return index + 1
        if dropped and self._buffer[index + 1] == _BACKSLASH:
            self._done = index + 2
            return index + 2
        self._cuts = not dropped
        return index


def _enq_leaves_nul(match: re.Match[bytes], last: int) -> bool:
    """Whether ENQ stands after a part of a character, and so in between two that must not join."""
    return (match.string[match.start() - 1] if match.start() else last) >= 0x80


def _enqs_removed_after(position: int, data: bytes, last: int) -> int:
    """How many bytes of ENQ were taken out of `data` behind `position`, which counts without them."""
    removed = behind = 0
    for match in _ENQS.finditer(data):
        fewer = len(match[0]) - _enq_leaves_nul(match, last)
        if match.start() - removed > position:
            behind += fewer
        removed += fewer
    return behind


# -- the judgements, on what a terminal would make of a sequence


def _judge_csi(header: bytes, final: int) -> bytes | None:
    """What stands instead of this CSI; None when it passes."""
    shape = _CSI_SHAPE.fullmatch(header)
    if shape is None:  # malformed: a VT500 ignores it, other parsers may not
        return b"" if final in _CSI_SUSPECT_FINALS else None
    marker, parameters, intermediates = shape.groups()
    key = marker + intermediates + bytes((final,))
    if key in _CSI_ASKS or key in _CSI_RESIZES:
        return b""
    if key == b"t":
        return None if int(_leading_digits(parameters) or b"0") in _WINDOW_TITLES else b""
    if key in (b"?h", b"?r"):
        modes = parameters.split(b";")
        kept = [mode for mode in modes if mode.lstrip(b"0") not in _ANSWERING_MODES]
        if len(kept) < len(modes):
            return b"\x1b[?" + b";".join(kept) + bytes((final,)) if kept else b""
    return None


def _judge_dcs(header: bytes, final: int) -> _Verdict:
    """The verdict on a DCS; `final` below 0x40 makes it malformed, and a VT500 ignores all of it."""
    asks = header.lstrip(b"<=>?0123456789;") + bytes((final,)) in _DCS_ASKS
    return _DROP if asks or final < 0x40 else _PASS


def _judge_osc(text: bytes, whole: bool, options: FilterOptions) -> _Verdict:
    """The verdict on an OSC that begins with `text`; `whole` when that is all of it."""
    digits = _leading_digits(text)
    if digits == text and not whole:
        return _WAIT
    number = int(digits or b"0")  # without a number: titles of other dialects
    rest = text[len(digits) :].removeprefix(b";")
    if number in _OSC_DROPPED or (number in _OSC_NOTIFIES and not options.keep_notifications):
        return _DROP
    if number == 99:
        metadata, separator, _ = rest.partition(b";")
        if not separator and not whole:
            return _WAIT
        return _DROP if {b"p=?", b"p=alive"} & set(metadata.split(b":")) else _PASS
    if number == 52:
        _, separator, content = rest.partition(b";")
        if not options.allow_clipboard_write or content.startswith(b"?"):
            return _DROP
        return _PASS if content or (whole and separator) else _DROP if whole else _WAIT
    if number == 8:
        _, separator, uri = rest.partition(b";")
        if not uri:
            return _WAIT if not whole else _PASS if separator else _DROP
        return {True: _PASS, False: _DROP, None: _WAIT}[_begins(uri, whole, LINK_SCHEMES)]
    if number == 1337:
        asks = (
            _OSC_1337_ASKS
            if options.allow_clipboard_write
            else _OSC_1337_ASKS + _OSC_1337_CLIPBOARD
        )
        return {True: _DROP, False: _PASS, None: _WAIT}[_begins(rest, whole, asks)]
    if number in _OSC_MAY_ASK:
        if not whole:
            return _WAIT
        fields = [field.strip() for field in rest.split(b";")]
        return (
            _DROP
            if any(field.startswith(b"?") or field.endswith(b"=?") for field in fields)
            else _PASS
        )
    return _PASS


def _begins(text: bytes, whole: bool, prefixes: tuple[bytes, ...]) -> bool | None:
    """Whether `text` begins with one of the prefixes in any case; None while it is too short to tell."""
    text = text.lower()
    if text.startswith(prefixes):
        return True
    return None if not whole and any(prefix.startswith(text) for prefix in prefixes) else False


def _leading_digits(text: bytes) -> bytes:
    return text[: len(text) - len(text.lstrip(b"0123456789"))]


def _judge_apc(head: bytes, whole: bool) -> _Verdict:
    """Kitty graphics and libghostty's glyphs; with control characters in their head both are dropped.

    Also asked about SOS and PM, in which libghostty obeys the same commands.
    """
    plain = head.translate(None, _C0_AND_DEL)
    if not plain.startswith(b"G"):
        return {True: _DROP, False: _PASS, None: _WAIT}[_begins(plain, whole, (_GLYPH_PROTOCOL,))]
    header, separator, _ = head.partition(b";")
    if not separator and not whole:
        return _WAIT
    return _PASS if _GRAPHICS.fullmatch(header) and b"a=q" not in header[1:].split(b",") else _DROP


def _quiet_graphics(header: bytes) -> bytes:
    """The control data with q=2: commands that name an image are answered unless they say not to."""
    keys = header[1:].split(b",")
    if [key for key in keys if key.startswith(b"q=")] == [b"q=2"]:
        return header
    return b"G" + b",".join((b"q=2", *(key for key in keys if key and not key.startswith(b"q="))))
