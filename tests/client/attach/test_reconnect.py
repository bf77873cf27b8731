from __future__ import annotations

import pytest

from holdfast.client.attach.reconnect import Reconnect
from holdfast.core.sealed.backoff import QUICK_S
from holdfast.model.limits import RECONNECT_FIRST_S, RECONNECT_MAX_S, REMOTE_AGAIN_MAX_S


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def away(again: Reconnect, clock: Clock, seconds: float) -> None:
    again.lost(clock.now)
    end = clock.now + seconds
    while clock.now < end:
        clock.now = max(clock.now, again.at)
        again.tries(clock.now)
        again.failed(clock.now)


def test_the_host_of_this_machine_is_looked_for_every_second(clock: Clock) -> None:
    again = Reconnect(remote=False)
    again.lost(clock.now)
    assert again.at == clock.now + RECONNECT_FIRST_S
    away(again, clock, 86400.0)
    assert again.at <= clock.now + RECONNECT_MAX_S
    again.reached(clock.now)
    again.lost(clock.now)
    assert again.at == clock.now + RECONNECT_FIRST_S


def test_another_machine_is_dialled_with_backoff_and_at_once_when_the_user_types(
    clock: Clock,
) -> None:
    again = Reconnect(remote=True)
    away(again, clock, 86400.0)
    assert clock.now + REMOTE_AGAIN_MAX_S / 2 <= again.at <= clock.now + REMOTE_AGAIN_MAX_S * 1.5
    again.typed()
    assert again.at == clock.now + QUICK_S
    clock.now += 5.0
    again.typed()
    assert again.at < clock.now


def test_a_machine_away_for_a_moment_is_not_spoken_of(clock: Clock) -> None:
    again = Reconnect(remote=True)
    assert not again.long(clock.now)
    again.lost(clock.now)
    clock.now += 0.5
    assert not again.long(clock.now)
    clock.now += 1.0
    assert again.long(clock.now)
    again.reached(clock.now)
    assert not again.long(clock.now)
