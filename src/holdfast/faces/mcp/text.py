"""Terminal output as an agent reads it: plain text, cut in the middle, known secrets hidden. Pure.

The server hides the values of environment variables whose names look like the names of keys. The
server cannot hide a secret that only the program knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from holdfast.core.screen.plain_text import plain
from holdfast.core.session.inheritance import names_a_secret
from holdfast.faces.mcp import tools

HEAD_BYTES: Final = 32 << 10  # kept from the beginning of a command's output
TAIL_BYTES: Final = 128 << 10
SEQUENCE_BYTES: Final = 256  # of an unfinished sequence that waits for its end
_UNFINISHED: Final = re.compile(
    rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)"
    rb"|\r|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z"
)
SECRET_CHARS: Final = 8  # a shorter value is too likely an ordinary word


class Output:
    """The beginning and the end of a command's output, with its absolute offsets.

    `news` gives each byte to the agent once. Bytes are counted as they come: without the carriage
    returns that the host removes, so a count is not an offset.
    """

    def __init__(self) -> None:
        self.start: int | None = None
        self.end = self.lost = 0
        self._head, self._tail = bytearray(), bytearray()
        self._given = 0  # bytes that the agent has
        self.left_out = False  # whether the last news were cut

    def add(self, offset: int, data: bytes, end: int | None = None) -> None:
        """`end`: the offset behind the data, if it is not the sum."""
        self.start = offset if self.start is None else self.start
        self.end = offset + len(data) if end is None else end
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * TAIL_BYTES:
            self.lost += len(self._tail) - TAIL_BYTES
            del self._tail[:-TAIL_BYTES]

    def again(self) -> None:
        """The next `news` begins with the first byte."""
        self._given = 0

    def news(self, over: bool) -> str:
        """The text that the agent has not got. `over`: no more output comes.

        Before, an unfinished sequence or character at the end waits for its rest.
        """
        head, tail_at = len(self._head), len(self._head) + self.lost
        first = bytes(self._head[self._given :])
        left_out = tail_at - max(self._given, head)
        last = bytes(self._tail[max(0, self._given - tail_at) :])
        kept = 0 if over else unfinished(last or first)
        self._given = tail_at + len(self._tail) - kept
        self.left_out = left_out > 0
        if not self.left_out:
            whole = first + last
            return plain(whole[: len(whole) - kept])
        note = f"\n[{left_out} bytes left out here: read(cursor) has them]\n"
        return plain(first) + note + plain(last[: len(last) - kept])


def unfinished(data: bytes) -> int:
    """The length of an unfinished escape sequence, character or line end at the end of data."""
    found = _UNFINISHED.search(data, max(0, len(data) - SEQUENCE_BYTES))
    return len(found.group()) if found is not None else 0


def chars(most: int) -> int:
    """The number of characters of an answer, within the bounds."""
    return max(tools.CHARS_MIN, min(most, tools.CHARS_MAX))


def cut(text: str, most: int, rest: str = "read(cursor) has them") -> str:
    """The first quarter and the end of a text that is too long. `rest`: where the middle is."""
    if len(text) <= most:
        return text
    head = most // 4
    left_out = f"\n[{len(text) - most} characters left out here: {rest}]\n"
    return text[:head] + left_out + text[len(text) - (most - head) :]


def secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The values to hide, with the name that stands for each."""
    return {
        value: name
        for name, value in environ.items()
        if names_a_secret(name) and len(value) >= SECRET_CHARS
    }


def hidden(text: str, secrets: Mapping[str, str]) -> str:
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, f"[{secrets[value]}]")
    return text
