"""The writing side of the ring (layout and reader: wire/ring.py).

Owns the rule when old bytes may be overwritten. While the host makes progress, unconsumed bytes are
never overwritten: a full ring stops reading the terminal, and the kernel blocks the program. A host
restart takes half a second, and a short wait is better than a gap. After `away_s` without progress
the ring rolls: the terminal is drained in any case, so no program hangs because a host is dead.
Progress by the host up to bytes still in the ring restores the first behaviour.

START is raised before a read by the most that the read may overwrite, and afterwards set to what
was overwritten. At rest the ring holds exactly the last `size` bytes. Lowering START again is safe,
because those bytes were not touched.
"""

from __future__ import annotations

import mmap
import os

from holdfast.keeper import terminal
from holdfast.model.limits import PTY_READ_BYTES
from holdfast.wire import ring as layout

_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1, 2, 4, 16


def create(
    size: int, base: int, tail: bytes, accepted: int, exited: bool, cols: int, rows: int
) -> int:
    """Make a memfd with an empty ring, or with earlier output:

    `tail`, which ends at offset `base`.
    """
    fd = os.memfd_create("holdfast-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, layout.HEADER_BYTES + size)
    tail = tail[-size:]
    at = (base - len(tail)) % size
    cut = min(len(tail), size - at)
    _write_at(fd, layout.HEADER_BYTES + at, tail[:cut])
    _write_at(fd, layout.HEADER_BYTES, tail[cut:])
    words = {
        layout.MAGIC_WORD: layout.MAGIC,
        layout.SIZE_WORD: size,
        layout.START_WORD: base - len(tail),
        layout.HEAD_WORD: base,
        layout.ACCEPTED_WORD: accepted,
        layout.WRITTEN_WORD: accepted,
        layout.FLAGS_WORD: layout.FLAG_EXITED if exited else 0,
        layout.RESIZED_WORD: base,
        layout.GRID_WORD: cols << 32 | rows,
    }
    for word, value in words.items():
        _write_at(fd, word * 8, value.to_bytes(8, "little"))
    return fd


def _write_at(fd: int, position: int, data: bytes) -> None:
    while data:
        done = os.pwrite(fd, data, position)
        position += done
        data = data[done:]


class Ring:
    __slots__ = (
        "_data",
        "away_s",
        "consumed",
        "fd",
        "head",
        "progress_at",
        "rolling",
        "size",
        "words",
    )

    def __init__(self, fd: int, away_s: float) -> None:
        """Map the ring and seal it: later holders of the descriptor cannot write."""
        view = memoryview(mmap.mmap(fd, 0))
        terminal.seal(fd, _SEAL_SHRINK | _SEAL_GROW)
        # Needs Linux 5.1. Our existing mapping stays writable.
        terminal.seal(fd, _SEAL_FUTURE_WRITE | _SEAL_SEAL)
        self.words = view[: layout.HEADER_BYTES].cast("Q")
        self._data = view[layout.HEADER_BYTES :]
        self.fd = fd
        self.size: int = self.words[layout.SIZE_WORD]
        self.head: int = self.words[layout.HEAD_WORD]
        self.consumed = self.head
        self.away_s = away_s
        # Monotonic time when the host last made progress or the ring became full.
        self.progress_at = 0.0
        self.rolling = False

    def room(self) -> int:
        """Return how many bytes may be read from the terminal now."""
        if self.rolling:
            return self.size
        return self.size - (self.head - self.consumed)

    def read_from(self, fd: int, limit: int) -> int:
        """Read from the terminal into the ring with one readv, and publish the new bytes."""
        count = limit if limit < PTY_READ_BYTES else PTY_READ_BYTES
        head, size, words = self.head, self.size, self.words
        start = words[layout.START_WORD]
        overwrites = head + count - size > start
        if overwrites:
            words[layout.START_WORD] = head + count - size
        at = head % size
        try:
            if at + count <= size:
                head += os.readv(fd, [self._data[at : at + count]])
            else:
                head += os.readv(fd, [self._data[at:], self._data[: at + count - size]])
        finally:
            if overwrites:
                words[layout.START_WORD] = head - size if head - size > start else start
        got = head - self.head
        self.head = words[layout.HEAD_WORD] = head
        return got

    def host_consumed(self, offset: int, now: float) -> None:
        """Note that the host has consumed all bytes below `offset`."""
        if self.consumed < offset <= self.head:
            self.consumed = offset
            self.progress_at = now
            if self.rolling and offset >= self.words[layout.START_WORD]:
                self.rolling = False
                self.set_flag(layout.FLAG_ROLLING, False)

    def give_up_host(self) -> None:
        self.rolling = True
        self.set_flag(layout.FLAG_ROLLING, True)

    def set_flag(self, flag: int, on: bool) -> None:
        flags = self.words[layout.FLAGS_WORD]
        self.words[layout.FLAGS_WORD] = flags | flag if on else flags & ~flag
