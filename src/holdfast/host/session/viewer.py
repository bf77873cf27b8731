"""An attached client: gets a correct screen at once, then live bytes without gap or overlap.

A viewer is little more than an offset into the ring. Bytes go from shared memory to the socket
uncopied: eight viewers cost eight sends, and a stalled viewer costs a socket buffer. While a viewer
keeps up (PACE_BYTES in PACE_WINDOW_S) it paces the program, as any terminal does, and misses
nothing. A lagging viewer does not pace; if far behind, the viewer gets a fresh screen and a notice.
If the client's terminal has a different size than the session, the host draws for it (letterboxed
or panned) instead of sending raw bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from copy import copy
from typing import TYPE_CHECKING

from holdfast.core.screen.filter import ViewerFilter
from holdfast.core.screen.letterbox import Letterbox
from holdfast.core.screen.resume import LOOKBACK_BYTES, filter_after
from holdfast.host.terminal.frame import frame_of
from holdfast.host.terminal.paint import cleared
from holdfast.model.limits import (
    COLS_MAX,
    COLS_MIN,
    FRAME_BYTES,
    OUTPUT_CHUNK_BYTES,
    PACE_BYTES,
    RENDER_INTERVAL_S,
    ROWS_MAX,
    ROWS_MIN,
    SCROLLBACK_PAINTED,
    SEEN_EVERY_BYTES,
    KiB,
)
from holdfast.model.probe import probe
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.host.runtime.connection import Connection
    from holdfast.host.session.session import Session
    from holdfast.host.terminal.screen import Screen

PAINT_BYTES = FRAME_BYTES - 64 * KiB
# A lagging viewer that is this far behind gets the newest screen instead of the backlog; ...
LAG_SKIP_BYTES = 512 * KiB
AFAR_SKIP_BYTES = 64 * KiB  # ... on another machine: there a screen costs no more than that
CATCH_UP_S = 1.0  # a backlog that takes the viewer longer is replaced by the newest screen


def sane_size(cols: int, rows: int) -> bool:
    return COLS_MIN <= cols <= COLS_MAX and ROWS_MIN <= rows <= ROWS_MAX


def _fitting(screen: Screen, scrollback: int, over: bool) -> bytes:
    """A paint that fits into a frame, with as much of the newest history as there is room for."""
    paint = screen.paint(scrollback, over)
    while len(paint) > PAINT_BYTES and scrollback:
        scrollback = int(scrollback * 0.9 * PAINT_BYTES / len(paint))
        paint = screen.paint(scrollback, over)
    return paint


class Viewer:
    def __init__(
        self,
        conn: Connection,
        session: Session,
        cols: int,
        rows: int,
        observe: bool,
        scrollback: int | None,
        clipboard: bool = False,
    ) -> None:
        self.conn = conn
        self.session = session
        self.size = (cols, rows)
        self.observe = observe
        self.scrollback = SCROLLBACK_PAINTED if scrollback is None else scrollback
        self.offset = session.ring.head
        self.lagging = False
        self.pace_mark = 0
        self.skip_bytes = AFAR_SKIP_BYTES if conn.channel else LAG_SKIP_BYTES
        # By right: the expiry that its operator was warned of, and how long before.
        self.warned: dict[str, tuple[float, float]] = {}
        self.inside: str | None = None  # the session this viewer's own terminal belongs to, if any
        self.sane = sane_size(cols, rows)
        self.resizes = True  # the client has the right to resize the session
        self.skips = 0
        # Keys that wait while the host asks whether a line is unfinished.
        self.held: deque[tuple[int, bytes, bool]] = deque()
        # Programs may write to this viewer's clipboard: it always has a filter of its own.
        self._clipboard = clipboard
        self._live = False  # a screen has been sent; output may follow
        self._painting = False
        self._filter: ViewerFilter | None = None  # None: up to date with the session's filter
        self._letterbox: Letterbox | None = None
        self._render_timer: asyncio.TimerHandle | None = None
        self._told_ack = 0
        self.closed = False
        self.typed_at = time.monotonic()  # or attached
        self.left = asyncio.Event()  # set when the client has left the session
        self.tag = 0  # not 0: it reads the ring itself, woken by the keeper's bell of this number

    @property
    def foreign(self) -> bool:
        return self.sane and self.size != self.session.size

    @property
    def paces(self) -> bool:
        return self._live and not self.lagging and not self.foreign and not self.closed

    @property
    def taken(self) -> int:
        """The offset that the client has received: bytes in a socket are lost if the host dies."""
        return self.offset if self.tag else max(0, self.offset - self.conn.unread)

    @property
    def unfinished(self) -> bool:
        """Whether a screen or output that exists is still to be sent to this client."""
        if self.closed or self._painting:
            return not self.closed
        if self._letterbox is not None:
            return self._render_timer is not None or self.conn.blocked
        return not self.tag and self.offset < self.session.ring.head

    @property
    def missed(self) -> bool:
        """Whether output rolled off before this client, which reads the ring itself, read it."""
        return self.tag != 0 and self.lagging and self.offset < self.session.ring.start

    @property
    def acked(self) -> int:
        return self.session.lane.acked(self.conn.client)

    # ------------------------------------------------------------ screens

    async def begin(self, resume: int | None) -> bool:
        """Sends the first screen, or goes on at `resume` if nothing was missed.

        Returns whether it could resume.
        """
        ring = self.session.ring
        if resume is not None and not self.foreign and ring.start <= resume <= ring.head:
            self._live = True
            before = ring.copy(max(ring.start, resume - LOOKBACK_BYTES), resume)
            self._behind(resume, filter_after(before, clipboard=self._clipboard))
            self.pump()
            return True
        await self.refresh(frames.SCREEN_ATTACH if resume is None else frames.SCREEN_RESUME)
        return False

    async def refresh(self, reason: int, over: bool = True) -> None:
        """Sends a complete, correct screen; live output continues right after it.

        Without `over`, the terminal shows this screen already, or an overlay of `attach`. That
        content does not go into the terminal's history again.
        """
        if self._painting or self.closed:
            return None
        sizes = self.size, self.session.size
        self._painting = True
        self._live = False
        try:
            if self.foreign:
                # The terminal shows content of the user, or a screen with modes of its own.
                before = cleared(self.size[1], over) if self._letterbox is None else b""
                self._letterbox = Letterbox(*self.size, self.session.turn.holder or "")
                offset, frame = await self.session.view.look(frame_of)
                paint, shown = before + self._letterbox.render(frame), frames.SCREEN_FOREIGN
            else:
                self._letterbox = None
                offset, paint = await self.session.view.look(
                    lambda screen: _fitting(screen, self.scrollback, over)
                )
                shown = reason
            if self.closed:
                return None
            self.scrollback = 0 if reason != frames.SCREEN_ATTACH else self.scrollback
            self._behind(offset, ViewerFilter(self._clipboard))
            self.conn.send(frames.screen(offset, self.acked, shown, *self.session.size, paint))
            probe("host.screen.sent")
            self._live = True
            self.lagging = self.lagging and self.tag != 0
        finally:
            self._painting = False
        if (self.size, self.session.size) != sizes:  # a size changed while the screen was drawn
            return await self.refresh(frames.SCREEN_RESIZE, over=False)
        self.pump()

    def session_resized(self) -> None:
        """The session's size changed: switches between raw bytes and drawing where needed."""
        if self._live and self.foreign != (self._letterbox is not None):
            self.session.spawn(self.refresh(frames.SCREEN_RESIZE, over=False))
        elif self._letterbox is not None:
            self.schedule_render()

    def resized(self, cols: int, rows: int) -> None:
        self.size = (cols, rows)
        self.sane = sane_size(cols, rows)
        self.session.keyboard.recheck()
        if self._letterbox is not None and self.foreign:
            self.session.spawn(self.refresh(frames.SCREEN_RESIZE, over=False))
        else:
            self.session_resized()

    # ------------------------------------------------------------ output

    def _behind(self, offset: int, own: ViewerFilter) -> None:
        """Gives the viewer a filter of its own from `offset` on, until it has caught up."""
        self.offset, self._filter = offset, own

    def give(
        self, start: int, length: int, data: bytes | memoryview, held: int, pending: int
    ) -> None:
        """Sends new output, already filtered, if the viewer has all output before.

        The filter held back `held` bytes before and holds `pending` now. Ranges are given without
        these bytes, so that each range begins at the end of the last.
        """
        if (
            self._filter is not None
            or not self._live
            or self.closed
            or self._letterbox is not None
            or self.tag
        ):
            return
        self.offset = start + length
        self._told_ack = self.acked
        self.conn.send_pair(
            frames.output_header(start - held, self.offset - pending, self._told_ack, len(data)),
            data,
        )
        probe("host.output.sent")

    def before_new(self, offset: int, shared: ViewerFilter) -> None:
        """Called before the session filters new output at `offset`.

        A viewer that cannot take it now goes on with a copy of the filter.
        """
        if (
            self._filter is None
            and self._live
            and not self.tag
            and (self.conn.blocked or self.offset != offset)
        ):
            self._behind(self.offset, copy(shared))

    def pump(self) -> None:
        """Sends available output as far as the client takes it."""
        conn, ring = self.conn, self.session.ring
        if not self._live or self.closed:
            return
        if self._letterbox is not None:
            self.schedule_render()
            return
        if self.tag:
            self.tell_ack(force=False)
            return
        head = self.session.scanned
        while self._filter is not None and self.offset < head and not conn.blocked:
            if self.offset < ring.start or (self.lagging and head - self.offset > self.skip_bytes):
                self.skipped()
                self.session.spawn(self.refresh(frames.SCREEN_LAG))
                return
            start = self.offset
            piece = ring.span(start, min(OUTPUT_CHUNK_BYTES, head - start))
            begin = start - self._filter.pending
            data = self._filter.feed(piece)
            end = start + len(piece)
            acked = self._told_ack = self.acked
            delivered = end - self._filter.pending
            conn.send_pair(frames.output_header(begin, delivered, acked, len(data)), data)
            probe("host.backlog.sent")
            if not ring.intact(start):
                continue  # overwritten while it was sent: the next round sees it and refreshes
            self.offset = end
        if self.offset >= head:
            self.lagging = False
            # A client of the last host may be ahead of the output that this host has scanned.
            if self.offset == head and not self._clipboard:
                self._filter = None
        self.tell_ack(force=False)

    def skipped(self) -> None:
        """Counts a newest screen that replaces missed output."""
        self.skips += 1
        self.session.pace.skips += 1

    def seen(self, offset: int) -> None:
        """A viewer that reads the ring itself has shown output up to `offset`."""
        if (
            not self.closed
            and self.tag
            and self._letterbox is None
            and self.offset < offset <= self.session.ring.head
        ):
            self.offset = offset
            if self.session.ring.head - offset <= 2 * SEEN_EVERY_BYTES:
                self.lagging = False

    def tell_ack(self, force: bool) -> None:
        """Acknowledges keys that the program does not echo, if the client asked for it."""
        acked = self.acked
        if (
            acked > self._told_ack
            and (force or self._told_ack < self.conn.wants_ack)
            and not self.conn.blocked
            and self._live
        ):
            self._told_ack = acked
            at = self.offset - (self._filter or self.session.filter).pending
            self.conn.send(frames.output_header(at, at, acked, 0))

    @property
    def falls_behind(self) -> bool:
        """Whether the viewer's backlog may take long."""
        return (
            self._filter is not None
            and self.paces
            and not self.tag
            and self.session.ring.head - self.offset > self.skip_bytes
        )

    def check_catching_up(self, window_s: float) -> None:
        """Called once per window while the viewer falls behind.

        The viewer lags if the backlog takes longer than CATCH_UP_S at the present pace.
        """
        taken = self.taken
        moved, left = taken - self.pace_mark, self.session.ring.head - taken
        if self.falls_behind and moved < PACE_BYTES and left * window_s > moved * CATCH_UP_S:
            self.lagging = True

    def check_pace(self) -> None:
        """Called once per window while the ring is under pressure."""
        behind, taken = self.session.ring.head - self.offset, self.taken
        if taken - self.pace_mark < PACE_BYTES and behind > (
            2 * SEEN_EVERY_BYTES if self.tag else 0
        ):
            if self.tag and not self.lagging and self._letterbox is None:
                self.skipped()
                # The screen waits in the socket until the client reads again.
                self.session.spawn(self.refresh(frames.SCREEN_LAG))
            self.lagging = True
        self.pace_mark = taken

    # ------------------------------------------------------------ drawing for another size

    def schedule_render(self) -> None:
        if self._render_timer is None and not self.closed:
            self._render_timer = self.session.loop.call_later(RENDER_INTERVAL_S, self._render)

    def _render(self) -> None:
        self._render_timer = None
        if self.closed or self._letterbox is None or not self._live or self.conn.blocked:
            return
        got = self.session.view.glance(frame_of)
        if got is None:
            self.schedule_render()
            return
        offset, frame = got
        data = self._letterbox.render(frame)
        self.offset = self.session.ring.head
        self._told_ack = self.acked
        if data:
            self.conn.send_pair(
                frames.output_header(offset, offset, self._told_ack, len(data)), data
            )
        if self.session.ring.head > self.session.view.fed:
            self.schedule_render()

    def close(self) -> None:
        self.closed = True
        self.left.set()
        if self._render_timer is not None:
            self._render_timer.cancel()
