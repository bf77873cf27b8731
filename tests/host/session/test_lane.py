"""The lane against a real keeper that refuses acts: sizes and signals do not wait for input."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.host.session.keeper_link import KeeperLink
from holdfast.host.session.lane import BARRIER, FULL_PAUSE_S, Lane
from holdfast.model.errors import Refused
from holdfast.model.limits import INPUT_QUEUE_ACTS
from holdfast.wire import keeper as wire
from tests.support.keeper import RAW, Link, Nursery, cpu_ns, stop

WAIT_S = 120.0
DEAF = ["sh", "-c", RAW + "sleep 1000"]  # reads no input


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path)
    yield made
    made.close()


class Host:
    """A lane on a real link, as in a session."""

    def __init__(self, link: KeeperLink) -> None:
        self.link = link
        self.lane = Lane(link)
        self.refusals = 0
        self.asked = asyncio.Event()  # the keeper has answered the query
        self.on_refusal: Callable[[], object] = lambda: None
        link.on_bell = self.lane.settle
        link.on_packet = self._packet

    def _packet(self, kind: int, packet: bytes) -> None:
        if kind == wire.STATE and wire.read_state(packet).tag == BARRIER:
            self.lane.answered(wire.read_state(packet))
            self.asked.set()
        elif kind == wire.REJECTED:
            self.refusals += 1
            self.lane.rejected(packet)
            if self.refusals == 1:
                self.on_refusal()

    def resize(self, cols: int, rows: int) -> asyncio.Future[int]:
        done = self.lane.submit(wire.RESIZE, wire.resize_body(cols, rows), 0, 0, want_done=True)
        assert done is not None
        return done

    def type(self, data: bytes, number: int) -> asyncio.Future[int]:
        done = self.lane.submit(wire.INPUT, data, 7, number, want_done=True)
        assert done is not None
        return done

    @property
    def size(self) -> tuple[int, int]:
        return self.link.ring.resized[1:]


async def claimed(nursery: Nursery) -> KeeperLink:
    nursery.term += 1
    return await KeeperLink.open(str(nursery.path("s")), nursery.term)


def filled(nursery: Nursery, acts: int = 0) -> Link:
    """Sends input as an earlier host, in that many pieces, which the program does not read."""
    earlier = nursery.run("s", DEAF)
    earlier.wait_for(b"READY")
    earlier.fill()
    for _ in range(acts - (earlier.sequence - earlier.ring.written)):
        earlier.type(b"x", flags=0)
    earlier.taken()
    return earlier


def test_sizes_keep_their_order_while_a_query_is_under_way(nursery: Nursery) -> None:
    filled(nursery).close()

    async def play() -> None:
        link = await claimed(nursery)
        stop(nursery.keepers["s"])  # the answer cannot come before both are in line
        host = Host(link)
        first, second = host.resize(100, 30), host.resize(90, 20)
        os.kill(nursery.keepers["s"], signal.SIGCONT)
        async with asyncio.timeout(WAIT_S):
            assert await first < await second
        assert host.size == (90, 20)
        link.dispose()

    asyncio.run(play())


def test_a_refused_size_goes_before_a_later_size_and_does_not_wait_for_input(
    nursery: Nursery,
) -> None:
    filled(nursery, INPUT_QUEUE_ACTS).close()

    async def play() -> None:
        link = await claimed(nursery)
        host = Host(link)
        await host.asked.wait()
        later: list[asyncio.Future[int]] = []
        host.on_refusal = lambda: later.append(host.resize(90, 20))
        typed, first = host.type(b"k", 1), host.resize(100, 30)
        async with asyncio.timeout(WAIT_S):
            took = await first
            assert took < await later[0]
        assert host.size == (90, 20)
        assert not typed.done(), "nobody reads"
        link.dispose()

    asyncio.run(play())


def test_a_full_keeper_is_not_queried_in_a_busy_loop(nursery: Nursery) -> None:
    filled(nursery, INPUT_QUEUE_ACTS).close()

    async def play() -> None:
        link = await claimed(nursery)
        host = Host(link)
        refused = asyncio.Event()
        host.on_refusal = refused.set
        typed = host.type(b"k", 1)
        keeper = nursery.keepers["s"]
        await asyncio.wait_for(refused.wait(), WAIT_S)
        span, before = 10 * FULL_PAUSE_S, cpu_ns(keeper)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(typed, span)
        assert 1 <= host.refusals <= 12
        assert cpu_ns(keeper) - before < 0.2 * span * 1e9
        link.dispose()

    asyncio.run(play())


def test_a3_input_refused_before_a_flush_is_gone_with_it(nursery: Nursery) -> None:
    """A seize also discards refused input of the old holder: it is not sent later."""
    filled(nursery, INPUT_QUEUE_ACTS).close()

    async def play() -> None:
        link = await claimed(nursery)
        host = Host(link)
        await host.asked.wait()
        old = host.type(b"old", 1)
        flushed = host.lane.submit(wire.FLUSH, b"", 0, 0, want_done=True)
        assert flushed is not None
        new = host.type(b"new", 2)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(Refused):
                await old
            assert await flushed < await new
        assert host.lane.acked(7) == 2
        link.dispose()

    asyncio.run(play())


def test_r2_acts_wait_for_the_last_holder(nursery: Nursery) -> None:
    nursery.run("s", DEAF).close()

    async def play() -> None:
        link = await claimed(nursery)
        host = Host(link)
        with host.lane.held():
            with host.lane.held():
                sized = host.resize(100, 30)
            assert not link.ring.accepted and host.lane.awaited and not sized.done()
        async with asyncio.timeout(WAIT_S):
            await sized
        assert host.size == (100, 30)
        link.dispose()

    asyncio.run(play())
