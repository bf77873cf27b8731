"""Keys that no signature covers yet (P1). The same on both sides of the wire.

A key is not signed by itself: that would double its echo. It travels authenticated by its channel, and when its line, paste or pause
commits, at most COVER_KEYS inputs or COVER_NS later, the client signs one statement over the range. The client asks `due`, takes the
range and signs; the host holds the same keys until that statement comes, and checks the commitment against what it really got.

A range is without holes: an act of another kind that took a number in between ends it. A host's memory is bounded: of a client
that never signs the oldest keys are let go, and stay covered by their channel only. The record says so.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from holdfast.core import statement

KEPT_BYTES: Final = (
    64 * 1024
)  # what a host holds of one client's keys; a paste of this size is an act of its own
KEPT_KEYS: Final = 4 * statement.COVER_KEYS


class Range(NamedTuple):
    first: int
    last: int
    content: bytes  # as `statement.keys_content`


class Uncovered:
    def __init__(self) -> None:
        self._keys: deque[tuple[int, bytes, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, number: int, data: bytes, now: int) -> None:
        self._keys.append((number, data, now))
        self._bytes += len(data)
        while len(self._keys) > KEPT_KEYS or (self._bytes > KEPT_BYTES and len(self._keys) > 1):
            self._drop_first()

    def _drop_first(self) -> None:
        self._bytes -= len(self._keys.popleft()[1])

    def deadline(self) -> int | None:
        """When the oldest of them is due."""
        return self._keys[0][2] + statement.COVER_NS if self._keys else None

    def due(self, now: int) -> bool:
        deadline = self.deadline()
        return deadline is not None and (now >= deadline or len(self._keys) >= statement.COVER_KEYS)

    def take(self) -> Range | None:
        """The oldest range, at most COVER_KEYS long; the caller signs it."""
        taken: list[tuple[int, bytes]] = []
        while (
            self._keys
            and len(taken) < statement.COVER_KEYS
            and (not taken or self._keys[0][0] == taken[-1][0] + 1)
        ):
            number, data, _ = self._keys[0]
            taken.append((number, data))
            self._drop_first()
        return Range(taken[0][0], taken[-1][0], statement.keys_content(taken)) if taken else None

    def cover(self, said: dict[str, Any], salt: bytes) -> bool:
        """Whether this statement (its signature is checked already) is about keys that came, as they came. They are let go."""
        first, last = said.get("first"), said.get("number")
        if (
            not isinstance(first, int)
            or not isinstance(last, int)
            or len(salt) != statement.SALT_BYTES
        ):
            return False
        meant = [(number, data) for number, data, _ in self._keys if first <= number <= last]
        if (
            not meant
            or [number for number, _ in meant] != list(range(first, first + len(meant)))
            or meant[-1][0] != last
        ):
            return False
        if statement.commit(salt, statement.keys_content(meant)) != said.get("commit"):
            return False
        while self._keys and self._keys[0][0] <= last:
            self._drop_first()
        return True
