"""All followers of a session share the reads of its processes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.session.graph import Graph
from holdfast.host.requests import follow_graph
from holdfast.host.requests.follow_graph import Looks


class Followed:
    """A session that counts its reads."""

    def __init__(self) -> None:
        self.reads = 0
        loop = asyncio.get_running_loop()
        self.session: Any = SimpleNamespace(
            id="s",
            loop=loop,
            ended=loop.create_future(),
            attention=self._attention,
            looked=asyncio.to_thread,
        )
        lineages = SimpleNamespace(
            looking=lambda session: frozenset(), seen=lambda *found, **how: None
        )
        self.ops: Any = SimpleNamespace(
            engine=SimpleNamespace(lineages=lineages, halter=SimpleNamespace(groups=None))
        )

    async def _attention(self) -> tuple[str, str, str]:
        return "idle", "", ""

    def look(self, groups: Any, session: Any, files: bool) -> Graph:
        self.reads += 1
        return Graph(0.0, "tree", ())


def test_a_hundred_followers_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        followed, looks = Followed(), Looks()
        monkeypatch.setattr(follow_graph, "of_session", followed.look)
        for rounds in range(1, 4):
            await asyncio.gather(*(looks.of(followed.ops, followed.session) for _ in range(100)))
            assert followed.reads == rounds
        assert not looks._next and len(looks._not_before) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_follower_that_cancels_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        followed, looks = Followed(), Looks()
        monkeypatch.setattr(follow_graph, "of_session", followed.look)
        first, second = (
            asyncio.create_task(looks.of(followed.ops, followed.session)) for _ in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).waits[0] == "idle" and first.cancelled() and followed.reads == 1

    asyncio.run(asyncio.wait_for(main(), 60))
