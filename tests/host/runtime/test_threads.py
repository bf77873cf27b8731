"""Work that may never return occupies only the threads of its own quota."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.host.runtime import threads as module
from holdfast.host.runtime.threads import Quota, Stuck, Threads, in_slot
from tests.support.examples import examples

ANN, BOB = Quota("ann", 2), Quota("bob", 2)
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


async def hang(threads: Threads, free: threading.Event, *quotas: Quota) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(threads.do(quotas, free.wait, 60), GIVE_UP_S)


async def all_given_back(threads: Threads) -> None:
    while threads._used:
        await asyncio.sleep(0)


def test_the_result_or_the_error_of_the_work_is_returned() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        assert await threads.do((ANN,), divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.do((ANN,), divmod, 7, 0)
        await all_given_back(threads)

    scene(play)


def test_hanging_work_blocks_only_its_own_quota_which_is_stuck_at_once() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        await asyncio.gather(*(hang(threads, free, ANN) for _ in range(5)))
        with pytest.raises(Stuck):
            await threads.do((ANN,), str)
        assert await threads.do((BOB,), str) == ""
        free.set()
        await all_given_back(threads)
        assert await threads.do((ANN,), str) == "", "and when it answers at last all is as before"

    scene(play)


def test_a_caller_that_waits_for_a_quota_learns_that_it_is_stuck() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        hung = [asyncio.ensure_future(hang(threads, free, ANN)) for _ in range(ANN.most)]
        while "ann" not in threads._used or threads._used["ann"].free:
            await asyncio.sleep(0)
        with pytest.raises(Stuck):
            await threads.do((ANN,), str)
        await asyncio.gather(*hung)

    scene(play)


def test_a_quota_within_a_quota() -> None:
    """A hanging session does not block the operator's other sessions.

    All hanging sessions of an operator do not block other operators.
    """

    async def play(threads: Threads, free: threading.Event) -> None:
        wide = Quota("ann", 3)
        inside = [(Quota(("ann", n), 2), wide) for n in range(3)]
        await asyncio.gather(*(hang(threads, free, *inside[0]) for _ in range(4)))
        assert await threads.do(inside[1], str) == ""
        await hang(threads, free, *inside[1])
        with pytest.raises(Stuck):
            await threads.do(inside[2], str)
        assert await threads.do((Quota(("bob", 0), 2), BOB), str) == ""
        free.set()
        await all_given_back(threads)

    scene(play)


def test_many_callers_wait_and_none_is_lost() -> None:
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
        await all_given_back(threads)

    scene(play)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 6)), max_size=30))
def test_cancelled_work_gives_its_threads_back(acts: list[tuple[str, bool, int]]) -> None:
    """Work is cancelled before it begins, while it waits or while it runs, and ends later."""

    async def play(threads: Threads, free: threading.Event) -> None:
        tasks = []
        for whose, hangs, turns in acts:
            tasks.append(
                asyncio.ensure_future(
                    threads.do(
                        (Quota(whose, 2), Quota("all", 3)),
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
        await all_given_back(threads)
        assert await threads.do((Quota("a", 2), Quota("all", 3)), str) == ""

    scene(play, 4)


def test_a_caller_cancelled_when_it_learns_of_stuck_threads_gives_nothing_back() -> None:
    async def play(threads: Threads, free: threading.Event) -> None:
        quota = Quota("ann", 1)
        first = asyncio.ensure_future(threads.do((quota,), free.wait, 60))
        second = asyncio.ensure_future(threads.do((quota,), str))
        while "ann" not in threads._used or not threads._used["ann"].waiting:
            await asyncio.sleep(0)
        threads._used["ann"].give_up()  # as the caller of the first call would
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        assert threads._used["ann"].free == 0, "the only thread is still at work"
        threads._used["ann"].given_up -= 1
        free.set()
        assert await first
        await all_given_back(threads)

    scene(play)


def test_hanging_work_gives_its_slot_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLOT_S", 0.01)

    async def play(threads: Threads, free: threading.Event) -> None:
        slot, over, left = asyncio.Lock(), asyncio.Event(), asyncio.Event()

        async def done() -> str:
            return "done"

        hangs = asyncio.ensure_future(in_slot(slot, over.wait(), left.set))
        while not slot.locked():
            await asyncio.sleep(0)
        assert await in_slot(slot, done()) == "done" and left.is_set() and not hangs.done()
        over.set()
        assert await hangs
        async with slot:
            waits = asyncio.ensure_future(in_slot(slot, done()))
            await asyncio.sleep(0)
            waits.cancel()
            with suppress(asyncio.CancelledError):
                await waits

    scene(play)
