"""Threads for work that may never return: a dead file system, a parser, a hanging program's memory.

The threads of asyncio are few and shared: six reads of a dead mount would occupy all threads, and
block all work on the host that needs a thread. Here each piece of work belongs to an owner (a
session, an operator) with a quota of threads. A thread counts against the quota until the work is
done, not until the caller gives up. When the callers of all threads of a quota have given up, the
next caller gets `Stuck` at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from holdfast.host.runtime.tasks import Work

P = ParamSpec("P")
T = TypeVar("T")
THREADS: Final = 1024  # most threads never start; hanging work cannot occupy all threads
SESSION_THREADS: Final = 4  # for the acts of a session
SESSION_LOOKS: Final = 2  # for reading the state of a session
LOOK_S: Final = 10.0  # until a read of a session's state is given up
SLOT_S: Final = 1.0  # until hanging work must free the slot


_at_work: set[Future[Any]] = set()


class Pool(ThreadPoolExecutor):
    """A thread pool whose running work `at_work` reports, for a host that is about to exit."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        _at_work.add(future)
        future.add_done_callback(_at_work.discard)
        return future


def at_work() -> bool:
    return any(one.running() for one in (*_at_work,))


class Quota(NamedTuple):
    owner: Hashable
    most: int  # threads at a time


class Stuck(TimeoutError):
    """Every thread of this quota is blocked in a call whose caller timed out."""


class _Usage:
    """The free threads of a quota, and the callers that wait for a thread."""

    def __init__(self, most: int) -> None:
        self.most = self.free = most
        self.given_up = 0  # threads without a waiting caller
        self.waiting: list[asyncio.Future[None]] = []

    async def enter(self) -> None:
        if self.free:
            self.free -= 1
            return
        if self.given_up >= self.most:
            raise Stuck
        self.waiting.append(turn := asyncio.get_running_loop().create_future())
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self.waiting:
                self.waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                self.leave()  # the caller got a thread, but no longer needs one
            raise

    def leave(self) -> None:
        """Gives the thread to the caller that has waited longest."""
        while self.waiting:
            if not (turn := self.waiting.pop(0)).done():
                return turn.set_result(None)
        self.free += 1

    def give_up(self) -> None:
        self.given_up += 1
        while self.given_up >= self.most and self.waiting:
            if not (turn := self.waiting.pop(0)).done():
                turn.set_exception(Stuck())

    @property
    def idle(self) -> bool:
        return self.free == self.most


class Threads:
    """A pool of threads with quotas. Only the event loop that made the pool may use it."""

    def __init__(self, name: str, most: int = THREADS) -> None:
        self.pool = Pool(most, name)
        self._used: dict[Hashable, _Usage] = {}

    async def do(
        self, quotas: tuple[Quota, ...], work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs `work` in a thread, counted against all `quotas`.

        The narrowest quota comes first: a caller that waits there takes no thread from the wider
        quotas.
        """
        entered = list[_Usage]()
        try:
            for quota in quotas:
                usage = self._used.setdefault(quota.owner, _Usage(quota.most))
                await usage.enter()
                entered.append(usage)
            working = self.pool.submit(work, *args, **kwargs)
        except BaseException:
            self._leave(quotas, entered)
            raise
        loop, late = asyncio.get_running_loop(), False

        def over(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(back)

        def back() -> None:
            for usage in entered if late else ():
                usage.given_up -= 1
            self._leave(quotas, entered)

        working.add_done_callback(over)
        try:
            return await asyncio.wrap_future(working)
        finally:
            if not working.done():
                late = True
                for usage in entered:
                    usage.give_up()

    async def of(
        self, session: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs work that an act on the session needs."""
        return await self.do((Quota(session, SESSION_THREADS),), work, *args, **kwargs)

    async def looked(
        self, session: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs work that only reads the session's state. TimeoutError: a file system hangs."""
        return await asyncio.wait_for(
            self.do((Quota(("look", session), SESSION_LOOKS),), work, *args, **kwargs), LOOK_S
        )

    def _leave(self, quotas: tuple[Quota, ...], entered: list[_Usage]) -> None:
        for usage in entered:
            usage.leave()
        for quota in quotas:
            if (known := self._used.get(quota.owner)) is not None and known.idle:
                del self._used[quota.owner]

    def close(self) -> None:
        """Ends idle threads; stuck threads are not waited for."""
        self.pool.shutdown(wait=False, cancel_futures=True)


async def in_slot(
    slot: asyncio.Lock | asyncio.Semaphore, work: Work[T], left: Callable[[], None] = lambda: None
) -> T:
    """Runs work of which only few may run at a time, to leave the processor to other work.

    Work that takes longer than SLOT_S hangs and needs no processor: the slot is given on, and
    `left` is called.
    """
    working = None
    try:
        async with slot:
            working = asyncio.ensure_future(work)
            await asyncio.wait({working}, timeout=SLOT_S)
        left()
        return await working
    except asyncio.CancelledError:
        if working is None:
            work.close()
        else:
            working.cancel()
        raise
