"""Threads for work that may never come back: a file system, a parser, a program's memory that does not answer. Who hangs hangs alone.

asyncio's own few threads are everybody's: six looks at a dead mount would take all of them, and nothing on the host would go on that needs one. Here each piece of work is
somebody's (a session's, an operator's), who has a share of the threads. A share is given back when the work is done, not when somebody has stopped to wait for it. A share
of which every thread was given up by those who waited is `Stuck`: it is said at once, to whoever comes next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
THREADS: Final = (
    1024  # most of them never start; those that hang, in however many sessions, are never all
)
SESSION_THREADS: Final = 4  # of those, for one session: what its acts need
SESSION_LOOKS: Final = 2  # and for those who look at it
LOOK_S: Final = 10.0  # until a look is given up
SLOT_S: Final = 1.0  # until others do not wait for it any more


_at_work: set[Future[Any]] = set()


class Pool(ThreadPoolExecutor):
    """One whose threads are known to be at work, or not: a host can leave one behind, but must know it then (`at_work`)."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        _at_work.add(future)
        future.add_done_callback(_at_work.discard)
        return future


def at_work() -> bool:
    return any(one.running() for one in (*_at_work,))


class Share(NamedTuple):
    whose: Hashable
    most: int  # threads at a time


class Stuck(TimeoutError):
    """All threads of a share still do what others gave up to wait for."""


class _Room:
    """What is left of a share."""

    def __init__(self, most: int) -> None:
        self.most = self.free = most
        self.given_up = 0
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
                self.leave()  # it was given a thread, and does not come any more
            raise

    def leave(self) -> None:
        """Whoever waits longest goes on with it."""
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
    """It belongs to the loop that calls it."""

    def __init__(self, name: str, most: int = THREADS) -> None:
        self.pool = Pool(most, name)
        self._rooms: dict[Hashable, _Room] = {}

    async def do(
        self, shares: tuple[Share, ...], work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What it gives, or raises. The narrowest share comes first: who waits in it takes nothing from the wider ones."""
        rooms = list[_Room]()
        try:
            for share in shares:
                room = self._rooms.setdefault(share.whose, _Room(share.most))
                await room.enter()
                rooms.append(room)
            working = self.pool.submit(work, *args, **kwargs)
        except BaseException:
            self._leave(shares, rooms)
            raise
        loop, late = asyncio.get_running_loop(), False

        def over(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(back)

        def back() -> None:
            for room in rooms if late else ():
                room.given_up -= 1
            self._leave(shares, rooms)

        working.add_done_callback(over)
        try:
            return await asyncio.wrap_future(working)
        finally:
            if not working.done():
                late = True
                for room in rooms:
                    room.give_up()

    async def of(
        self, session: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.do((Share(session, SESSION_THREADS),), work, *args, **kwargs)

    async def looked(
        self, session: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """For what only wants to know. TimeoutError: something that the session uses does not answer."""
        return await asyncio.wait_for(
            self.do((Share(("look", session), SESSION_LOOKS),), work, *args, **kwargs), LOOK_S
        )

    def _leave(self, shares: tuple[Share, ...], rooms: list[_Room]) -> None:
        for room in rooms:
            room.leave()
        for share in shares:
            if (known := self._rooms.get(share.whose)) is not None and known.idle:
                del self._rooms[share.whose]

    def close(self) -> None:
        """Threads that are stuck are not waited for."""
        self.pool.shutdown(wait=False, cancel_futures=True)


async def briefly(
    slot: asyncio.Lock | asyncio.Semaphore,
    work: Coroutine[Any, Any, T],
    left: Callable[[], None] = lambda: None,
) -> T:
    """What only one or few do at a time, to leave others the processor: who takes longer than SLOT_S hangs, and needs none. `left`: others can go on."""
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
