"""The screen of a session follows the ring (S4, S5)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.host.terminal import view as views
from holdfast.host.terminal.screen import Screen
from holdfast.host.terminal.view import View
from holdfast.keeper import ring
from holdfast.wire import snapshot
from holdfast.wire.ring import RingReader
from tests.support.examples import examples

DEADLINE_S = 60.0


class Held(ThreadPoolExecutor):
    """A pool whose jobs wait until the test opens it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.began = threading.Event()
        self.open = threading.Event()

    def submit(self, job: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        def later() -> Any:
            self.began.set()
            assert self.open.wait(DEADLINE_S)
            return job(*args, **more)

        return super().submit(later)


class Watched:
    """A screen over a ring that the test fills; its first snapshot is held in the pool."""

    def __init__(self) -> None:
        self.fd = ring.create(1 << 16, 0, b"", 0, False, 80, 24)
        self.source, self.sink = os.pipe()
        self.snapshot, self.pool = os.memfd_create("snapshot"), Held()
        self._keeper = ring.Ring(self.fd, 10.0)

    def prints(self, data: bytes) -> None:
        os.write(self.sink, data)
        self._keeper.read_from(self.source, len(data))

    def close(self) -> None:
        self.pool.open.set()
        self.pool.shutdown()
        for used in (self.fd, self.source, self.sink, self.snapshot):
            os.close(used)

    async def in_snapshot(self) -> View:
        """A view that is taking a snapshot."""
        view = View(RingReader(self.fd), self.snapshot, self.pool)
        assert isinstance(view.screen, Screen)
        self.prints(b"first")
        view.poke(urgent=True)
        assert await asyncio.to_thread(self.pool.began.wait, DEADLINE_S), "no snapshot"
        return view


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(views, "SNAPSHOT_QUIET_S", 0.0)
    made = Watched()
    yield made
    made.close()


def test_s4_output_during_a_snapshot_reaches_the_screen(watched: Watched) -> None:
    """No later output is needed: a program may wait for the answer to a query in this output."""

    async def scenario() -> bytes:
        view = await watched.in_snapshot()
        answer = asyncio.get_running_loop().create_future()
        view.on_reply = lambda offset, data: answer.set_result(data)
        watched.prints(b"\x1b[6n")
        view.poke(urgent=True)
        await asyncio.sleep(0)  # lets the feeding of this output begin, and meet the snapshot
        watched.pool.open.set()
        found: bytes = await asyncio.wait_for(answer, DEADLINE_S)
        await view.close()
        return found

    assert asyncio.run(scenario()) == b"\x1b[1;6R"


def test_s4_a_closed_screen_touches_the_ring_no_more(watched: Watched) -> None:
    async def scenario() -> list[str]:
        view = await watched.in_snapshot()
        progress = list[str]()
        watched.prints(b"more")
        view.poke(urgent=True)  # begins after `close`, and waits for the snapshot behind it
        watched.pool.open.set()
        await view.close()
        view.on_progress = lambda: progress.append("after the end")
        await view._tasks.wait(DEADLINE_S)
        return progress

    assert asyncio.run(scenario()) == []


class Stepped(Executor):
    """A pool whose jobs run when the test says so: a job begins at a step and ends at the next."""

    def __init__(self) -> None:
        self.jobs = deque[tuple[Future[Any], Callable[[], Any]]]()

    def submit(self, job: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        future = Future[Any]()
        self.jobs.append((future, lambda: job(*args, **more)))
        return future

    def step(self) -> None:
        if not self.jobs:
            return
        future, job = self.jobs[0]
        if future.running():
            self.jobs.popleft()
            try:
                future.set_result(job())
            except OSError as error:
                future.set_exception(error)
        elif not future.set_running_or_notify_cancel():
            self.jobs.popleft()


class Schedule:
    """A view whose tasks meet in the order that the test chooses."""

    def __init__(self, watched: Watched, failing: int) -> None:
        self.watched, self.pool, self.asked = watched, Stepped(), 0
        self.answers = list[bytes]()
        self.looks = list[asyncio.Task[Any]]()
        self.view = View(RingReader(watched.fd), watched.snapshot, self.pool)
        assert isinstance(self.view.screen, Screen)
        self.view.on_reply = lambda offset, data: self.answers.append(data)
        self._fails = failing
        store = snapshot.store

        def failing_store(fd: int, offset: int, data: bytes) -> None:
            self._fails -= 1
            if self._fails == 0:
                raise OSError("no memory for a snapshot")
            store(fd, offset, data)

        self.store = failing_store

    def query(self) -> None:
        self.asked += 1
        self.watched.prints(b"\x1b[5n")
        self.view.poke(urgent=True)

    def text(self) -> None:
        self.watched.prints(b"text " * 40)
        self.view.poke()

    def look(self) -> None:
        self.looks.append(asyncio.ensure_future(self.view.look(lambda screen: None)))

    def quiet(self) -> None:
        self.view._became_quiet()

    def step(self) -> None:
        self.pool.step()

    async def settle(self) -> None:
        """Let all that was begun come to its end. No output follows."""
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while len(self.answers) < self.asked and asyncio.get_running_loop().time() < end:
            self.pool.step()
            await asyncio.sleep(0)
            busy = self.view._tasks._tasks or any(not look.done() for look in self.looks)
            if not busy and self.view._timer is None and not self.pool.jobs:
                break  # no task is left that could answer


MOVES = ("query", "text", "look", "quiet", "step", "turn")


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(MOVES), min_size=4, max_size=30), st.integers(0, 3))
@example(["text", "quiet", "turn", "query", "turn"], 0)  # a snapshot holds the screen
@example(["text", "look", "turn", "query", "turn"], 0)
@example(["text", "query", "text", "text", "turn", "query"], 1)  # a snapshot fails
def test_s6_a_query_that_was_seen_is_answered_in_every_schedule(
    moves: list[str], failing: int
) -> None:
    """Any task may hold the screen when the query comes, and a snapshot may fail."""

    async def scenario(watched: Watched) -> tuple[int, int]:
        schedule = Schedule(watched, failing)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(views, "INLINE_BYTES", 100)
            patch.setattr(views, "VIEW_DELAY_S", 0.0)
            patch.setattr(views, "SNAPSHOT_QUIET_S", 3600.0)
            patch.setattr(snapshot, "store", schedule.store)
            schedule.view._every = 500
            for move in moves:
                if move == "turn":
                    await asyncio.sleep(0)
                else:
                    getattr(schedule, move)()
            await schedule.settle()
            closing = asyncio.ensure_future(schedule.view.close())
            while not closing.done():
                schedule.pool.step()
                await asyncio.sleep(0)
            await asyncio.gather(*schedule.looks, return_exceptions=True)
        return len(schedule.answers), schedule.asked

    watched = Watched()
    try:
        answered, asked = asyncio.run(scenario(watched))
    finally:
        watched.close()
    assert answered == asked
