"""T1, S4: the way through a relay, each hop x each fault x a second, a minute and a day.

The world has its own clock (tests/support/simulation/simulated_relay.py). docs/reference/faults.md
is the table.

After each fault: all typed input was taken, once and in order; both ends show the same; the host is
registered; no state is left over; and no peer was dialled more often than the reconnect schedule
allows. The same seed gives the same history.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.client.remote import Line
from holdfast.core.sealed.backoff import Patience
from holdfast.core.sealed.tunnel import Tunnel
from holdfast.host.relays.uplink import Uplink
from tests.support.examples import examples
from tests.support.simulation.simulated_relay import Simulation
from tests.support.simulation.virtual_net import Link

SECOND, MINUTE, DAY = 1.0, 60.0, 86400.0
DIALS = {
    SECOND: 40,
    MINUTE: 80,
    DAY: 3300,
}  # of one side; even a second may be noticed only half a minute later
Act = Callable[[Simulation], object]


class Fault(NamedTuple):
    where: str
    begin: Act
    end: Act


def _link(stage: Simulation, hop: str) -> Link:
    return stage.net.link(hop, "relay")


def _silent(hop: str, *directions: str) -> Fault:
    """`directions`: the ends from which no data passes."""

    def begin(stage: Simulation) -> None:
        for end in directions:
            _link(stage, hop).ways[end].close("silent")

    def end(stage: Simulation) -> None:
        for one in directions:
            _link(stage, hop).ways[one].reopen("silent")

    return Fault(f"{hop}'s link", begin, end)


def _bad(hop: str, **how: float) -> Fault:
    def become(stage: Simulation, values: dict[str, float]) -> None:
        for way in _link(stage, hop).ways.values():
            for name, value in values.items():
                setattr(way, name, value)

    good = {"latency_s": 0.01, "jitter_s": 0.002, "rate": 0.0, "loss": 0.0, "broken": 0.0}
    return Fault(
        f"{hop}'s link", lambda stage: become(stage, how), lambda stage: become(stage, good)
    )


def _cut(hop: str) -> Fault:
    return Fault(
        f"{hop}'s link",
        lambda stage: _link(stage, hop).cut(),
        lambda stage: _link(stage, hop).mend(),
    )


def _forget(stage: Simulation, hop: str) -> None:
    _link(stage, hop).forget()


def _sleeps(name: str) -> Fault:
    def begin(stage: Simulation) -> None:
        stage.net.asleep(name, True)
        stage.world.actors[name].sleep()

    def end(stage: Simulation) -> None:
        stage.world.actors[name].wake()
        stage.net.asleep(name, False)

    return Fault(name, begin, end)


def _pauses(name: str) -> Fault:
    return Fault(
        name,
        lambda stage: stage.world.actors[name].pause(),
        lambda stage: stage.world.actors[name].go_on(),
    )


FAULTS: dict[str, Fault] = {
    "client killed": Fault(
        "client", lambda stage: stage.client.actor.kill(), Simulation.client_again
    ),
    "client paused": _pauses("client"),
    "client asleep": _sleeps("client"),
    "relay killed": Fault("relay", Simulation.kill_relay, Simulation.relay_again),
    "relay without power": Fault(
        "relay", partial(Simulation.kill_relay, power=True), Simulation.relay_again
    ),
    "relay paused": _pauses("relay"),
    "host killed": Fault("host", Simulation.kill_host, Simulation.host_again),
    "host's machine gone": Fault(
        "host", partial(Simulation.kill_host, power=True), Simulation.host_again
    ),
    "host paused": _pauses("host"),
    "host asleep": _sleeps("host"),
    **{
        f"{hop}'s link {kind}": fault
        for hop in ("client", "host")
        for kind, fault in {
            "cut": _cut(hop),
            "forgets": Fault(f"{hop}'s link", partial(_forget, hop=hop), lambda stage: None),
            "half-open": _silent(hop, hop, "relay"),
            "half-open outward": _silent(hop, hop),
            "half-open inward": _silent(hop, "relay"),
            "slow": _bad(hop, latency_s=0.8, jitter_s=0.4, rate=1500.0),
            "lossy": _bad(hop, latency_s=0.05, jitter_s=0.1, loss=0.1, broken=0.004),
        }.items()
    },
}
DAYS = (
    "client asleep",
    "relay killed",
    "relay without power",
    "relay paused",
)  # the others take too long for every day


def happens(stage: Simulation, fault: str, lasts: float) -> None:
    stage.settles()
    _, begin, end = FAULTS[fault]
    before = dict(stage.net.dials)
    begin(stage)
    stage.world.after(0.5, lambda: None if stage.client.actor.dead else stage.type())
    stage.world.pass_(lasts)
    end(stage)
    stage.settles()
    dials = {who: count - before.get(who, 0) for who, count in stage.net.dials.items()}
    assert max(dials.values()) <= DIALS[lasts], f"{dials} within {lasts} s"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("lasts", [SECOND, MINUTE], ids=["second", "minute"])
def test_s4_all_connections_return_by_themselves(fault: str, lasts: float) -> None:
    digests = set()
    for _ in range(2):
        with Simulation(seed=len(fault)) as stage:
            happens(stage, fault, lasts)
            digests.add(stage.world.digest)
    assert len(digests) == 1, "the same seed gave another history"


def a_day(fault: str, seed: int) -> None:
    with Simulation(
        seed, tick_s=10.0, prints_s=300.0
    ) as stage:  # the token expires in the first hour
        happens(stage, fault, DAY)


@pytest.mark.parametrize("fault", DAYS)
def test_s4_all_connections_return_after_a_day(fault: str) -> None:
    a_day(fault, seed=len(fault))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_s4_all_connections_return_after_any_day(fault: str, seed: int) -> None:
    a_day(fault, seed)


# ------------------------------------------------------------ several at once

Events = list[tuple[str, float, float]]  # which, when, for how long
schedules = st.lists(
    st.tuples(
        st.sampled_from(sorted(FAULTS)),
        st.floats(0.0, 40.0),
        st.sampled_from([0.05, 1.0, 7.0, 25.0, 60.0]),
    ),
    min_size=1,
    max_size=6,
)


def several(seed: int, schedule: Events, floods: bool) -> None:
    with Simulation(seed, prints_s=0.2 if floods else 30.0, prints=1500 if floods else 0) as stage:
        stage.settles()
        busy: dict[str, float] = {}
        begun = stage.world.now
        for name, at, lasts in sorted(schedule, key=lambda one: one[1]):
            where, begin, end = FAULTS[name]
            if busy.get(where, -1.0) >= at:  # one fault at a time in one place
                continue
            busy[where] = at + lasts
            stage.world.at(begun + at, partial(begin, stage))
            stage.world.at(begun + at + lasts, partial(end, stage))
        for second in range(0, 100, 5):
            stage.world.at(
                begun + second, lambda: None if stage.client.actor.dead else stage.type()
            )
        stage.world.pass_(max(busy.values()) + 1.0)
        stage.settles(within_s=600.0)


@settings(
    max_examples=examples(30),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.integers(0, 1 << 32), schedules, st.booleans())
def test_s4_several_faults_at_once(seed: int, schedule: Events, floods: bool) -> None:
    several(seed, schedule, floods)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=examples(3000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32), schedules, st.booleans())
def test_s4_several_faults_at_once_for_long(seed: int, schedule: Events, floods: bool) -> None:
    several(seed, schedule, floods)


# ------------------------------------------------------------ other effects of time


def test_s4_a_calendar_that_was_wrong_and_is_put_right_locks_no_machine_out() -> None:
    with Simulation(seed=5) as stage:
        stage.settles()
        stage.world.actors["host"].wall = 365 * DAY
        stage.kill_relay()
        stage.relay_again()
        stage.settles()
        stage.kill_host()
        stage.world.actors["host"].wall = 0.0
        stage.host_again()
        stage.settles()


def test_a_relay_that_lost_its_disk_is_dialled_with_patience_until_the_token_exists_again() -> None:
    with Simulation(seed=6, tick_s=10.0) as stage:
        stage.settles()
        stage.kill_relay()
        stage.relay_loses_all()
        stage.start_relay()
        stage.net.dials.clear()
        stage.world.pass_(3600.0)
        assert stage.state == "refused"
        assert max(stage.net.dials.values()) < 400
        stage.kill_relay()
        stage.make_token()
        stage.start_relay()
        stage.settles()


# ------------------------------------------------------------ that all this could fail


def fails(fault: str) -> bool:
    with Simulation(seed=4) as stage:
        try:
            happens(stage, fault, MINUTE)
        except AssertionError:
            return True
    return False


def test_the_simulation_notices_a_client_without_keepalive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Line, "_watch", lambda line, now: None)
    assert fails("client's link forgets")


def test_a_host_that_never_asks_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Uplink._watch
    monkeypatch.setattr(Uplink, "_watch", lambda uplink, ping_s: watch(uplink, DAY))
    assert fails("host's link forgets")


def test_the_simulation_notices_a_client_without_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patience, "pause", lambda patience, now, luck=0.5: 0.05)
    assert fails("relay killed")


def test_a_tunnel_that_gives_no_credit_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tunnel, "took", lambda tunnel, count=0: 0)
    with (
        Simulation(seed=4, prints_s=0.2, prints=1500) as stage,
        pytest.raises(AssertionError, match="not settled"),
    ):
        stage.world.pass_(120.0)
        stage.settles()


def test_a_world_gives_the_same_history_for_the_same_seed_only() -> None:
    digests = []
    for seed in (1, 1, 2):
        with Simulation(seed) as stage:
            stage.settles()
            digests.append(stage.world.digest)
    assert digests[0] == digests[1] != digests[2]
