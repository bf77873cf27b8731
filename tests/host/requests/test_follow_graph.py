"""However many follow a session, it is looked at once for all of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.graph import Graph
from holdfast.host import following
from holdfast.host.following import Looks


class Followed:
    """A session that is read one by one, and says how often."""

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
        kin = SimpleNamespace(looking=lambda session: frozenset(), seen=lambda *found, **how: None)
        self.ops: Any = SimpleNamespace(
            engine=SimpleNamespace(kin=kin, halter=SimpleNamespace(groups=None))
        )

    async def _attention(self) -> tuple[str, str, str]:
        return "idle", "", ""

    def look(self, groups: Any, session: Any, files: bool) -> Graph:
        self.reads += 1
        return Graph(0.0, "tree", ())


def test_a_hundred_followers_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        followed, looks = Followed(), Looks()
        monkeypatch.setattr(following, "of_session", followed.look)
        for rounds in range(1, 4):
            await asyncio.gather(*(looks.of(followed.ops, followed.session) for _ in range(100)))
            assert followed.reads == rounds
        assert not looks._next and len(looks._not_before) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_gives_up_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        followed, looks = Followed(), Looks()
        monkeypatch.setattr(following, "of_session", followed.look)
        first, second = (
            asyncio.create_task(looks.of(followed.ops, followed.session)) for _ in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).waits[0] == "idle" and first.cancelled() and followed.reads == 1

    asyncio.run(asyncio.wait_for(main(), 60))
