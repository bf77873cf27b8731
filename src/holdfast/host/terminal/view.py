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

from holdfast.core.skim import skim
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

FLOOD_DELAY_S = (
    0.1  # under flood the screen follows less closely: more of the backlog may be passed over
)
FLOOD_SHARE = (
    3 / 8
)  # of the ring: such a backlog is passed over at once; at a half viewers begin to be hurried
INLINE_BYTES = 32 * 1024  # fed on the loop; more goes to the pool
SKIM_BYTES = 1536 * 1024  # a backlog worth looking at for what may be passed over
_HEAD = struct.Struct("<I")
T = TypeVar("T")


def stored(snapshot_fd: int, ring: RingReader) -> tuple[bytes, int, dict[str, Any]]:
    """(saved screen, offset it stands at, the host's own notes) as the last host left them; nothing at the ring's start if there is none."""
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


class View:
    def __init__(self, ring: RingReader, snapshot_fd: int, pool: Executor) -> None:
        self.ring = ring
        self._saved, self.fed, self.notes = stored(snapshot_fd, ring)
        self._screen: Screen | None = None
        self.snapshot_at = self.fed
        self.skimmed = 0
        self._looking = 0  # who waits for an answer
        self._flood = False
        self._due = 0  # up to here it must be emulated soon: a program waits for an answer
        self._flooded_to = -1  # the head when the newest lines of a flood were left for later
        self._plain = (
            self.fed,
            self.fed,
        )  # from, to: the last stretch of output that only prints and colours lines
        self.may_lag: Callable[[], bool] = lambda: (
            False
        )  # whether the screen of a flood may wait for its end
        self._every = min(SNAPSHOT_EVERY_BYTES, ring.size // 4)
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
        self._stale = False  # the screen was resized since the last snapshot
        self.closed = False

    @property
    def screen(self) -> Screen:
        """Restored when it is first needed (30 to 250 ms each): a new host answers before it has looked at any."""
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
        """There is output the screen has not seen."""
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
        self._spawn(self._catch_up())

    def _goes_on(self) -> bool:
        """Whether a flood comes as quickly as before, so that its newest lines are likely to be pushed out too."""
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
        """Under flood the newest lines are left for when it is over or somebody looks. Until then they are in the ring, behind a
        snapshot from which any host would get the same screen. Here and not in the pool: each hop to a thread and back waits for
        a processor, which is what a flood leaves none of, and the program would wait for us."""
        if self._screen is None or self._lock.locked() or not self._may_wait() or not self._skim():
            return False
        self._save_now()
        self._flooded_to = self.ring.head
        return True

    def _may_wait(self) -> bool:
        """Whether the newest lines of a flood can wait: the processor is for whoever watches the bytes themselves. With nobody
        attached the screen is kept up to date beside the program, which costs more processor time and, measured, no speed."""
        return self._due <= self.fed and not self._looking and self.may_lag()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _catch_up(self) -> None:
        if self._lock.locked():
            return  # whoever holds it goes on until the head
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
                    self._stale = True  # a new host would not know of this size at this place
                    self._note_quiet()
                    continue
                limit = min(limit, at - self.fed)
            piece = ring.span(self.fed, limit)
            return (self.fed, piece) if len(piece) else None

    def seen(self, start: int, end: int, plain: bool) -> None:
        """What the session found when it looked through new output."""
        since, to = self._plain
        self._plain = (since if to == start else start, end) if plain else (end, end)

    def _skim(self) -> bool:
        """Passes over what of a large backlog would scroll out anyhow; whether there was any. What is on the screen and in its
        history then will be pushed out by the lines that follow, so it is dropped: the snapshot of this moment is small."""
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
        self.skimmed += count
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
        """Up to `until`, or to the head as long as nobody waits to look: under flood the head is never reached."""
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
            self._spawn(self._save_locked())

    async def _save_locked(self) -> None:
        async with self._lock:
            await self._save()

    async def _save(self) -> None:
        """The screen as it is, with the host's notes, into the keeper's memory. The caller holds the lock."""
        if self.closed:
            return
        offset, notes = self._place()
        busy = (
            self.ring.head - self.fed > VIEW_SLICE_BYTES
        )  # a flood: the portable part can wait for quiet
        blob = await self._loop.run_in_executor(self._pool, self.screen.save, not busy)
        probe("host.snapshot.saved")
        if self.closed:
            return
        await self._loop.run_in_executor(
            self._pool, snapshot.store, self._snapshot_fd, offset, notes + blob
        )
        self._saved_at(offset)

    def _save_now(self) -> None:
        """The same of a screen without history, which takes a fraction of a millisecond."""
        offset, notes = self._place()
        snapshot.store(self._snapshot_fd, offset, notes + self.screen.save(False))
        self._saved_at(offset)

    def _place(self) -> tuple[int, bytes]:
        notes = json.dumps(self.saved_notes()).encode()
        return self.fed - self.screen.pending, _HEAD.pack(len(notes)) + notes

    def _saved_at(self, offset: int) -> None:
        self._stale = False
        probe("host.snapshot.stored")
        self.snapshot_at = offset
        self.on_snapshot()

    # ------------------------------------------------------------ looking

    async def look(self, question: Callable[[Screen], T]) -> tuple[int, T]:
        """(offset, answer) of a question to the screen when it has seen everything up to now. The offset is a safe place to
        continue with raw bytes."""
        now = self.ring.head
        self._looking += 1
        try:
            async with self._lock:
                await self._feed_to_head(now)
                return self.fed - self.screen.pending, question(self.screen)
        finally:
            self._looking -= 1
            if self.ring.head > self.fed:
                self.poke()

    def glance(self, question: Callable[[Screen], T]) -> tuple[int, T] | None:
        """The same without waiting, if the screen is (nearly) up to date and free."""
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
