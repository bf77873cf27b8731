"""The screen of one session, derived from the ring off the hot path.

Viewers get output as bytes first. The emulator is fed a little later (VIEW_DELAY_S): small pieces
on the loop, large pieces in a thread of the view pool without the GIL. Only a chunk that may hold a
terminal query is fed at once, because a program waits for the answer. Every task that gives the
screen free leaves a task behind that feeds the rest: no query waits for later output. The keeper
never rolls the ring past the last snapshot. So a new host restores the snapshot, feeds the bytes
after it, and has the same screen: an attach works the same whether the host is a day or a
millisecond old.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from holdfast.core.screen.skim import skim
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.terminal.screen import Screen, SnapshotUnreadable
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

# In a flood the screen follows less closely, so that more of the backlog can be skipped.
FLOOD_DELAY_S = 0.1
# A backlog of this part of the ring is skipped at once; from a half on, viewers are checked.
FLOOD_SHARE = 3 / 8
INLINE_BYTES = 32 * 1024  # fed on the loop; more goes to the pool
SKIM_BYTES = 1536 * 1024  # the least backlog that is searched for lines to skip
_HEAD = struct.Struct("<I")
T = TypeVar("T")
Notes = dict[str, Any]  # of the host, saved beside the screen


def stored(snapshot_fd: int, ring: RingReader) -> tuple[bytes, int, Notes]:
    """(saved screen, its offset, the host's notes) of the last host.

    Without a snapshot: (b"", the ring's start, {}).
    """
    found = snapshot.load(snapshot_fd)
    if found is not None:
        offset, data = found
        try:
            length = _HEAD.unpack_from(data)[0]
            return (
                data[_HEAD.size + length :],
                offset,
                json.loads(data[_HEAD.size : _HEAD.size + length]),
            )
        except (ValueError, struct.error):
            pass
    return b"", ring.start, {}


def store(snapshot_fd: int, offset: int, notes: Notes, blob: bytes) -> None:
    """As a view stores its screen; for a session that is being restored."""
    snapshot.store(snapshot_fd, offset, _head(notes) + blob)


def _head(notes: Notes) -> bytes:
    data = json.dumps(notes).encode()
    return _HEAD.pack(len(data)) + data


class View:
    def __init__(self, ring: RingReader, snapshot_fd: int, pool: Executor) -> None:
        self.ring = ring
        self._saved, self.fed, self.notes = stored(snapshot_fd, ring)
        self._screen: Screen | None = None
        self.snapshot_at = self.fed
        self._looking = 0  # callers of `look` that wait
        self._catching_up = False
        self._flood = False
        self._due = 0  # feed up to here without delay: a program waits for an answer
        self._flooded_to = -1  # the head when the newest lines of a flood were postponed
        # (from, to) of the last stretch of output that only prints and colours lines.
        self._plain = (self.fed, self.fed)
        # Whether the screen may lag until a flood ends.
        self.may_lag: Callable[[], bool] = lambda: False
        self._every = min(SNAPSHOT_EVERY_BYTES, ring.size // 4)
        self.on_reply: Callable[[int, bytes], None] = lambda offset, data: None
        self.on_progress: Callable[[], None] = lambda: None
        self.on_gap: Callable[[int, int], None] = lambda start, end: None
        self.on_snapshot: Callable[[], None] = lambda: None
        self.saved_notes: Callable[[], Notes] = dict
        self._snapshot_fd = snapshot_fd
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._tasks = Tasks("the screen of a session")
        self._stale = False  # the screen was resized since the last snapshot
        self.closed = False

    @property
    def screen(self) -> Screen:
        """The emulated screen, restored on first use.

        That takes 30 to 250 ms: a new host must answer before it has restored all screens.
        """
        if self._screen is None:
            self._screen, self._saved = self._restore(), b""
        return self._screen

    def _restore(self) -> Screen:
        if self._saved:
            try:
                return Screen.restore(self._saved)
            except SnapshotUnreadable:
                self.fed = self.snapshot_at = self.ring.start
        _, cols, rows = self.ring.resized
        return Screen(cols, rows, SCROLLBACK_LINES)

    # ------------------------------------------------------------ scheduling

    def poke(self, urgent: bool = False) -> None:
        """Schedules feeding: there is output that the screen has not seen."""
        if self.closed:
            return
        if urgent:
            self._due = self.ring.head
        if urgent or self.ring.head - self.fed > self.ring.size * FLOOD_SHARE:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            self._go()
        elif self._timer is None:
            self._timer = self._loop.call_later(
                FLOOD_DELAY_S if self._flood else VIEW_DELAY_S, self._go
            )

    def _go(self) -> None:
        self._timer = None
        if self.closed:
            return
        backlog = self.ring.head - self.fed
        self._flood = backlog > VIEW_SLICE_BYTES
        if self._goes_on() or self._passes_over():
            return self.poke()
        if self._screen is not None and not self._lock.locked() and backlog <= INLINE_BYTES:
            self._feed_inline()
            return
        self._tasks.spawn(self._catch_up())

    def _goes_on(self) -> bool:
        """Whether a flood goes on as fast as before, so that its newest lines will scroll out."""
        head, before = self.ring.head, self._flooded_to
        self._flooded_to = -1
        if (
            not self._flood
            or head - self.fed > self.ring.size * FLOOD_SHARE
            or not self._may_wait()
        ):
            return False
        if before >= 0 and head - before < VIEW_SLICE_BYTES:
            return False
        self._flooded_to = head
        return True

    def _passes_over(self) -> bool:
        """Skips lines that scroll out, and postpones the newest lines of a flood; True if it did.

        The newest lines are fed when the flood ends or a caller looks. Until then they are in the
        ring, behind a snapshot from which any host gets the same screen. This runs on the loop and
        not in the pool: each switch to a thread and back waits for a processor. A flood leaves none
        free, and the program would wait for the host.
        """
        if self._screen is None or self._lock.locked() or not self._may_wait() or not self._skim():
            return False
        self._save_now()
        self._flooded_to = self.ring.head
        return True

    def _may_wait(self) -> bool:
        """Whether the newest lines of a flood can wait: viewers of the raw bytes come first.

        Without viewers the screen is kept up to date while the program runs. That costs more
        processor time and, measured, no speed.
        """
        return self._due <= self.fed and not self._looking and self.may_lag()

    async def _catch_up(self) -> None:
        if self._catching_up:
            return  # that task feeds up to the head
        self._catching_up, before = True, self.fed
        try:
            async with self._lock:  # a snapshot or a caller of `look` may hold it
                if not self.closed:
                    await self._feed_to_head()
        finally:
            self._catching_up = False
            if self._ring_is_ahead and self.fed > before:
                self.poke()  # a snapshot failed on the way, or a caller of `look` came first

    # ------------------------------------------------------------ feeding

    @property
    def _ring_is_ahead(self) -> bool:
        """Whether there is output that the screen has not seen."""
        return not self.closed and self.ring.head > self.fed

    def _next_piece(self) -> tuple[int, memoryview] | None:
        """(offset, bytes) to feed next, or None at the head. Applies a new size at its offset."""
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
                    self._stale = True  # a new host would not know this size at this offset
                    self._note_quiet()
                    continue
                limit = min(limit, at - self.fed)
            piece = ring.span(self.fed, limit)
            return (self.fed, piece) if len(piece) else None

    def seen(self, start: int, end: int, plain: bool) -> None:
        """The session has searched new output; `plain`: it only prints and colours lines."""
        since, to = self._plain
        self._plain = (since if to == start else start, end) if plain else (end, end)

    def _skim(self) -> bool:
        """Skips the part of a large backlog that would scroll out; returns whether there was any.

        The lines that follow push out the present screen and history too. Both are dropped, which
        makes the next snapshot small.
        """
        start, (since, end) = self.fed, self._plain
        if since > start or end - start < SKIM_BYTES or not self.screen.flows_plainly:
            return False
        count, pen = skim(self.ring.copy(start, end) or b"", SCROLLBACK_LINES + self.screen.size[1])
        at, cols, rows = self.ring.resized
        if (
            not count
            or not self.ring.intact(start)
            or ((cols, rows) != self.screen.size and at < start + count)
        ):
            return False
        self.screen.feed(pen + b"\x1b[3J")
        self.fed = start + count
        return True

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

    async def _feed_to_head(self, until: int | None = None) -> None:
        """Feeds up to `until`, or to the head while no caller waits in `look`.

        In a flood the head is never reached.
        """
        if self._screen is None:
            await self._loop.run_in_executor(self._pool, lambda: self.screen)
        while not self.closed and (until is not None or not self._looking):
            if self._skim():
                self._save_now()
                if until is None and self._may_wait():
                    self._flooded_to = self.ring.head
                    return self.poke()
            if (piece := self._next_piece()) is None or (until is not None and self.fed >= until):
                break
            start, data = piece
            if len(data) <= INLINE_BYTES:
                replies = self.screen.feed_replies(data)
            else:
                replies = await self._loop.run_in_executor(
                    self._pool, self.screen.feed_replies, data
                )
            self._fed(start, len(data), replies)
            if self.fed - self.snapshot_at >= self._every:
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
        if not self.closed and (self.fed > self.snapshot_at or self._stale):
            self._tasks.spawn(self._save_locked())

    async def _save_locked(self) -> None:
        async with self._lock:
            await self._save()

    async def _save(self) -> None:
        """Stores the present screen and the host's notes in the keeper's memory, under the lock."""
        if self.closed:
            return
        offset, notes = self._place()
        # In a flood the portable part can wait for quiet.
        busy = self.ring.head - self.fed > VIEW_SLICE_BYTES
        blob = await self._loop.run_in_executor(self._pool, self.screen.save, not busy)
        probe("host.snapshot.saved")
        if self.closed:
            return
        await self._loop.run_in_executor(
            self._pool, snapshot.store, self._snapshot_fd, offset, notes + blob
        )
        self._saved_at(offset)

    def _save_now(self) -> None:
        """As `_save`, on the loop: without history it takes a fraction of a millisecond."""
        offset, notes = self._place()
        snapshot.store(self._snapshot_fd, offset, notes + self.screen.save(False))
        self._saved_at(offset)

    def _place(self) -> tuple[int, bytes]:
        return self.fed - self.screen.pending, _head(self.saved_notes())

    async def exact(self) -> tuple[int, Notes, bytes]:
        """(offset, the host's notes, the screen) at the head, for a checkpoint."""
        offset, blob = await self.look(lambda screen: screen.save(True))
        return offset, self.saved_notes(), blob

    def _saved_at(self, offset: int) -> None:
        self._stale = False
        probe("host.snapshot.stored")
        self.snapshot_at = offset
        self.on_snapshot()

    # ------------------------------------------------------------ looking

    async def look(self, question: Callable[[Screen], T]) -> tuple[int, T]:
        """Asks the screen when it has seen all output up to now; returns (offset, answer).

        The offset is a safe place to continue with raw bytes. The caller must not be cancelled: a
        thread may be using the screen.
        """
        now = self.ring.head
        self._looking += 1
        try:
            async with self._lock:
                await self._feed_to_head(now)
                return self.fed - self.screen.pending, question(self.screen)
        finally:
            self._looking -= 1
            if self._ring_is_ahead:
                self.poke()

    def glance(self, question: Callable[[Screen], T]) -> tuple[int, T] | None:
        """As `look`, without waiting; None if the screen is not nearly up to date, or in use."""
        if self._screen is None or self._lock.locked() or self.ring.head - self.fed > INLINE_BYTES:
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
