"""The ring: bytes of the terminal at absolute offsets, shared from keeper to host by a memfd.

    memfd ::= HEADER (one page) DATA (size bytes); the byte with absolute offset o lives at DATA[o % size]

    word | name      | written by | meaning
    -----|-----------|------------|----------------------------------------------------------------------
      0  | MAGIC     | keeper     | identifies the layout; another value is refused
      1  | SIZE      | keeper     | bytes of DATA
      2  | START     | keeper     | lowest offset that is still intact; raised BEFORE older bytes may be overwritten
      3  | HEAD      | keeper     | offset after the newest byte; raised AFTER the bytes are in place
      4  | ACCEPTED  | keeper     | highest act sequence taken over from a host
      5  | WRITTEN   | keeper     | highest act sequence that took effect completely
      6  | FLAGS     | keeper     | EOF, EXITED, ROLLING, FENCED
      7  | RESIZED   | keeper     | HEAD when the terminal last changed its size; screens have that size from there on
      8  | GRID      | keeper     | that size, cols << 32 | rows

A reader copies or uses [a, b), then looks at START again: if START <= a, what it used was intact. Words are 8-byte
aligned and written through memoryview.cast("Q"), which is one 8-byte store; struct.pack_into("<Q") would write byte
by byte and can be seen half done (measured). RESIZED is written before GRID and read after it: who looks in between
finds the old size from the new offset on, which is right up to there, and is rung for the rest. Only the keeper
writes: the memfd is sealed against further writers (F_SEAL_FUTURE_WRITE) before anyone else gets it.
"""

from __future__ import annotations

import mmap
from typing import Final

HEADER_BYTES: Final = 4096
MAGIC: Final = 0x31474E4952464C48  # "HLFRING1"
(
    MAGIC_WORD,
    SIZE_WORD,
    START_WORD,
    HEAD_WORD,
    ACCEPTED_WORD,
    WRITTEN_WORD,
    FLAGS_WORD,
    RESIZED_WORD,
    GRID_WORD,
) = range(9)

FLAG_EOF: Final = 1  # no terminal output can come any more
FLAG_EXITED: Final = 2  # the root process has ended
FLAG_ROLLING: Final = 4  # the host stayed away too long: programs are not held back for it
FLAG_FENCED: Final = 8  # the fence deadline passed: no input is taken


class RingUnreadable(Exception):
    """The shared memory is not a ring of this layout."""


class RingReader:
    """Read-only access to a ring by absolute offset."""

    def __init__(self, fd: int) -> None:
        try:
            self._map = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as e:
            raise RingUnreadable(f"no shared memory: {e}") from e
        view = memoryview(self._map)
        self._words = view[: HEADER_BYTES if len(view) > HEADER_BYTES else 0].cast("Q")
        if (
            not self._words
            or self._words[MAGIC_WORD] != MAGIC
            or self._words[SIZE_WORD] + HEADER_BYTES != len(view)
        ):
            self._words.release()
            view.release()
            self._map.close()
            raise RingUnreadable("bad magic or size")
        self.size: int = self._words[SIZE_WORD]
        self._data = view[HEADER_BYTES:]
        view.release()

    @property
    def start(self) -> int:
        return self._words[START_WORD]

    @property
    def head(self) -> int:
        return self._words[HEAD_WORD]

    @property
    def accepted(self) -> int:
        return self._words[ACCEPTED_WORD]

    @property
    def written(self) -> int:
        return self._words[WRITTEN_WORD]

    @property
    def flags(self) -> int:
        return self._words[FLAGS_WORD]

    @property
    def resized(self) -> tuple[int, int, int]:
        """(offset, cols, rows) of the last change of size."""
        size = self._words[GRID_WORD]
        return self._words[RESIZED_WORD], size >> 32, size & 0xFFFFFFFF

    def span(self, start: int, limit: int) -> memoryview:
        """The longest contiguous piece from `start`, at most `limit` bytes and never beyond HEAD. No copy."""
        at = start % self.size
        return self._data[at : min(at + max(min(limit, self.head - start), 0), self.size)]

    def intact(self, start: int) -> bool:
        """Whether bytes from `start` on have not been overwritten; to be asked after using a span."""
        return self._words[START_WORD] <= start

    def copy(self, start: int, end: int) -> bytes | None:
        """Bytes [start, end), or None if any of them has rolled off."""
        if not self.start <= start <= end <= self.head:
            return None
        at, count = start % self.size, end - start
        first = min(count, self.size - at)
        data = bytes(self._data[at : at + first])
        if first < count:
            data += bytes(self._data[: count - first])
        return data if self.intact(start) else None

    def close(self) -> None:
        self._words.release()
        self._data.release()
        try:
            self._map.close()
        except BufferError:  # a span is still in use; the mapping goes with it
            pass
