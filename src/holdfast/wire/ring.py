"""The ring: bytes of the terminal at absolute offsets, shared from keeper to host by a memfd.

    memfd ::= HEADER (one page) DATA (size bytes)
    The byte with absolute offset o is at DATA[o % size].

    word | name      | written by | meaning
    -----|-----------|------------|-----------------------------------------------------------
      0  | MAGIC     | keeper     | identifies the layout; another value is refused
      1  | SIZE      | keeper     | bytes of DATA
      2  | START     | keeper     | lowest intact offset; raised BEFORE older bytes are overwritten
      3  | HEAD      | keeper     | offset after the newest byte; raised AFTER the bytes are stored
      4  | ACCEPTED  | keeper     | highest act sequence accepted from a host
      5  | WRITTEN   | keeper     | highest act sequence that took effect completely
      6  | FLAGS     | keeper     | EOF, EXITED, ROLLING, FENCED
      7  | RESIZED   | keeper     | HEAD at the last change of size, which applies from there on
      8  | GRID      | keeper     | that size, cols << 32 | rows

A reader copies or uses [a, b), then reads START again: if START <= a, the bytes were intact. Words
are 8-byte aligned and written through memoryview.cast("Q"), which is a single 8-byte store;
struct.pack_into("<Q") writes byte by byte and can be seen half done (measured). RESIZED is written
before GRID and read after GRID. A reader in between sees the old size from the new offset on, which
is right up to that offset, and the bell tells it of the rest. Only the keeper writes: the memfd is
sealed against further writers (F_SEAL_FUTURE_WRITE) before another process gets it.
"""

from __future__ import annotations

import mmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

HEADER_BYTES: Final = 4096
MAGIC: Final = 0x31474E4952464C48  # "HLFRING1"
MAGIC_WORD, SIZE_WORD, START_WORD, HEAD_WORD = range(4)
ACCEPTED_WORD, WRITTEN_WORD, FLAGS_WORD, RESIZED_WORD, GRID_WORD = range(4, 9)

FLAG_EOF: Final = 1  # the terminal's output has ended
FLAG_EXITED: Final = 2  # the root process has ended
FLAG_ROLLING: Final = 4  # the host was away too long: output no longer waits for it
FLAG_FENCED: Final = 8  # the fence deadline passed: no input is accepted


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
        """Return (offset, cols, rows) of the last change of size."""
        size = self._words[GRID_WORD]
        return self._words[RESIZED_WORD], size >> 32, size & 0xFFFFFFFF

    def span(self, start: int, limit: int) -> memoryview:
        """Return the longest contiguous piece from `start`, up to HEAD or `limit`, uncopied."""
        at = start % self.size
        return self._data[at : min(at + max(min(limit, self.head - start), 0), self.size)]

    def intact(self, start: int) -> bool:
        """Tell, after a span was used, whether bytes from `start` on are not overwritten."""
        return self._words[START_WORD] <= start

    def copy(self, start: int, end: int) -> bytes | None:
        """Return bytes [start, end), or None if any of them has rolled off."""
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
