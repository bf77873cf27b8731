"""Nothing wakes up while nothing happens."""

from __future__ import annotations

import select

from tests.keeper.harness import Nursery, state_of, until


def switches(pid: int) -> int:
    with open(f"/proc/{pid}/status") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))


def test_idle_keepers_and_the_nursery_do_not_wake_up(nursery: Nursery) -> None:
    pids = [nursery.spawn(f"s{n}", ["sleep", "600"])[2] for n in range(5)]
    links = [nursery.link(f"s{n}") for n in range(5)]
    for link in links:
        link.type(b"x")
    for link in links:
        link.wait_for(b"x")  # the terminal's echo: after that, nothing is under way
    watched = [*pids, nursery.process.pid]

    def at_rest() -> bool:
        """Those who were woken sleep again. Who never does is not let through."""
        before = [switches(pid) for pid in watched]
        select.select([], [], [], 0.2)
        return [switches(pid) for pid in watched] == before and all(
            state_of(pid) == "S" for pid in watched
        )

    until(at_rest, "all to be at rest")
    before = [switches(pid) for pid in watched]
    select.select([], [], [], 1.0)  # time itself is what is tested
    assert [switches(pid) for pid in watched] == before
