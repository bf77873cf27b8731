"""A viewer's pace is judged fairly: not by time in which the host itself was held up."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.screen.filter import ViewerFilter
from holdfast.host.session.keeper_link import KeeperLink
from holdfast.host.session.pace import EXCUSED, Pace
from holdfast.host.session.viewer import AFAR_SKIP_BYTES, Viewer
from holdfast.model.limits import PACE_BYTES, PACE_WINDOW_S
from tests.support.keeper import Nursery, until


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path)
    yield made
    made.close()


@dataclass
class Reader:
    """The part of a viewer that Pace uses; counts how often the viewer was judged."""

    taken: int = 0
    pace_mark: int = 0
    paces: bool = True
    lagging: bool = False
    judged: int = 0
    falls_behind: bool = False
    caught_up: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def check_catching_up(self, window_s: float) -> None:
        assert window_s == PACE_WINDOW_S
        self.caught_up += 1
        if not self.paces:
            self.woken.set()

    def check_pace(self) -> None:
        self.judged += 1
        self.woken.set()

    def pump(self) -> None:
        pass


def stand_still() -> None:
    """The host gets no processor for longer than a window."""
    select.select([], [], [], 2 * PACE_WINDOW_S)


@pytest.mark.parametrize("times", [1, EXCUSED, EXCUSED + 1])
def test_s6_a_late_host_excuses_its_viewers_a_few_times(nursery: Nursery, times: int) -> None:
    link = nursery.run(
        "s",
        ["sh", "-c", "head -c 100000 /dev/zero; exec sleep 1000"],
        ring=1 << 16,
        away_ms=600_000,
    )
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
            await asyncio.sleep(0)  # the window is over
            await asyncio.sleep(0)
        assert reader.judged == (times > EXCUSED)
        await asyncio.wait_for(reader.woken.wait(), 60)
        pace.close()
        made.dispose()

    asyncio.run(play())


def test_s6_a_viewer_that_falls_behind_is_checked_though_the_ring_has_room(
    nursery: Nursery,
) -> None:
    """The ring's pressure does not count then, and viewers that keep up are not checked."""
    link = nursery.run("s", ["sleep", "1000"], ring=1 << 16, away_ms=600_000)
    link.close()
    nursery.term += 1

    async def play() -> None:
        made = await KeeperLink.open(str(Path(nursery.directory, "s.keeper")), nursery.term)
        reader = Reader(paces=False)
        pace = Pace(made, [reader], lambda: 0)  # type: ignore[list-item]
        pace.look()
        assert pace._window is None
        reader.falls_behind = True
        pace.look()
        await asyncio.wait_for(reader.woken.wait(), 60)
        assert reader.caught_up == 1 and reader.judged == 0
        pace.close()
        made.dispose()

    asyncio.run(play())


@pytest.mark.parametrize(
    "moved, left, lags",
    [
        (0, AFAR_SKIP_BYTES + 1, True),
        (15_000, AFAR_SKIP_BYTES + 1, True),
        (20_000, AFAR_SKIP_BYTES + 1, False),
        (PACE_BYTES, 1 << 30, False),
        (0, AFAR_SKIP_BYTES, False),
        (200_000, 900_000, True),
        (200_000, 700_000, False),
    ],
)
def test_s6_a_viewer_lags_if_its_backlog_takes_longer_than_a_second(
    moved: int, left: int, lags: bool
) -> None:
    viewer = Viewer.__new__(Viewer)
    viewer.session = cast(
        Any, SimpleNamespace(ring=SimpleNamespace(head=moved + left), size=(80, 24))
    )
    viewer.conn = cast(Any, SimpleNamespace(unread=0))
    viewer.size, viewer.sane, viewer._live, viewer.lagging, viewer.closed, viewer.tag = (
        (80, 24),
        True,
        True,
        False,
        False,
        0,
    )
    viewer._filter, viewer.skip_bytes, viewer.offset, viewer.pace_mark = (
        ViewerFilter(),
        AFAR_SKIP_BYTES,
        moved,
        0,
    )
    viewer.check_catching_up(0.25)
    assert viewer.lagging is lags
