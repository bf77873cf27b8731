"""Makes drafts into durable entries: the queue in front of the store's writer thread.

Every draft gets a place in the queue in the order of the calls, and is written in groups: while
the disk makes a group durable, the next group gathers. An awaited draft starts a group at once; a
posted draft joins the next group within POST_DELAY_S. No timer runs while the queue is empty.

When the disk refuses, every caller that waits to act gets an error at once. Owed drafts stay first
in the queue and are tried again. An owed draft that finds no room is counted, and the count
is recorded as a `gap` as soon as there is room: the record may have a hole, but says so.

A draft that has no canonical form is a defect of this host. The caller that waits gets an error. An
owed draft is written without its facts, so that the act is in the record and has an outcome. A
draft that has no canonical form without them either, such as one with an odd name of its actor, is
dropped. The host's log and a counter tell of both.

After a group the end of each chain is signed, at most once in HEAD_EVERY_S and once more when the
queue is quiet. The store keeps the newest head of a session; clients keep the received heads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import apsw

from holdfast.core.prometheus_text import Histogram
from holdfast.core.record import record
from holdfast.core.record.record import Draft, Terminal, Written
from holdfast.host.runtime.notify import log_error
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.storage import record_table as table
from holdfast.host.storage.store import Store
from holdfast.model.errors import Unavailable, Usage
from holdfast.model.probe import probe

GROUP_ENTRIES: Final = 512  # written together
QUEUE_ENTRIES: Final = 4096  # waiting; beyond that, intents fail and keys are only counted
QUEUE_BYTES: Final = 16 << 20  # of content waiting
POST_DELAY_S: Final = 0.05  # how long posted drafts may gather
# Keys wait longer: the actor's signature usually comes earlier and starts the group. After a
# crash the keeper knows which keys were taken.
KEYS_DELAY_S: Final = 1.5
HEAD_EVERY_S: Final = 1.0
RETRY_S: Final = 1.0  # until owed drafts are tried again
LATE_NS: Final = 1_000_000_000  # an entry written this long after the act is marked late
RECENT_ENTRIES: Final = 256  # of a session: an actor may name any of these as last seen
AT_ONCE: Final = ("seize", "halt")  # posted, but written without delay


@dataclass(slots=True, eq=False)
class Item:
    draft: Draft
    asked: int
    owed: bool
    future: asyncio.Future[Written] | None = None
    last: int | None = None  # of keys: the present end of the range
    problem: ValueError | None = None  # why an owed draft was written without its facts


class RecordWriter:
    def __init__(
        self,
        store: Store,
        private: bytes,
        clock: Callable[[], int],
        on_written: Callable[[str], None],
    ) -> None:
        self.failing = False  # the last write failed
        # By session: the last item in the queue. Further keys are added to that item.
        self.newest: dict[str, Item] = {}
        self.tips: dict[str, Written] = {}
        # By session: hashes of the newest entries; entries of earlier hosts only if in `read`.
        self.recent: dict[str, deque[str]] = {}
        self.read: set[str] = set()
        self.entries = 0  # made durable by this host
        self.refused = 0  # owed drafts with facts that have no canonical form
        self.took = Histogram()  # seconds per group
        self._store = store
        self._private = private
        self._clock = clock
        self._on_written = on_written
        self._queue: deque[Item] = deque()
        self._bytes = 0
        self._asked = 0  # items that ever got a place in the queue
        self._done = 0  # items of these that are durable or refused
        # By session: how many drafts found no room, and the epoch.
        self._lost: dict[str, tuple[int, int]] = {}
        self._head_at: dict[str, float] = {}
        self._unsigned: set[str] = set()
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks("signing the heads of records")

    @property
    def waiting(self) -> int:
        """Entries that are not durable yet."""
        return self._asked - self._done

    # ------------------------------------------------------------ in

    def admit(self, draft: Draft, terminal: Terminal, owed: bool, wanted: bool) -> Item | None:
        """Puts a draft into the queue; None if the draft is owed and there is no room.

        `wanted`: the caller waits for the entry.
        """
        draft = record.only_what_may_be_kept(draft, terminal)
        size = len(draft.content or b"")
        room = len(self._queue) < (
            2 * QUEUE_ENTRIES if owed and draft.kind != record.KEYS else QUEUE_ENTRIES
        )
        if not room or self._bytes + size > QUEUE_BYTES:
            if not owed:
                raise Unavailable("the record cannot keep up", "try again in a moment")
            self._lost[draft.session] = (self._lost.get(draft.session, (0, 0))[0] + 1, draft.epoch)
            return None
        if draft.session in self._lost:
            lost, epoch = self._lost.pop(draft.session)
            facts = {"lost": lost}
            gap = record.host_fact(draft.session, epoch, record.GAP, "host", "host", facts=facts)
            self._place(Item(gap, self._clock(), True))
        future = asyncio.get_running_loop().create_future() if wanted else None
        item = Item(draft, self._clock(), owed, future)
        self._place(item)
        self.newest[draft.session] = item
        self._bytes += size
        self._go(
            0.0
            if (wanted and not owed) or draft.kind in AT_ONCE
            else RETRY_S
            if self.failing
            else 0.0
            if wanted
            else KEYS_DELAY_S
            if draft.kind == record.KEYS
            else POST_DELAY_S
        )
        return item

    def _place(self, item: Item) -> None:
        self._queue.append(item)
        self._asked += 1

    def _go(self, delay: float) -> None:
        """Starts the next group after `delay`, unless an earlier start is already scheduled."""
        if self._writing is not None:
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay:
                return
            self._timer.cancel()
        self._timer = loop.call_at(loop.time() + delay, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None or not self._queue:
            return
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_ENTRIES))]
        for item in batch:
            if self.newest.get(item.draft.session) is item:
                del self.newest[item.draft.session]
            if item.last is not None:
                item.draft = replace(item.draft, number=item.last)
        self._writing = asyncio.get_running_loop().create_task(self._write(batch))

    # ------------------------------------------------------------ a group

    async def _write(self, batch: list[Item]) -> None:
        now = time.monotonic()
        touched = {item.draft.session for item in batch}
        due = {s for s in touched if now - self._head_at.get(s, -HEAD_EVERY_S) >= HEAD_EVERY_S}
        try:
            results = await self._store.run(self._group(batch, due))
        except Unavailable as e:
            self.failing = True
            self._refuse(batch, e)
        else:
            probe("host.journal.durable")
            self.failing = False
            self._done += len(batch)
            self.entries += len(batch)
            self.took.add(time.monotonic() - now)
            self._head_at.update(dict.fromkeys(due, now))
            self._sign_later(touched - due)
            for item, result in zip(batch, results, strict=True):
                self._bytes -= len(item.draft.content or b"")
                self._settle(item, result)
            for session in touched:
                self._on_written(session)
        finally:
            self._writing = None
        if self._queue:
            awaited = any(item.future is not None for item in self._queue)
            self._go(RETRY_S if self.failing else 0.0 if awaited else POST_DELAY_S)

    def _group(
        self, batch: list[Item], sign: set[str]
    ) -> Callable[[apsw.Connection], list[Written | Exception]]:
        def job(db: apsw.Connection) -> list[Written | Exception]:
            probe("host.journal.appending")
            tips: dict[str, table.Tip] = {}
            results: list[Written | Exception] = []
            now = self._clock()
            for item in batch:
                session = item.draft.session
                end = tips.get(session) or table.tip(db, session)
                late, at = now - item.asked > LATE_NS, item.draft.time or item.asked
                try:
                    written = _append(db, item, end, at, late)
                except ValueError as e:  # not canonical or too long: a bug in the caller
                    results.append(e)
                    continue
                tips[session] = table.Tip(written.seq, written.hash)
                results.append(written)
            for session in sign & tips.keys():
                self.sign(db, session, tips[session])
            probe("host.journal.appended")
            return results

        return job

    def _settle(self, item: Item, result: Written | Exception) -> None:
        if isinstance(result, Written):
            self.remember(result)
        elif item.owed:
            item.problem = item.problem or ValueError(f"{result}")
        if item.problem is not None:
            self.refused += 1
            probe("host.journal.refused")
            log_error(f"the record refused facts of {item.draft.kind}", item.problem)
        if item.future is not None and not item.future.done():
            if isinstance(result, Exception):
                item.future.set_exception(Usage(f"this cannot be recorded: {result}"))
            else:
                item.future.set_result(result)

    def remember(self, written: Written) -> None:
        self.tips[written.session] = written._replace(content=None, salt=None)
        self.recent.setdefault(written.session, deque(maxlen=RECENT_ENTRIES)).append(written.hash)

    def _refuse(self, batch: list[Item], error: Unavailable) -> None:
        """Refuses all waiting intents, because the disk refuses; owed items stay in the queue."""
        waiting = [*batch, *self._queue]
        self._queue = deque(item for item in waiting if item.owed)
        self.newest.clear()
        for item in waiting:
            if not item.owed:
                self._done += 1
                self._bytes -= len(item.draft.content or b"")
                if item.future is not None and not item.future.done():
                    item.future.set_exception(Unavailable(error.message, error.recover))

    async def settled(self) -> None:
        """Returns when all items admitted before this call are durable, or a write fails."""
        wanted = self._asked
        while self._done < wanted and (self._queue or self._writing is not None):
            if self._writing is None:
                self._begin()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self.failing:
                return

    async def close(self) -> None:
        await self.settled()
        while self._queue and not self.failing:  # items admitted meanwhile
            await self.settled()
        for timer in (self._timer, self._head_timer):
            if timer is not None:
                timer.cancel()
        if self._unsigned and not self.failing:
            await self.sign_heads(frozenset(self._unsigned))

    # ------------------------------------------------------------ heads

    def sign(self, db: apsw.Connection, session: str, end: table.Tip) -> None:
        head = record.head(self._private, session, end.seq, end.hash, self._clock())
        table.put_head(db, session, end.seq, head)

    def _sign_later(self, sessions: set[str]) -> None:
        self._unsigned |= sessions
        if self._unsigned and self._head_timer is None:
            self._head_timer = asyncio.get_running_loop().call_later(HEAD_EVERY_S, self._sign_due)

    def _sign_due(self) -> None:
        self._head_timer = None
        sessions, self._unsigned = frozenset(self._unsigned), set()
        self._tasks.spawn(self.sign_heads(sessions))

    async def sign_heads(self, sessions: Iterable[str]) -> None:
        """Signs the present ends of these chains."""

        def job(db: apsw.Connection) -> None:
            for session in sessions:
                if (end := table.tip(db, session)).seq:
                    self.sign(db, session, end)

        try:
            await self._store.run(job)
        except Unavailable:
            self._sign_later(set(sessions))
        else:
            self._head_at.update(dict.fromkeys(sessions, time.monotonic()))
            self._unsigned -= set(sessions)


def _append(db: apsw.Connection, item: Item, end: table.Tip, at: int, late: bool) -> Written:
    try:
        return table.append(db, item.draft, end, at, late)
    except ValueError as e:
        if not item.owed:
            raise
        item.problem = e
        bare = replace(item.draft, facts={"left_out": str(e)[: record.REASON_CHARS]})
        return table.append(db, bare, end, at, late)
