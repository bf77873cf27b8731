"""Work that may never come back takes the threads of those it is done for, and nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.host import threads as module
from holdfast.host.threads import Share, Stuck, Threads, briefly

ANN, BOB = Share("ann", 2), Share("bob", 2)
GIVE_UP_S = 0.05


def scene(play: Callable[[Threads, threading.Event], Awaitable[None]], most: int = 8) -> None:
    threads, free = Threads("test", most), threading.Event()

    async def main() -> None:
        try:
            await asyncio.wait_for(play(threads, free), 60)
        finally:
            free.set()

    try:
        asyncio.run(main())
    finally:
        threads.close()


async def hang(threads: Threads, free: threading.Event, *shares: Share) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(threads.do(shares, free.wait, 60), GIVE_UP_S)


async def no_rooms(threads: Threads) -> None:
    while threads._rooms:
        await asyncio.sleep(0)


def test_it_gives_what_the_work_gives_or_raises() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        assert await threads.do((ANN,), divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.do((ANN,), divmod, 7, 0)
        await no_rooms(threads)

    scene(play)


def test_who_hangs_hangs_alone_and_is_told_at_once() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        await asyncio.gather(*(hang(threads, free, ANN) for _ in range(5)))
        with pytest.raises(Stuck):
            await threads.do((ANN,), str)
        assert await threads.do((BOB,), str) == ""
        free.set()
        await no_rooms(threads)
        assert await threads.do((ANN,), str) == "", "and when it answers at last all is as before"

    scene(play)


def test_who_waits_for_a_share_that_gets_stuck_is_told() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        hung = [asyncio.ensure_future(hang(threads, free, ANN)) for _ in range(ANN.most)]
        while "ann" not in threads._rooms or threads._rooms["ann"].free:
            await asyncio.sleep(0)
        with pytest.raises(Stuck):
            await threads.do((ANN,), str)
        await asyncio.gather(*hung)

    scene(play)


def test_a_share_in_a_share() -> None:
    """One operator's session that hangs leaves the operator's other sessions alone; all of an operator's leave the other operators alone."""

    async def play(threads: Threads, free: threading.Event) -> None:
        wide = Share("ann", 3)
        inside = [(Share(("ann", n), 2), wide) for n in range(3)]
        await asyncio.gather(*(hang(threads, free, *inside[0]) for _ in range(4)))
        assert await threads.do(inside[1], str) == ""
        await hang(threads, free, *inside[1])
        with pytest.raises(Stuck):
            await threads.do(inside[2], str)
        assert await threads.do((Share(("bob", 0), 2), BOB), str) == ""
        free.set()
        await no_rooms(threads)

    scene(play)


def test_many_wait_for_their_turn_and_none_is_lost() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        running, most, lock = 0, 0, threading.Lock()

        def work(n: int) -> int:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            with lock:
                running -= 1
            return n

        assert await asyncio.gather(*(threads.do((ANN,), work, n) for n in range(200))) == [
            *range(200)
        ]
        assert most <= ANN.most
        await no_rooms(threads)

    scene(play)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 6)), max_size=30))
def test_whatever_is_given_up_the_shares_come_back(acts: list[tuple[str, bool, int]]) -> None:
    """Work begun, given up before it begins, while it waits or while it runs, and freed at the end."""

    async def play(threads: Threads, free: threading.Event) -> None:
        tasks = []
        for whose, hangs, turns in acts:
            tasks.append(
                asyncio.ensure_future(
                    threads.do(
                        (Share(whose, 2), Share("all", 3)),
                        free.wait if hangs else lambda _: True,
                        60,
                    )
                )
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns % 2:
                tasks[len(tasks) // 2].cancel()
        free.set()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            assert done is True or isinstance(done, asyncio.CancelledError | Stuck)
        await no_rooms(threads)
        assert await threads.do((Share("a", 2), Share("all", 3)), str) == ""

    scene(play, 4)


def test_who_is_told_that_all_are_stuck_and_leaves_at_that_moment_gives_back_nothing() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        share = Share("ann", 1)
        first = asyncio.ensure_future(threads.do((share,), free.wait, 60))
        second = asyncio.ensure_future(threads.do((share,), str))
        while "ann" not in threads._rooms or not threads._rooms["ann"].waiting:
            await asyncio.sleep(0)
        threads._rooms["ann"].give_up()  # as by whoever waited for the first one
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        assert threads._rooms["ann"].free == 0, "the only thread is still at work"
        threads._rooms["ann"].given_up -= 1
        free.set()
        assert await first
        await no_rooms(threads)

    scene(play)


def test_nobody_waits_for_long_for_a_slot_that_somebody_hangs_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLOT_S", 0.01)

    async def play(threads: Threads, free: threading.Event) -> None:
        slot, over, left = asyncio.Lock(), asyncio.Event(), asyncio.Event()

        async def done() -> str:
            return "done"

        hangs = asyncio.ensure_future(briefly(slot, over.wait(), left.set))
        while not slot.locked():
            await asyncio.sleep(0)
        assert await briefly(slot, done()) == "done" and left.is_set() and not hangs.done()
        over.set()
        assert await hangs
        async with slot:
            waits = asyncio.ensure_future(briefly(slot, done()))
            await asyncio.sleep(0)
            waits.cancel()
            with suppress(asyncio.CancelledError):
                await waits

    scene(play)
