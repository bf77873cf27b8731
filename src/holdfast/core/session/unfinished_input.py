"""What somebody has typed and not finished: half a line, half an escape sequence, half a paste (A6, A7).

Nobody's input may land inside another's. Only the holder of the turn writes, so this matters when the turn changes hands: a turn that
became free by idleness is not free to write with while its last holder's line stands there unfinished. Who takes the turn knowingly
(hand, grant, seize) inherits what is staged, and is shown it with the name of who typed it.

What counts as unfinished
- a character, an escape sequence: for MOMENT_S after its last byte. An Escape key by itself looks like the beginning of a sequence, and
  the rest of a real one is never long in coming.
- a paste between its brackets: until the closing one.
- a line: from its first byte until a line end, or Ctrl-C or Ctrl-D, unless all of it was taken back (core/lineedit.py). Only a line editor or a terminal in line mode has lines;
  the caller, who knows, says whether that is so now (`lines`), or that a prompt has come (`settle`).

The text is kept only to be shown to whoever inherits it, never recorded, in memory only, and bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

MOMENT_S = 0.5
TEXT_BYTES = 1024  # of a staged line; the beginning of a longer one is what is shown
PASTE, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
_ENDS_LINE = b"\r\n\x03\x04"

Kind = Literal["character", "sequence", "paste", "line"]


class Unfinished(NamedTuple):
    operator: str
    kind: Kind


class Piece(NamedTuple):
    """Bytes of a staged line, and who typed them."""

    operator: str
    data: bytes


@dataclass
class Staged:
    pieces: list[Piece] = field(default_factory=list)  # of the line, in order
    by: str = ""  # who wrote last
    at: float = 0.0
    _tail: bytes = b""  # a character or a sequence that is not complete
    _paste: bool = False

    def typed(self, operator: str, data: bytes, now: float) -> None:
        """Bytes on their way to the terminal, by whoever was allowed to."""
        if (
            len(data) == 1
            and 0x20 <= data[0] < 0x7F
            and operator == self.by
            and not (self._tail or self._paste)
            and self.pieces
        ):
            last = self.pieces[-1]  # the commonest: one more character
            if last.operator == operator and len(self.pieces) == 1:
                self.at = now
                if len(last.data) < TEXT_BYTES:
                    self.pieces[0] = Piece(operator, last.data + data)
                return
        if operator != self.by:
            self._tail = b""  # what another left open is closed by going on
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
        room = TEXT_BYTES - sum(len(p.data) for p in self.pieces)
        text = text[: max(0, room)] if self.pieces else text[:TEXT_BYTES]
        if not text:
            return
        if self.pieces and self.pieces[-1].operator == operator:
            self.pieces[-1] = Piece(operator, self.pieces[-1].data + text)
        else:
            self.pieces.append(Piece(operator, text))

    @property
    def open(self) -> bool:
        """Whether something may be unfinished."""
        return bool(self.pieces) or self._paste

    def settle(self) -> None:
        """A prompt came, or the terminal turned out to have no lines: nothing is staged."""
        self.pieces.clear()

    def inherit(self, operator: str) -> None:
        """Somebody takes over knowingly: what is open is theirs to finish. Who typed the line stays known."""
        self.by, self._tail = operator, b""

    def unfinished(self, now: float, lines: bool = True) -> Unfinished | None:
        """What of whose would be cut in two by somebody else's input now."""
        if self._tail and now < self.at + MOMENT_S:
            return Unfinished(self.by, "sequence" if self._tail[0] == 0x1B else "character")
        if self._paste:
            return Unfinished(self.by, "paste")
        if lines and self.pieces:
            return Unfinished(self.by, "line")
        return None

    def in_the_way(self, operator: str, now: float, lines: bool = True) -> Unfinished | None:
        """The same, if it is somebody else's."""
        found = self.unfinished(now, lines)
        return found if found is not None and found.operator != operator else None


def _complete(data: bytes) -> int:
    """How much of it is whole characters and whole sequences."""
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
    """Of bytes that begin with the last ESC there is: whether more of its sequence must come."""
    if len(data) == 1:
        return True
    if data[1] == 0x4F:  # SS3: one more
        return len(data) == 2
    if data[1] == 0x5B:  # CSI: up to its final byte
        return not any(0x40 <= b <= 0x7E for b in data[2:])
    return False  # Alt and a key
