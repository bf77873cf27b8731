"""Read a session's output straight from the keeper's ring, for a viewer on the same machine.

The host hands the descriptors to the viewers that may read, and paints the screen. Output then
takes a single hop instead of two, and keeps coming while the host is replaced. Bytes that would
make the user's terminal answer are stripped here, as the host does for all other viewers.
"""

from __future__ import annotations

import os

from holdfast.core.screen.filter import ViewerFilter
from holdfast.core.screen.resume import LOOKBACK_BYTES, filter_after
from holdfast.model.limits import OUTPUT_CHUNK_BYTES
from holdfast.wire.ring import RingReader, RingUnreadable


class Direct:
    def __init__(self, ring_fd: int, bell: int, clipboard: bool = False) -> None:
        """Raise RingUnreadable, and close both descriptors, unless these are a ring and a bell."""
        try:
            self.ring = RingReader(ring_fd)
        except (OSError, RingUnreadable):
            os.close(bell)
            raise
        finally:
            os.close(ring_fd)
        self.bell = bell
        self.offset = -1  # -1: waiting for a screen that says where to begin
        self._clipboard = clipboard
        self._filter = ViewerFilter(clipboard)
        self._ahead: bytes | memoryview | None = b""  # filtered in advance
        self._before_ahead = 0  # the offset before that

    def begin(self, offset: int, resumed: bool = False) -> None:
        """Start at a screen, which lies between two sequences, or, if `resumed`, anywhere."""
        self.offset, self._ahead = offset, b""
        before = (
            self.ring.copy(max(self.ring.start, offset - LOOKBACK_BYTES), offset)
            if resumed
            else None
        )
        self._filter = filter_after(before, clipboard=self._clipboard)

    def stop(self) -> None:
        self.offset, self._ahead = -1, b""

    @property
    def delivered(self) -> int:
        """The end of the shown output; output filtered in advance was not shown."""
        return self._before_ahead if self._ahead else self.offset - self._filter.pending

    def quiet(self) -> None:
        try:
            os.read(self.bell, 8)
        except BlockingIOError:
            pass

    def look_ahead(self) -> None:
        """Filter the next piece while the terminal is busy with the last piece."""
        if self._ahead is not None and not len(self._ahead):
            self._before_ahead = self.delivered
            self._ahead = self._take()

    def take(self) -> bytes | memoryview | None:
        """The next output for the terminal; empty if there is none; None if some rolled off."""
        ahead, self._ahead = self._ahead, b""
        return self._take() if ahead is not None and not len(ahead) else ahead

    def _take(self) -> bytes | memoryview | None:
        while (start := self.offset) >= 0:
            if start < self.ring.start:
                return None
            piece = self.ring.span(start, OUTPUT_CHUNK_BYTES)
            if not len(piece):
                break
            data = self._filter.feed(piece)
            copy = bytes(data) if data is piece else data
            if not self.ring.intact(start):
                return None
            self.offset = start + len(piece)
            if len(copy):
                return copy
        return b""

    def close(self) -> None:
        os.close(self.bell)
        self.ring.close()
