"""The screen of one session, derived from the ring off the hot path.

Output reaches viewers as bytes first; the emulator is fed a little later (VIEW_DELAY_S), small pieces on the loop, large ones in the
view pool's thread without the GIL. Only a chunk that may hold a terminal query is fed at once, because a program waits for
that answer. The keeper never rolls the ring past the last snapshot, so a new host restores the snapshot, feeds what
came after it, and has the same screen: an attach is the same act whether the host is a day or a millisecond old.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from holdfast.host.screen import Screen, SnapshotUnreadable
from holdfast.model.limits import (
    SCROLLBACK_LINES,
    SNAPSHOT_EVERY_BYTES,
    SNAPSHOT_QUIET_S,
    VIEW_DELAY_S,
    VIEW_SLICE_BYTES,
)
from holdfast.model.probe import probe
from holdfast.wire import snapshot
from holdfast.wire.ring import RingReader

INLINE_BYTES = 32 * 1024       # fed on the loop; more goes to the pool
_HEAD = struct.Struct("<I")
T = TypeVar("T")


def restore(snapshot_fd: int, ring: RingReader) -> tuple[Screen, int, dict[str, Any]]:
    """(screen, offset it stands at, the host's own notes) as the last host left them, or a blank screen at the ring's start."""
    stored = snapshot.load(snapshot_fd)
    if stored is not None:
        offset, data = stored
        try:
            length = _HEAD.unpack_from(data)[0]
            notes = json.loads(data[_HEAD.size:_HEAD.size + length])
            return Screen.restore(data[_HEAD.size + length:]), offset, notes
        except (SnapshotUnreadable, ValueError, struct.error):
            pass
    resized, cols, rows = ring.resized
    return Screen(cols, rows, SCROLLBACK_LINES), ring.start, {}


class View:
    def __init__(self, ring: RingReader, snapshot_fd: int, pool: Executor) -> None:
        self.ring = ring
        self.screen, self.fed, self.notes = restore(snapshot_fd, ring)
        self.snapshot_at = self.fed
        self.on_reply: Callable[[int, bytes], None] = lambda offset, data: None
        self.on_progress: Callable[[], None] = lambda: None
        self.on_gap: Callable[[int, int], None] = lambda start, end: None
        self.on_snapshot: Callable[[], None] = lambda: None
        self.saved_notes: Callable[[], dict[str, Any]] = dict
        self._snapshot_fd = snapshot_fd
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    # ------------------------------------------------------------ scheduling

    def poke(self, urgent: bool = False) -> None:
        """There is output the screen has not seen."""
        if self.closed:
            return
        if urgent:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            self._go()
        elif self._timer is None:
            self._timer = self._loop.call_later(VIEW_DELAY_S, self._go)

    def _go(self) -> None:
        self._timer = None
        if self.closed:
            return
        if not self._lock.locked() and self.ring.head - self.fed <= INLINE_BYTES:
            self._feed_inline()
            return
        self._spawn(self._catch_up())

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _catch_up(self) -> None:
        if self._lock.locked():
            return                      # whoever holds it goes on until the head
        async with self._lock:
            await self._feed_to_head()

    # ------------------------------------------------------------ feeding

    def _next_piece(self) -> tuple[int, memoryview] | None:
        """The next bytes to feed at the present size, or None at the head. Applies changes of size at their offset."""
        ring = self.ring
        while True:
            if self.fed < ring.start:
                lost = (self.fed, ring.start)
                self.fed = lost[1]
                self.on_gap(*lost)
            at, cols, rows = ring.resized
            limit = VIEW_SLICE_BYTES
            if (cols, rows) != self.screen.size:
                if self.fed >= at:
                    self.screen.resize(cols, rows)
                    self.snapshot_at = min(self.snapshot_at, self.fed)
                    self._note_quiet()
                    continue
                limit = min(limit, at - self.fed)
            piece = ring.span(self.fed, limit)
            return (self.fed, piece) if len(piece) else None

    def _fed(self, start: int, count: int, replies: list[tuple[int, bytes]]) -> None:
        self.fed = start + count
        if not self.ring.intact(start):
            self.on_gap(start, min(self.ring.start, self.fed))
        for index, data in replies:
            self.on_reply(start + index, data)

    def _feed_inline(self) -> None:
        while (piece := self._next_piece()) is not None:
            start, data = piece
            self._fed(start, len(data), self.screen.feed_replies(data))
        self._after()

    async def _feed_to_head(self) -> None:
        while not self.closed and (piece := self._next_piece()) is not None:
            start, data = piece
            if len(data) <= INLINE_BYTES:
                replies = self.screen.feed_replies(data)
            else:
                replies = await self._loop.run_in_executor(self._pool, self.screen.feed_replies, data)
            self._fed(start, len(data), replies)
            if self.fed - self.snapshot_at >= SNAPSHOT_EVERY_BYTES:
                await self._save()
            self.on_progress()
        self._after()

    def _after(self) -> None:
        self._note_quiet()
        self.on_progress()

    # ------------------------------------------------------------ snapshots

    def _note_quiet(self) -> None:
        if self._quiet is None and not self.closed:
            self._quiet = self._loop.call_later(SNAPSHOT_QUIET_S, self._became_quiet)

    def _became_quiet(self) -> None:
        self._quiet = None
        if not self.closed and self.fed > self.snapshot_at:
            self._spawn(self._save_locked())

    async def _save_locked(self) -> None:
        async with self._lock:
            await self._save()

    async def _save(self) -> None:
        """The screen as it is, with the host's notes, into the keeper's memory. The caller holds the lock."""
        if self.closed:
            return
        offset = self.fed - self.screen.pending
        notes = json.dumps(self.saved_notes()).encode()
        blob = await self._loop.run_in_executor(self._pool, self.screen.save)
        probe("host.snapshot.saved")
        if self.closed:
            return
        await self._loop.run_in_executor(self._pool, snapshot.store, self._snapshot_fd, offset,
                                         _HEAD.pack(len(notes)) + notes + blob)
        probe("host.snapshot.stored")
        self.snapshot_at = offset
        self.on_snapshot()

    # ------------------------------------------------------------ looking

    async def look(self, question: Callable[[Screen], T]) -> tuple[int, T]:
        """(offset, answer) of a question to the screen when it has seen everything up to now. The offset is a safe place to
        continue with raw bytes."""
        async with self._lock:
            await self._feed_to_head()
            return self.fed - self.screen.pending, question(self.screen)

    def glance(self, question: Callable[[Screen], T]) -> tuple[int, T] | None:
        """The same without waiting, if the screen is (nearly) up to date and free."""
        if self._lock.locked() or self.ring.head - self.fed > INLINE_BYTES:
            return None
        self._feed_inline()
        return self.fed - self.screen.pending, question(self.screen)

    async def close(self) -> None:
        """Stops feeding; returns when no thread uses the ring any more."""
        self.closed = True
        for timer in (self._timer, self._quiet):
            if timer is not None:
                timer.cancel()
        async with self._lock:
            pass
