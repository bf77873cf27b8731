"""The prefix key, which starts a command. Inside a bracketed paste the key is ordinary text."""

from __future__ import annotations

PASTE = b"\x1b[200~"
PASTE_END = b"\x1b[201~"
# A key as terminals send keys: a sequence, a character, or a byte.
_KEY = rb"(?s)\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~]|[^\[O])?|[\xc0-\xff][\x80-\xbf]*|."


def first_key(data: bytes) -> bytes:
    import re

    found = re.match(_KEY, data)
    return found[0] if found else data[:1]


class Prefix:
    def __init__(self, key: bytes, name: str = "") -> None:
        self.key, self.name = key, name  # the name in the users' notation, like C-\\
        self._paste = False

    def absent(self, data: bytes) -> bool:
        """Whether the data has neither a prefix key nor the bracket of a paste."""
        return not self._paste and self.key not in data and PASTE not in data

    def partition(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """The data before the prefix key, the key (empty if absent), and the data after the key."""
        at = 0
        while True:
            mark, key = data.find(PASTE_END if self._paste else PASTE, at), data.find(self.key, at)
            if not self._paste and key >= 0 and (mark < 0 or key < mark):
                return data[:key], self.key, data[key + 1 :]
            if mark < 0:
                return data, b"", b""
            self._paste, at = not self._paste, mark + len(PASTE)
