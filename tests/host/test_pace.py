"""Who keeps up is judged by what it could have done: not by the time in which the host itself stood still."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.keeper.harness import Nursery, until

from holdfast.host.keeperlink import KeeperLink
from holdfast.host.pace import EXCUSED, Pace
from holdfast.model.limits import PACE_WINDOW_S


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path)
    yield made
    made.close()


@dataclass
class Reader:
    """A viewer as far as its pace is looked at; how often it was judged."""

    taken: int = 0
    pace_mark: int = 0
    paces: bool = True
    lagging: bool = False
    judged: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def check_pace(self) -> None:
        self.judged += 1
        self.woken.set()

    def pump(self) -> None:
        pass


def stand_still() -> None:
    """The host gets no processor for longer than a window."""
    select.select([], [], [], 2 * PACE_WINDOW_S)


@pytest.mark.parametrize("times", [1, EXCUSED, EXCUSED + 1])
def test_s6_a_host_that_was_held_up_blames_nobody_for_it_but_not_for_ever(nursery: Nursery, times: int) -> None:
    link = nursery.run("s", ["sh", "-c", "head -c 100000 /dev/zero; exec sleep 1000"], ring=1 << 16, away_ms=600_000)
    until(lambda: link.ring.head - link.ring.start >= 1 << 15, "the ring to be half full")
    link.close()
    nursery.term += 1

    async def play() -> None:
        made = await KeeperLink.open(str(Path(nursery.directory, "s.keeper")), nursery.term)
        reader = Reader()
        pace = Pace(made, [reader], lambda: 0)  # type: ignore[list-item]
        pace.look()
        for _ in range(times):
            assert reader.judged == 0
            stand_still()
            await asyncio.sleep(0)              # the window is over
            await asyncio.sleep(0)
        assert reader.judged == (times > EXCUSED)
        await asyncio.wait_for(reader.woken.wait(), 60)
        pace.close()
        made.dispose()

    asyncio.run(play())
