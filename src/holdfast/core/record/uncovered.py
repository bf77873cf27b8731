"""Keys that no signature covers yet (P1). Client and host use the same code.

A key is not signed alone, because that would double the echo time. The channel authenticates keys.
When its line, paste or pause commits, at most COVER_KEYS inputs or COVER_NS later, the client signs
one statement over the range. The client asks `due`, takes the range and signs. The host holds the
same keys until that statement arrives, and checks the commitment against the received keys.

A range has no holes: an act of another kind with a number in between ends the range. The memory of
a host is bounded: if a client never signs, the oldest keys are dropped and stay covered by the
channel only. The record says so.
"""

from __future__ import annotations

from holdfast.core.record import statement
from holdfast.model.deque import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

KEPT_BYTES: Final = 64 * 1024
"""Bytes of a client's keys that a host holds; a paste of this size is an act of its own."""
KEPT_KEYS: Final = 4 * statement.COVER_KEYS


class Range:
    """Keys without a hole; `content` is as `statement.keys_content` makes it."""

    __slots__ = ("content", "first", "last")

    def __init__(self, first: int, last: int, content: bytes) -> None:
        self.first, self.last, self.content = first, last, content


class Uncovered:
    """The uncovered keys of one client."""

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
        """Return when the signature of the oldest key is due."""
        return self._keys[0][2] + statement.COVER_NS if self._keys else None

    def due(self, now: int) -> bool:
        deadline = self.deadline()
        return deadline is not None and (now >= deadline or len(self._keys) >= statement.COVER_KEYS)

    def take(self) -> Range | None:
        """Return the oldest range, at most COVER_KEYS long, for the caller to sign."""
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

    def cover(self, said: Mapping[str, object], salt: bytes) -> bool:
        """Say whether a verified statement matches the received keys, and drop these keys."""
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
