"""Removal of all sequences from a session's raw output that a viewer's terminal must not receive.

Reason. A program asks its terminal questions ("where is the cursor?") and reads the answer as
input. The host answers once. If viewers received the question too, each of their terminals would
answer, and their clients would send, in an operator's name, input that no operator typed. Other
sequences reach beyond the screen: they write files, print, redefine keys or move windows. So only
the sequences of an allow-list pass (`sequences.py`); an unknown sequence does not. Text, and C0
controls except ENQ, pass. A chunk without anything to remove passes as the same object.

Parsing follows the VT500 machine (vt100.net/emu/dec_ansi_parser) as implemented by libghostty,
which draws the host's screen. C0 controls act inside a sequence; CAN and SUB abort it; ESC restarts
it from any state; a string ends at ESC whatever follows.
- The output is spelled so that all terminals read it alike. C0 controls move out of a sequence to
  its front. A sequence that is aborted has no effect, and is removed. A string ends with BEL or
  `ESC \\`. A C1 byte that acts inside a sequence is written in 7 bits (0x9b as `ESC [`).
- A removed sequence leaves no bytes. After half a UTF-8 character NUL stays, so that two halves do
  not join.
- Bytes 0x80-0x9f pass only as parts of UTF-8 characters: some terminals (rxvt) obey other such
  bytes as C1 controls. A broken character with such a byte becomes U+FFFD, as UTF-8 terminals show
  broken characters. The stream must not switch a terminal out of UTF-8 either.
- C1 controls encoded in UTF-8 (0xc2 0x80-0x9f): libghostty and xterm ignore them, VTE and xterm.js
  obey them (0xc2 0x9b 6 n is a query there). They are removed, so that all viewers show the same as
  the host's screen.
- ENQ is removed in every state: no program needs it, and terminals differ in where strings end.

Waiting. Only undecided bytes are held: an ESC or CSI until its final byte, an OSC to its end, the
head of an image, the first bytes of a character. Beyond MAX_HELD_BYTES (MAX_CLIPBOARD_BYTES for an
allowed OSC 52) a sequence is dropped.

Not covered: reports of events that a mode enables (mouse, focus). Those are input, which the client
judges. Rejected: one pattern for all queries (wrong at chunk edges and in strings); a machine that
runs byte by byte (1.7 MB/s); rewriting strings that set and ask at once (`OSC 4;1;red;2;?`): they
are removed as a whole.
"""

from __future__ import annotations

from holdfast.core.screen.late_pattern import late
from holdfast.core.screen.sequences import (
    C0_AND_DEL,
    DROP,
    MAX_CLIPBOARD_BYTES,
    PASS,
    WAIT,
    Verdict,
    clean_title,
    esc_passes,
    judge_apc,
    judge_csi,
    judge_dcs,
    judge_osc,
    quiet_graphics,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match

MAX_HELD_BYTES = 4096
"""The longest held beginning of a sequence. Real queries have under 100 bytes."""

_ESC, _BEL, _CAN, _SUB, _C2, _BACKSLASH = 0x1B, 0x07, 0x18, 0x1A, 0xC2, 0x5C
_ST = b"\x1b\\"
_LINK_END = b"\x1b]8;;\x1b\\"


class _Mode:
    """The state of the parser. Not an `enum`, whose import takes 2 ms of an attach."""

    GROUND = "ground"
    STRING = "string"  # inside a string that passes
    DROPPED = "dropped"  # inside a string that is removed


# Bytes that act or are skipped inside an ESC, CSI or DCS start without ending it.
_STAY = rb"\x00-\x17\x19\x1c-\x1f\x7f\xa0-\xff"
_ESC_START = late(rb"\x1b[" + _STAY + rb" -/]*+")
_CSI_START = late(rb"[" + _STAY + rb" -?]*+")
_DCS_START = late(rb"[%b]*+(?:[<-?][%b]*+)?+(?:[0-9;][%b]*+)*+(?:[ -/][%b]*+)*+" % ((_STAY,) * 4))
_EXECUTED = bytes((*range(0x18), 0x19, *range(0x1C, 0x20)))
_NOT_EXECUTED = bytes(b for b in range(256) if b not in _EXECUTED)
_SKIPPED = bytes((*_EXECUTED, 0x7F, *range(0xA0, 0x100)))

_C1_CHAR = late(rb"\xc2(?:[\x80-\x9f]|\Z)")
_HALF_CHAR = late(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_ENQS = late(rb"\x05+")
_LINK = late(rb"(?s)0*8;[^;]*;?(.?)")
_OPENERS = frozenset((b"[", b"P", b"]", b"X", b"^", b"_"))

# The hot path: the first ESC that may have to be removed. Two lookaheads, not one with a branch,
# for speed on SGR: the first skips a CSI of digits and a harmless final byte, the second skips the
# usual output of shells and editors.
_HARMLESS = (
    rb"(?!\[[0-;]*+[A-MPSXZ@`abd-gmrsu])"
    rb"(?!\[\?(?:25|2004|2026|1049|1|7|12|100[02-6])[hl]|[()][0-9A-Z]|[78=>DEHMc\\]"
    rb"|\](?:[012];|7;file:|133;)[ -~]{0,255}+(?:\x07|\x1b\\))"
)
_SUSPECT = late(rb"\x1b" + _HARMLESS)
# Searched before: the first ESC that does more than colour, erase or move within its line (SGR, EL,
# CUF, CUB, CHA, ECH, DCH, ICH, back to ASCII). A flood seldom has one, and skimming of floods
# (core/screen/skim.py) needs the same answer.
_LEAVES_LINE = late(rb"\x1b(?!\[[0-;]*+[mKCDGXP@]|\(B)")
_SUSPECT_OR_C1 = late(rb"[\x1b\xc2](?:(?<=\x1b)" + _HARMLESS + rb"|(?<=\xc2)(?:[\x80-\x9f]|\Z))")

# The first bytes of a character with a length of 2, 3 or 4 that are not the whole character.
_OF_3 = rb"(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f])"
_OF_4 = rb"(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])"
_BEGUN = late(rb"(?:[\xc2-\xf4]|%b|%b[\x80-\xbf]?)\Z" % (_OF_3, _OF_4))
# A broken character with a byte of C1, in bytes that begin between two characters.
_BROKEN = late(
    rb"[\x80-\x9f\xe0-\xf4](?:"
    rb"(?<=[\xe0-\xef])[\x80-\xbf](?<=%(three)b)(?![\x80-\xbf])"
    rb"|(?<=[\xf0-\xf4])[\x80-\xbf](?<=%(four)b)(?:[\x80-\xbf](?![\x80-\xbf])|(?![\x80-\xbf]))"
    rb"|(?<=[\x80-\x9f])(?<![\xc2-\xdf][\x80-\xbf])(?<!%(three)b)(?<!%(four)b)"
    rb"(?<!%(three)b[\x80-\xbf])(?<!%(four)b[\x80-\xbf])(?<!%(four)b[\x80-\xbf]{2}))"
    % {b"three": _OF_3, b"four": _OF_4}
)
_SUBSTITUTE = "\ufffd".encode()

# SOS and PM are treated as APC, like in libghostty.
_OSC, _DCS, _APC, _CSI = 0x5D, 0x50, 0x5F, 0x5B
_STRING_ENDS = {
    _OSC: late(rb"[\x07\x18\x1a\x1b]"),
    _DCS: late(rb"[\x18\x1a\x1b]"),
    _APC: late(rb"[\x18\x1a\x1b\x80-\x9f]"),
}
_STRING_STOPS = {  # the ends, and the parts to remove from a body that passes
    _OSC: _STRING_ENDS[_OSC],
    _DCS: late(rb"\x18|\x1a|\x1b|\xc2(?:[\x80-\x9f]|\Z)"),
    _APC: _STRING_ENDS[_APC],
}


class ViewerFilter:
    """The filter of a viewer's stream; see the docstring of the module."""

    def __init__(self, clipboard: bool = False) -> None:
        """`clipboard`: OSC 52 may write to the clipboard of the viewer's machine."""
        self.clipboard = clipboard
        self._mode = _Mode.GROUND
        self._string = _OSC  # the kind of string, if the mode is not GROUND
        self._held = b""  # the end of the input that may begin a sequence ...
        self._pending = 0  # ... and its length before filtering
        self._half = b""  # the first bytes of a character at the end of the output
        self._last = 0  # the last received byte
        self._tail = b""  # the last three bytes of the output
        self._link_open = False  # the viewer's terminal is inside an OSC 8 link
        # the present chunk: bytes, processed part, begin of the undecided end, output
        self._buffer = b""
        self._done = 0
        self._held_from = 0
        self._respelled = -1
        self._out: list[bytes] = []
        self._suspect = _SUSPECT
        self.in_line = True  # the last chunk only prints, moves and colours within its lines

    @property
    def pending(self) -> int:
        """The number of received bytes that are neither passed nor removed yet."""
        return self._pending + len(self._half)

    def feed(self, chunk: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes for the viewer; the chunk itself if nothing changed and none is held."""
        data = chunk if isinstance(chunk, bytes) else bytes(chunk)
        if not data:
            return chunk
        ascii_only = data.isascii()
        passed = self._sequences(data, ascii_only)
        if self._half or not (passed.isascii() if passed is not data else ascii_only):
            passed = self._characters(passed)
        return chunk if passed is data else passed

    def flush(self) -> bytes:
        """End the stream: return the held part of a character and reset the filter.

        An unfinished sequence has no effect, and is dropped.
        """
        half = self._half + (self._held if self._held[:1] == b"\xc2" else b"")
        self._held, self._pending, self._last, self._tail, self._half = b"", 0, 0, b"", b""
        self._mode = _Mode.GROUND
        return _BROKEN.sub(_SUBSTITUTE, half)

    # -- one chunk

    def _sequences(self, data: bytes, ascii_only: bool) -> bytes:
        """Remove sequences; return `data` itself if there is none to remove and none is held."""
        enquires = b"\x05" in data
        if self._mode is _Mode.GROUND and not self._held and not enquires:
            leaves = _LEAVES_LINE.search(data) if b"\x1b" in data else None
            if (leaves is None or _SUSPECT.search(data, leaves.start()) is None) and (
                ascii_only or b"\xc2" not in data or _C1_CHAR.search(data) is None
            ):
                self.in_line = leaves is None
                self._last = data[-1]
                self._tail = data[-3:] if len(data) > 2 else (self._tail + data)[-3:]
                return data
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
        return edited

    def _characters(self, passed: bytes) -> bytes:
        """Hold an unfinished character at the end; replace broken characters with C1 bytes."""
        if self._half:
            passed, self._half = self._half + passed, b""
        if not self._held and (begun := _BEGUN.search(passed, max(0, len(passed) - 3))):
            self._half = begun[0]
            passed = passed[: begun.start()]
        try:
            passed.decode()
        except UnicodeDecodeError as error:
            sound, rest = passed[: error.start], passed[error.start :]
            repaired = _BROKEN.sub(_SUBSTITUTE, rest)
            return passed if repaired == rest else sound + repaired
        return passed

    def _without_enq(self, data: bytes) -> bytes:
        return _ENQS.sub(lambda match: b"\0" * _enq_leaves_nul(match, self._last), data)

    def _edit(self, data: bytes) -> bytes:
        self._buffer = self._held + data if self._held else data
        c1 = _C1_CHAR.search(self._buffer) if b"\xc2" in self._buffer else None
        self._suspect = _SUSPECT_OR_C1 if c1 else _SUSPECT
        self._out, self._done, self._held_from, self._respelled = [], 0, -1, -1
        position = in_line_to = 0
        if self._mode is _Mode.GROUND:
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
        if not instead and _HALF_CHAR.search(self._tail):
            self._emit(b"\0")
        self._emit(instead)
        self._done = end

    def _wait(self, start: int) -> int:
        self._held_from = start
        return len(self._buffer)

    def _respell_c1(self, index: int) -> None:
        seven_bit = bytes((_ESC, self._buffer[index] - 0x40))
        self._buffer = self._buffer[:index] + seven_bit + self._buffer[index + 1 :]
        self._respelled = index

    # -- the states: each takes a position and returns the next position

    def _ground(self, position: int) -> int:
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
        """Process the ESC at `start`, to its final byte or the first byte of its string."""
        match = _ESC_START.match(self._buffer, start)
        assert match is not None
        index = match.end()
        elsewhere = self._not_final(start, index)
        if elsewhere is not None:
            return elsewhere
        name = self._buffer[start + 1 : index + 1].translate(None, _SKIPPED)
        executed = self._buffer[start:index].translate(None, _NOT_EXECUTED)
        if name not in _OPENERS:
            return self._finish(start, index + 1, executed, name if esc_passes(name) else b"")
        opener = name[0]
        if opener not in (_CSI, _DCS):
            return self._string_start(start, index, executed)
        match = (_CSI_START if opener == _CSI else _DCS_START).match(self._buffer, index + 1)
        assert match is not None
        end = match.end()
        if opener == _DCS and end >= (limit := start + MAX_HELD_BYTES):
            return self._enter(_DCS, DROP, start, limit, executed)
        elsewhere = self._not_final(start, end)
        if elsewhere is not None:
            return elsewhere
        header, final = self._buffer[index + 1 : end].translate(None, _SKIPPED), self._buffer[end]
        if opener == _CSI:
            executed = self._buffer[start:end].translate(None, _NOT_EXECUTED)
            return self._finish(start, end + 1, executed, judge_csi(header, final))
        verdict = judge_dcs(header, final)
        if verdict is PASS:
            self._finish(start, end + 1, executed, name + header + bytes((final,)))
        return self._enter(_DCS, verdict, start, end + 1, executed)

    def _not_final(self, start: int, index: int) -> int | None:
        """Return where to continue if the byte at `index` does not end the sequence, else None.

        The sequence is aborted then, or too long: nothing remains of it but C0 controls.
        """
        limit = start + MAX_HELD_BYTES
        if index < limit:
            if index == len(self._buffer):
                return self._wait(start)
            byte = self._buffer[index]
            if 0x80 <= byte <= 0x9F:
                self._respell_c1(index)
            elif byte not in (_ESC, _CAN, _SUB):
                return None
        index = min(index, limit)
        self._remove(start, index, self._buffer[start:index].translate(None, _NOT_EXECUTED))
        return index

    def _finish(self, start: int, end: int, executed: bytes, name: bytes) -> int:
        """Write ESC and `name` in place of a sequence, behind its C0 controls; nothing if empty."""
        instead = executed + (b"\x1b" + name if name else b"")
        if instead != self._buffer[start:end]:
            self._remove(start, end, instead)
        return end

    def _enter(self, kind: int, verdict: Verdict, start: int, body: int, instead: bytes) -> int:
        self._string = kind
        if verdict is DROP:
            self._mode = _Mode.DROPPED
            self._remove(start, body, instead)
        else:
            self._mode = _Mode.STRING
        return body

    def _string_start(self, start: int, opener: int, executed: bytes) -> int:
        """Judge a string: an OSC by its whole text, others by the first bytes."""
        body, kind = opener + 1, self._buffer[opener]
        large = self.clipboard and self._buffer.startswith(b"52;", body)
        limit = start + (MAX_CLIPBOARD_BYTES if large and kind == _OSC else MAX_HELD_BYTES)
        ends = _STRING_ENDS[_OSC if kind == _OSC else _APC]
        match = ends.search(self._buffer, body, limit)
        end = match.start() if match else min(len(self._buffer), limit)
        head, whole = self._buffer[body:end], match is not None
        if kind == _OSC:
            verdict = judge_osc(head, whole, self.clipboard)
        else:
            verdict = judge_apc(head, whole) if kind == _APC else DROP
        if verdict is WAIT:
            if end < limit:
                return self._wait(start)
            verdict = DROP
        if match is not None and match[0] in b"\x18\x1a":
            verdict = DROP  # aborted
        if kind == _OSC:
            text = _C1_CHAR.sub(b"", head).translate(None, C0_AND_DEL)
            if link := _LINK.match(text):
                if verdict is DROP and self._link_open:
                    # or the text of the removed link would belong to the previous link
                    executed += _LINK_END
                self._link_open = verdict is PASS and bool(link[1])
        if verdict is PASS:
            if kind == _OSC:
                spelled = clean_title(head)
            else:
                end = body + len(head.partition(b";")[0])
                spelled = quiet_graphics(self._buffer[body:end])
            self._finish(start, end, executed, bytes((kind,)) + spelled)
            body = end
        return self._enter(kind if kind == _OSC else _APC, verdict, start, body, executed)

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
        if byte == _ESC and index + 1 == len(self._buffer):
            return self._wait(index)
        self._mode = _Mode.GROUND
        if byte != _ESC:
            if dropped and byte == _BEL:
                self._done = index + 1
            return index + 1
        if self._buffer[index + 1] != _BACKSLASH:
            if not dropped:
                self._remove(index, index, _ST)
            return index
        if dropped:
            self._done = index + 2
        return index + 2


def _enq_leaves_nul(match: Match[bytes], last: int) -> bool:
    """Say whether ENQ follows a part of a character: then two parts must not join."""
    return (match.string[match.start() - 1] if match.start() else last) >= 0x80


def _enqs_removed_after(position: int, data: bytes, last: int) -> int:
    """Count the bytes of ENQ removed from `data` after `position`, which counts without them."""
    removed = behind = 0
    for match in _ENQS.finditer(data):
        fewer = len(match[0]) - _enq_leaves_nul(match, last)
        if match.start() - removed > position:
            behind += fewer
        removed += fewer
    return behind
