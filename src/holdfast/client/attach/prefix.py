"""The key before a command, as a finger presses it: what comes between the brackets of a paste is text, whatever it contains."""

from __future__ import annotations

import re
from typing import Final

PASTE: Final = b"\x1b[200~"
PASTE_END: Final = b"\x1b[201~"

# One key as a terminal sends it: a sequence, a character, or a byte.
_KEY = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~]|[^\[O])?|[\xc0-\xff][\x80-\xbf]*|.", re.DOTALL
)


def first_key(data: bytes) -> bytes:
    found = _KEY.match(data)
    return found[0] if found else data[:1]


class Prefix:
    def __init__(self, key: bytes) -> None:
        self.key = key
        self._paste = False

    def absent(self, data: bytes) -> bool:
        """Whether nothing of it is a prefix key, nor could change what the next bytes mean."""
        return not self._paste and self.key not in data and PASTE not in data

    def partition(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """(before, the key or nothing, after)."""
        at = 0
        while True:
            mark, key = data.find(PASTE_END if self._paste else PASTE, at), data.find(self.key, at)
            if not self._paste and key >= 0 and (mark < 0 or key < mark):
                return data[:key], self.key, data[key + 1 :]
            if mark < 0:
                return data, b"", b""
            self._paste, at = not self._paste, mark + len(PASTE)
