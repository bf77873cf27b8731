"""Answers with credit: a caller that reads slowly delays no other request of its connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.client.engine.wire import QUEUE_BYTES
from tests.support.installation import DEADLINE_S, Installation, installation

LINES = 700_000  # 5.6 MB of output: more than a request may queue, less than the ring
assert LINES * 8 > QUEUE_BYTES


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.ready("flood")
        made.ok("run", "flood", "--", f"seq -f %06.0f {LINES} >lines; cat lines; rm lines")
        yield made


def test_s4_a_slow_reader_delays_no_other_request(hf: Installation) -> None:
    async def work() -> None:
        async with holdfast.connect(operator="tester", home=str(hf.home)) as client:
            session = await client.sessions.get("flood")
            end = (await session.info()).output
            assert end is not None
            slow = [session.read(0) for _ in range(3)]
            begun = [await anext(reader) for reader in slow]
            assert all(chunk.offset == 0 for chunk in begun)
            for _ in range(3):  # the connection has room for all of these answers
                assert (await session.info()).name == "flood"
            await slow[0].aclose()  # a reader that leaves takes the connection from no other
            for reader, chunk in zip(slow[1:], begun[1:], strict=True):
                at = chunk.end
                async with contextlib.aclosing(reader):
                    async for more in reader:
                        assert (more.offset, more.gap) == (at, 0)
                        at = more.end
                assert at == end.end

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))
