"""A reader of the ring that gets every byte: for `run`, `read` and `read --follow`.

A stream is an offset, like a viewer, but never skips to a screen: bytes that rolled off are sent as
a gap. While the stream moves, the ring keeps the bytes. After `patience_s` without progress the
ring goes on, and missed bytes are a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.core.screen.filter import ViewerFilter
from holdfast.core.screen.onlcr import OnlcrInverse
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.flow import Downstream
from holdfast.host.session.session import Session
from holdfast.model.limits import OUTPUT_CHUNK_BYTES
from holdfast.wire import frames


class Stream:
    def __init__(
        self,
        session: Session,
        conn: Connection,
        number: int,
        start: int,
        end: int | None,
        patience_s: float,
        undo: OnlcrInverse | None = None,
        raw: bool = False,
        known: Callable[[], int] | None = None,
    ) -> None:
        self.session, self.conn, self.number = session, conn, number
        self.offset = start
        self.end = end  # None: until told
        self.done: asyncio.Future[None] = session.loop.create_future()
        self.lost = 0
        self._filter = None if raw else ViewerFilter()
        self._undo = undo
        # the offset up to which the end is known not to have come; None: the head
        self._known = known
        self._patience_s = patience_s
        self._moved_at = session.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._flow = Downstream(conn, number, self.pump)
        session.streams.append(self.pump)
        session.pace.hold(self, self.offset)

    def pump(self) -> None:
        ring, conn = self.session.ring, self.conn
        if self.done.done():
            return
        if self.end is not None:
            limit = min(ring.head, self.end)
        else:
            limit = ring.head if self._known is None else min(ring.head, self._known())
        while self.offset < limit and self._flow.open:
            if self.offset < ring.start:
                self._gap(ring.start)
                continue
            start = self.offset
            piece = ring.span(start, min(OUTPUT_CHUNK_BYTES, limit - start))
            data: bytes | memoryview = piece if self._filter is None else self._filter.feed(piece)
            if self._undo is not None:
                data = self._undo.feed(data)
            end = start + len(piece)
            self._flow.send(start, end - self._held(), data)
            if not ring.intact(start):
                self._gap(ring.start)
                continue
            self.offset = end
            self._moved_at = self.session.loop.time()
        if conn.closed or (self.end is not None and self.offset >= self.end):
            self._finish()
        else:
            self.session.pace.hold(self, self.offset)
            if self.offset < limit and self._timer is None:
                self._timer = self.session.loop.call_later(self._patience_s, self._impatient)

    def _held(self) -> int:
        """Bytes that were read but not sent yet; a client that reconnects begins before them."""
        return (self._filter.pending if self._filter is not None else 0) + (
            self._undo.pending if self._undo is not None else 0
        )

    def _gap(self, to: int) -> None:
        to = min(to, self.end) if self.end is not None else to
        self.lost += to - self.offset
        self.conn.send(frames.gap(self.number, self.offset, to))
        self.offset = to

    def _impatient(self) -> None:
        self._timer = None
        if self.done.done():
            return
        if self.session.loop.time() - self._moved_at >= self._patience_s:
            self.session.pace.hold(self, None)
        self.pump()

    def until(self, end: int) -> None:
        self.end = end
        self.pump()

    def _finish(self) -> None:
        tail = self._filter.flush() if self._filter is not None else b""
        if self._undo is not None:
            tail = bytes(self._undo.feed(tail)) + self._undo.close()
        if tail and not self.conn.closed:
            self.conn.send(
                frames.data_header(self.number, self.offset, self.offset, len(tail)) + tail
            )
        self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.pump in self.session.streams:
            self.session.streams.remove(self.pump)
        self._flow.close()
        self.session.pace.hold(self, None)
        if not self.done.done():
            self.done.set_result(None)
