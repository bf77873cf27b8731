"""T1, S4: the way through a relay, each hop x each fault x a second, a minute and a day, in a world with its own clock (testing/stage.py). docs/faults.md is the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from holdfast.testing.net import Link
from holdfast.testing.stage import Stage

SECOND, MINUTE, DAY = 1.0, 60.0, 86400.0
Act = Callable[[Stage], object]


class Fault(NamedTuple):
    begin: Act
    end: Act


def _link(stage: Stage, hop: str) -> Link:
    return stage.net.link(hop, "relay")


def _silent(hop: str, *directions: str) -> Fault:
    """`directions`: from which end nothing passes."""
    def begin(stage: Stage) -> None:
        for end in directions:
            _link(stage, hop).ways[end].close("silent")

    def end(stage: Stage) -> None:
        for one in directions:
            _link(stage, hop).ways[one].reopen("silent")

    return Fault(begin, end)


def _bad(hop: str, **how: float) -> Fault:
    def set_(stage: Stage, values: dict[str, float]) -> None:
        for way in _link(stage, hop).ways.values():
            for name, value in values.items():
                setattr(way, name, value)

    return Fault(lambda stage: set_(stage, how), lambda stage: set_(stage, {"latency_s": 0.01, "jitter_s": 0.002, "rate": 0.0, "loss": 0.0, "broken": 0.0}))


def _sleeps(name: str) -> Fault:
    def begin(stage: Stage) -> None:
        stage.net.asleep(name, True)
        stage.world.actors[name].sleep()

    def end(stage: Stage) -> None:
        stage.world.actors[name].wake()
        stage.net.asleep(name, False)

    return Fault(begin, end)


def _pauses(name: str) -> Fault:
    return Fault(lambda stage: stage.world.actors[name].pause(), lambda stage: stage.world.actors[name].go_on())


FAULTS: dict[str, Fault] = {
    "client killed": Fault(lambda stage: stage.client.actor.kill(), lambda stage: stage.client_again()),
    "client paused": _pauses("client"),
    "client asleep": _sleeps("client"),
    "relay killed": Fault(lambda stage: stage.kill_relay(), lambda stage: stage.relay_again()),
    "relay without power": Fault(lambda stage: stage.kill_relay(power=True), lambda stage: stage.relay_again()),
    "relay paused": _pauses("relay"),
    "host killed": Fault(lambda stage: stage.kill_host(), lambda stage: stage.host_again()),
    "host paused": _pauses("host"),
    "host asleep": _sleeps("host"),
    **{f"{hop}'s link {kind}": fault for hop in ("client", "host") for kind, fault in {
        "cut": Fault(lambda stage, hop=hop: _link(stage, hop).cut(), lambda stage, hop=hop: _link(stage, hop).mend()),  # type: ignore[misc]
        "half-open": _silent(hop, hop, "relay"),
        "half-open outward": _silent(hop, hop),
        "half-open inward": _silent(hop, "relay"),
        "slow": _bad(hop, latency_s=0.8, jitter_s=0.4, rate=1500.0),
        "lossy": _bad(hop, latency_s=0.05, jitter_s=0.1, loss=0.1, broken=0.004),
    }.items()},
}


def happens(stage: Stage, fault: str, lasts: float) -> None:
    stage.settles()
    FAULTS[fault].begin(stage)
    stage.world.after(0.5, lambda: None if stage.client.actor.dead else stage.type())
    stage.world.pass_(lasts)
    FAULTS[fault].end(stage)
    stage.settles()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("lasts", [SECOND, MINUTE])
def test_s4_short(fault: str, lasts: float) -> None:
    digests = set()
    for _ in range(2):
        with Stage(seed=len(fault)) as stage:
            happens(stage, fault, lasts)
            digests.add(stage.world.digest)
    assert len(digests) == 1, "the same seed gave another history"


@pytest.mark.parametrize("fault", FAULTS)
def test_s4_a_day(fault: str) -> None:
    with Stage(seed=len(fault), tick_s=10.0, prints_s=300.0) as stage:
        happens(stage, fault, DAY)
        print(fault, stage.net.dials)
