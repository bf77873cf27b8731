"""Keeps the newest output of every session on disk, for a cold start (host/storage/spool.py).

New output makes a session due. A pass begins SPOOL_S after the first due session, and appends at
most the newest SPOOL_PASS_BYTES of each to its spool. So a flood is thinned, and leaves visible
gaps. While no program prints there is no timer and no work. The loop only copies bytes from the
ring; one thread seals, writes and waits for the disk, so a slow or full disk delays no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.home import Home, keys
from holdfast.host.runtime.saver import Saver
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.runtime.threads import Pool
from holdfast.host.storage.spool import Spool, sessions
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import SPOOL_AGAIN_S, SPOOL_PASS_BYTES, SPOOL_S
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.session.session import Session
    from holdfast.host.storage.store import SessionRow

T = TypeVar("T")
CLOSE_S: Final = 2.0  # for the last pass of a host that leaves; a hanging disk holds it no longer


class Spooling:
    """The spools of all running sessions. Used on the loop."""

    def __init__(
        self,
        home: Home,
        machine: keys.Identity,
        limit: int,
        note: Callable[[str, str, Mapping[str, object]], None],
        keeps: Callable[[SessionRow], bool],
    ) -> None:
        """`limit`: bytes for each session; 0: no output is stored. `note`: publishes an event.

        `keeps`: whether an ended session can come back.
        """
        self._top, self._key = home.spool, keys.spool_key(machine)
        self._limit, self._note, self._keeps = limit, note, keeps
        self._spools: dict[Session, Spool] = {}
        self._ends: dict[Session, int] = {}  # the offset after the newest durable byte
        self._due: dict[Session, None] = {}  # in the order of their output
        self._refused: set[Session] = set()  # by the disk; tried again later
        self._pool = Pool(1, "spool")
        self._tasks = Tasks("the spool")
        self._saver = Saver(self._pass, self._tasks.spawn, least_s=SPOOL_S)
        self._again: asyncio.TimerHandle | None = None
        self.failing = False
        self.stored, self.failures = 0, 0  # bytes of output; passes of a session that failed

    # ------------------------------------------------------------ sessions

    def spool(self, session: str, epoch: int) -> Spool:
        """The spool of a session. Its methods block."""
        return Spool(self._top, session, epoch, self._key, self._limit)

    def begin(self, session: Session) -> None:
        self._spools[session] = self.spool(session.id, session.record.epoch)
        if not self._limit:
            return
        session.on_output = functools.partial(self.dirty, session)
        if session.link.ring.head:  # the last host may have left something to store
            self.dirty(session)

    def dirty(self, session: Session) -> None:
        """There is new output."""
        if session not in self._due:
            self._due[session] = None
            if session not in self._refused:
                self._saver.soon()

    def end(self, session: Session) -> None:
        """Remove the spool of a session that has ended and cannot come back."""
        if (spool := self._spools.pop(session, None)) is None:
            return
        session.on_output = lambda: None
        self._due.pop(session, None)
        self._refused.discard(session)
        end = self._ends.pop(session, 0)
        if session.record.state == "ended" and not self._keeps(session.record):
            self._do(spool.remove)
            return
        if self._limit and (newest := _newest(session, end)) is not None:
            self._do(functools.partial(_append, spool, *newest))
        self._do(spool.close)

    def forget(self, session: str) -> None:
        """Remove the spool of a session that cannot come back any more."""
        self._do(self.spool(session, 0).remove)

    def sweep(self, running: Collection[str], ended: Iterable[SessionRow]) -> None:
        """Remove the spools that a host has left, except of sessions that can come back.

        Without a limit, remove these too.
        """
        kept = {*running, *(one.id for one in ended if self._keeps(one))}
        for session in sessions(self._top):
            if session not in kept or not self._limit:
                self._do(self.spool(session, 0).remove)

    # ------------------------------------------------------------ passes

    async def _pass(self) -> None:
        probe("host.spool.pass")
        failures, stored = self.failures, self.stored
        for session in [one for one in self._due if one not in self._refused]:
            self._due.pop(session, None)  # it may have ended during this pass
            if (spool := self._spools.get(session)) is not None:
                await self._store(session, spool)
        if self.stored > stored:
            self.failing = self.failing and (self.failures > failures or bool(self._refused))

    async def _store(self, session: Session, spool: Spool) -> None:
        try:
            if session not in self._ends:
                self._ends[session] = await self._in_thread(lambda: spool.end)
            if session not in self._spools:
                self._ends.pop(session, None)
                return
            if (newest := _newest(session, self._ends[session])) is None:
                return
            offset, data = newest
            await self._in_thread(lambda: _append(spool, offset, data))
        except HoldfastError as e:
            self._failed(session, e)
            return
        self.stored += len(data)
        if session in self._spools:
            self._ends[session] = offset + len(data)

    def _failed(self, session: Session, error: HoldfastError) -> None:
        self.failures += 1
        if session in self._spools:
            self._refused.add(session)
            self._due[session] = None
        if not self.failing:
            self._note("", "spool.failed", {"detail": error.message})
        self.failing = True
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(SPOOL_AGAIN_S, self._try_again)
        probe("host.spool.failed")

    def _try_again(self) -> None:
        self._again = None
        self._refused.clear()
        self._saver.soon()

    async def close(self) -> None:
        """Store what is pending; returns at the latest after CLOSE_S."""
        self._saver.close()
        if self._again is not None:
            self._again.cancel()
        self._refused.clear()
        self._due |= dict.fromkeys(self._spools if self._limit else ())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._saver.now()
                await self._in_thread(lambda: None)  # what was begun before
        self._tasks.cancel()
        if self._again is not None:
            self._again.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ the thread

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _do(self, work: Callable[[], None]) -> None:
        """Work that no later step waits for. What fails is done by the next host's sweep."""

        async def do() -> None:
            try:
                await self._in_thread(work)
            except HoldfastError:
                self.failures += 1

        self._tasks.spawn(do())


def _append(spool: Spool, offset: int, data: bytes) -> None:
    spool.append(offset, data)
    probe("host.spool.durable")


def _newest(session: Session, end: int) -> tuple[int, bytes] | None:
    """(offset, output) after `end` that one pass stores; None if there is nothing."""
    ring = session.link.ring
    head = ring.head
    # Twice at most: the keeper may overwrite the oldest bytes while they are copied.
    for _ in range(2):
        start = max(end, ring.start, head - SPOOL_PASS_BYTES)
        if start >= head:
            return None
        if (data := ring.copy(start, head)) is not None:
            return start, data
    return None
