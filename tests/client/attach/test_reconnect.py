from __future__ import annotations

import time

import pytest

from holdfast.client.returning import Returning
from holdfast.core.patience import QUICK_S
from holdfast.model.limits import RECONNECT_FIRST_S, RECONNECT_MAX_S, REMOTE_AGAIN_MAX_S


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def away(again: Returning, clock: Clock, seconds: float) -> None:
    again.lost()
    end = clock.now + seconds
    while clock.now < end:
        clock.now = max(clock.now, again.at)
        again.tries()
        again.failed()


def test_the_host_of_this_machine_is_looked_for_every_second(clock: Clock) -> None:
    again = Returning(remote=False)
    again.lost()
    assert again.at == clock.now + RECONNECT_FIRST_S
    away(again, clock, 86400.0)
    assert again.at <= clock.now + RECONNECT_MAX_S
    again.reached()
    again.lost()
    assert again.at == clock.now + RECONNECT_FIRST_S


def test_another_machine_is_looked_for_with_patience_and_at_once_when_somebody_types(
    clock: Clock,
) -> None:
    again = Returning(remote=True)
    away(again, clock, 86400.0)
    assert clock.now + REMOTE_AGAIN_MAX_S / 2 <= again.at <= clock.now + REMOTE_AGAIN_MAX_S * 1.5
    again.typed()
    assert again.at == clock.now + QUICK_S
    clock.now += 5.0
    again.typed()
    assert again.at < clock.now


def test_a_machine_away_for_a_moment_is_not_spoken_of(clock: Clock) -> None:
    again = Returning(remote=True)
    assert not again.long
    again.lost()
    clock.now += 0.5
    assert not again.long
    clock.now += 1.0
    assert again.long
    again.reached()
    assert not again.long
