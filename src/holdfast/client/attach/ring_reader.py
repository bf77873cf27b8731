"""Reading a session's output straight from the keeper's ring: for a viewer on the same machine.

The host decides who may (it hands out the descriptors) and what the screen is; the bytes then take one hop instead of two, and
keep coming while the host is being replaced. Bytes that would make the user's terminal answer are stripped here, as the host
does for everybody else.
"""

from __future__ import annotations

import os

from holdfast.core.filter import ViewerFilter
from holdfast.core.resume import LOOKBACK_BYTES, filter_after
from holdfast.model.limits import OUTPUT_CHUNK_BYTES
from holdfast.wire.ring import RingReader, RingUnreadable


class Direct:
    def __init__(self, ring_fd: int, bell: int) -> None:
        """RingUnreadable if the descriptors are not what they should be; they are closed then."""
        try:
            self.ring = RingReader(ring_fd)
        except (OSError, RingUnreadable):
            os.close(bell)
            raise
        finally:
            os.close(ring_fd)
        self.bell = bell
        self.offset = -1  # -1: waiting for a screen that says where to begin
        self._filter = ViewerFilter()
        self._ahead: bytes | memoryview | None = b""  # taken before it was asked for
        self._before_ahead = 0  # where the terminal is then

    def begin(self, offset: int, resumed: bool = False) -> None:
        """At a screen, which stands between two sequences, or `resumed` wherever this viewer had got to."""
        self.offset, self._ahead = offset, b""
        before = (
            self.ring.copy(max(self.ring.start, offset - LOOKBACK_BYTES), offset)
            if resumed
            else None
        )
        self._filter = filter_after(before)

    def stop(self) -> None:
        self.offset, self._ahead = -1, b""

    @property
    def delivered(self) -> int:
        """Where a screen or another reader would have to go on: what was only looked at ahead was not shown."""
        return self._before_ahead if self._ahead else self.offset - self._filter.pending

    def quiet(self) -> None:
        try:
            os.read(self.bell, 8)
        except BlockingIOError:
            pass

    def look_ahead(self) -> None:
        """Filters the next piece while the terminal is busy with the last: they do not have to wait for each other."""
        if self._ahead is not None and not len(self._ahead):
            self._before_ahead = self.delivered
            self._ahead = self._take()

    def take(self) -> bytes | memoryview | None:
        """The next output for the terminal; empty if there is none; None if some of it has rolled off."""
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
