"""No process wakes up while the session is idle."""

from __future__ import annotations

import select

import pytest

from tests.support.keeper import Nursery, state_of, until
from tests.support.kernel import switches


@pytest.mark.alone
def test_idle_keepers_and_the_nursery_do_not_wake_up(nursery: Nursery) -> None:
    pids = [nursery.spawn(f"s{n}", ["sleep", "600"])[2] for n in range(5)]
    links = [nursery.link(f"s{n}") for n in range(5)]
    for link in links:
        link.type(b"x")
    for link in links:
        link.wait_for(b"x")  # the terminal's echo: after that, no input is under way
    watched = [*pids, nursery.process.pid]

    def at_rest() -> bool:
        """Whether all woken processes sleep again. A process that never sleeps fails the test."""
        before = [switches(pid) for pid in watched]
        select.select([], [], [], 0.2)
        return [switches(pid) for pid in watched] == before and all(
            state_of(pid) == "S" for pid in watched
        )

    until(at_rest, "all to be at rest")
    before = [switches(pid) for pid in watched]
    select.select([], [], [], 1.0)  # time itself is tested
    assert [switches(pid) for pid in watched] == before
