"""Unfinished input of an operator: half a line, half an escape sequence, half a paste (A6, A7).

Inputs of two operators must never mix. Only the holder of the turn writes, so this matters when the
turn moves. After a turn became free by idleness, no other operator can write while the unfinished
line of the last holder stands there. An operator who takes the turn knowingly (hand, grant, seize)
inherits the unfinished text, and sees the text with the typist's name.

Unfinished is
- a character or an escape sequence, for MOMENT_S after its last byte. A single Escape key looks
  like the beginning of a sequence, and the rest of a real sequence follows at once.
- a paste, until its closing bracket.
- a line, from its first byte until a line end, Ctrl-C or Ctrl-D, unless the whole line was deleted
  (core/screen/line_edit.py). Only a line editor or a terminal in line mode has lines. The caller
  knows, and passes `lines`, or calls `settle` after a prompt.

The text is kept only to be shown to the next holder. It is never recorded, stays in memory, and is
bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

MOMENT_S = 0.5
TEXT_BYTES = 1024  # of an unfinished line; only the beginning of a longer line is kept
PASTE, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
_ENDS_LINE = b"\r\n\x03\x04"
_KILL = b"\x15"  # Ctrl-U
_PLAIN = re.compile(rb"[^\x00-\x1f]*")  # text without keys that move the cursor

Kind = Literal["character", "sequence", "paste", "line"]


class Unfinished(NamedTuple):
    operator: str
    kind: Kind


class Piece(NamedTuple):
    """Bytes of an unfinished line, and the operator that typed them."""

    operator: str
    data: bytes


@dataclass
class UnfinishedInput:
    """The unfinished input of one terminal."""

    pieces: list[Piece] = field(default_factory=list)  # of the unfinished line, oldest first
    by: str = ""  # the last writer
    at: float = 0.0
    _tail: bytes = b""  # an incomplete character or sequence
    _paste: bool = False

    def typed(self, operator: str, data: bytes, now: float) -> None:
        """Note bytes on their way to the terminal."""
        if (
            len(data) == 1
            and 0x20 <= data[0] < 0x7F
            and operator == self.by
            and not (self._tail or self._paste)
            and self.pieces
        ):
            last = self.pieces[-1]  # the most frequent case: another character
            if last.operator == operator and len(self.pieces) == 1:
                self.at = now
                if len(last.data) < TEXT_BYTES:
                    self.pieces[0] = Piece(operator, last.data + data)
                return
        if operator != self.by:
            self._tail = b""  # new input closes the open sequence of the last writer
        self.by, self.at = operator, now
        data = self._tail + data
        cut = _complete(data)
        self._tail, data = data[cut:], data[:cut]
        while data:
            mark = _PASTE_END if self._paste else PASTE
            text, found, data = data.partition(mark)
            self._line(operator, text)
            if found:
                self._paste = not self._paste

    def _line(self, operator: str, text: bytes) -> None:
        if not self._paste:
            end = max(text.rfind(bytes((c,))) for c in _ENDS_LINE)
            if end >= 0:
                self.pieces.clear()
                text = text[end + 1 :]
            kill = text.rfind(_KILL)
            if kill >= 0 and _PLAIN.fullmatch(self.text + text[:kill]):
                self.pieces.clear()  # the key itself stays: it says that the line is empty
                text = text[kill:]
        room = TEXT_BYTES - sum(len(p.data) for p in self.pieces)
        text = text[: max(0, room)] if self.pieces else text[:TEXT_BYTES]
        if not text:
            return
        if self.pieces and self.pieces[-1].operator == operator:
            self.pieces[-1] = Piece(operator, self.pieces[-1].data + text)
        else:
            self.pieces.append(Piece(operator, text))

    @property
    def text(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def open(self) -> bool:
        """There may be unfinished input."""
        return bool(self.pieces) or self._paste

    def settle(self) -> None:
        """Forget the line: a prompt appeared, or the terminal has no lines."""
        self.pieces.clear()

    def inherit(self, operator: str) -> None:
        """Note that an operator takes over knowingly; the typists of the line stay known."""
        self.by, self._tail = operator, b""

    def unfinished(self, now: float, lines: bool = True) -> Unfinished | None:
        """Return the unfinished input that other input would cut in two now."""
        if self._tail and now < self.at + MOMENT_S:
            return Unfinished(self.by, "sequence" if self._tail[0] == 0x1B else "character")
        if self._paste:
            return Unfinished(self.by, "paste")
        if lines and self.pieces:
            return Unfinished(self.by, "line")
        return None

    def in_the_way(self, operator: str, now: float, lines: bool = True) -> Unfinished | None:
        """Return the unfinished input of another operator."""
        found = self.unfinished(now, lines)
        return found if found is not None and found.operator != operator else None


def _complete(data: bytes) -> int:
    """Return the length of the complete characters and sequences."""
    escape = data.rfind(b"\x1b")
    if escape >= 0 and _open_sequence(data[escape:]):
        return escape
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < need else len(data)
        if byte < 0x80:
            break
    return len(data)


def _open_sequence(data: bytes) -> bool:
    """Say whether bytes that begin with the last ESC are an incomplete sequence."""
    if len(data) == 1:
        return True
    if data[1] == 0x4F:  # SS3: a single byte follows
        return len(data) == 2
    if data[1] == 0x5B:  # CSI: up to its final byte
        return not any(0x40 <= b <= 0x7E for b in data[2:])
    return False  # Alt and a key
