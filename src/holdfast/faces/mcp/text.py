"""Terminal output as an agent reads it: plain text, cut in the middle, known secrets hidden. Pure.

The server hides the values of environment variables whose names look like the names of keys. The
server cannot hide a secret that only the program knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.core.screen.plain_text import plain
from holdfast.core.session.inheritance import names_a_secret

HEAD_BYTES: Final = 32 << 10  # kept from the beginning of a command's output
TAIL_BYTES: Final = 128 << 10
SECRET_CHARS: Final = 8  # a shorter value is too likely an ordinary word


class Output:
    """The beginning and the end of a command's output, with its absolute offsets."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.end = self.lost = 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, offset: int, data: bytes) -> None:
        self.start = offset if self.start is None else self.start
        self.end = offset + len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * TAIL_BYTES:
            self.lost += len(self._tail) - TAIL_BYTES
            del self._tail[:-TAIL_BYTES]

    def text(self) -> str:
        if not self.lost:
            return plain(bytes(self._head + self._tail))
        left_out = f"\n[{self.lost} bytes left out here: read(cursor) has them]\n"
        return plain(bytes(self._head)) + left_out + plain(bytes(self._tail))


def cut(text: str, most: int) -> str:
    """The first quarter and the end of a text that is too long."""
    if len(text) <= most:
        return text
    head = most // 4
    left_out = f"\n[{len(text) - most} characters left out here: read(cursor) has them]\n"
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
