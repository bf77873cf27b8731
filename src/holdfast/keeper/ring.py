"""The writing side of the ring (layout and reader: wire/ring.py).

Owns the rule when old bytes may be overwritten. While the host makes progress, nothing it has not consumed is
overwritten: a full ring stops reading the terminal, and the kernel holds the program back (a host restart takes half a
second; better a short wait than a hole). A host that made no progress for `away_s` is given up: the ring rolls, the
terminal is always drained, and no program ever hangs on a dead host. Progress makes it patient again.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from holdfast.model.limits import PTY_READ_BYTES
from holdfast.wire import ring as layout

F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 2, 4, 16


class Ring:
    def __init__(self, size: int, away_s: float, base: int = 0, tail: bytes = b"") -> None:
        self.fd = os.memfd_create("holdfast-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, layout.HEADER_BYTES + size)
        self._map = mmap.mmap(self.fd, layout.HEADER_BYTES + size)
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        try:  # Linux 5.1: our mapping stays writable, nobody who gets the descriptor can write
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
        except OSError:
            pass
        self._words = memoryview(self._map)[:layout.HEADER_BYTES].cast("Q")
        self._data = memoryview(self._map)[layout.HEADER_BYTES:]
        self.size = size
        self.away_s = away_s
        self.head = base
        self.consumed = base
        self.progress_at = 0.0      # monotonic time of the host's last progress, or of the ring getting full
        self.rolling = False
        self._words[layout.SIZE_WORD] = size
        self._words[layout.START_WORD] = self._words[layout.HEAD_WORD] = base
        if tail:
            self._load(tail[-size:])
        self._words[layout.MAGIC_WORD] = layout.MAGIC

    def _load(self, tail: bytes) -> None:
        """Bytes that were output before this keeper existed; `base` is the offset after them."""
        first = self.head - len(tail)
        for i in range(0, len(tail), PTY_READ_BYTES):
            piece = tail[i:i + PTY_READ_BYTES]
            at = (first + i) % self.size
            cut = min(len(piece), self.size - at)
            self._data[at:at + cut] = piece[:cut]
            self._data[:len(piece) - cut] = piece[cut:]
        self._words[layout.START_WORD] = first

    def room(self) -> int:
        """How many bytes may be read from the terminal now."""
        if self.rolling:
            return self.size
        return self.size - (self.head - self.consumed)

    def read_from(self, fd: int, limit: int) -> int:
        """One readv of the terminal straight into place; the new bytes are published before returning."""
        n = min(limit, PTY_READ_BYTES)
        head, size, words = self.head, self.size, self._words
        if head + n - size > words[layout.START_WORD]:
            words[layout.START_WORD] = head + n - size
        at = head % size
        if at + n <= size:
            got = os.readv(fd, [self._data[at:at + n]])
        else:
            got = os.readv(fd, [self._data[at:], self._data[:at + n - size]])
        self.head = words[layout.HEAD_WORD] = head + got
        return got

    def host_consumed(self, offset: int, now: float) -> None:
        """The host needs nothing below `offset` any more."""
        if self.consumed < offset <= self.head:
            self.consumed = offset
            self.progress_at = now
            self.rolling = False
            self.set_flag(layout.FLAG_ROLLING, False)

    def give_up_host(self) -> None:
        self.rolling = True
        self.set_flag(layout.FLAG_ROLLING, True)

    def set_word(self, word: int, value: int) -> None:
        self._words[word] = value

    def set_flag(self, flag: int, on: bool) -> None:
        flags = self._words[layout.FLAGS_WORD]
        self._words[layout.FLAGS_WORD] = flags | flag if on else flags & ~flag
