from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.sealed.backoff import QUICK_S, SHARE, STEADY_S, Patience

FIRST, MOST = 0.05, 30.0


def tries(patience: Patience, seconds: float, hangs: float = 0.0) -> list[float]:
    """Return the times of attempts without success; each attempt takes this long."""
    now, made = 0.0, []
    while now < seconds:
        made.append(now)
        now += hangs
        now += patience.pause(now)
    return made


def test_a_second_is_noticed_at_once_and_a_day_costs_a_bounded_number_of_tries() -> None:
    made = tries(Patience(FIRST, MOST), 86400.0)
    assert made[1] == FIRST
    assert len([t for t in made if t < 60.0]) < 80
    assert len(made) < 3200


@given(st.floats(0.0, 1.0), st.integers(1, 400))
def test_a_pause_is_short_compared_to_the_outage(luck: float, count: int) -> None:
    patience, now = Patience(FIRST, MOST), 0.0
    for _ in range(count):
        pause = patience.pause(now, luck)
        assert pause <= 1.5 * min(MOST, max(QUICK_S, now * SHARE))
        now += max(pause, 0.01)


def test_a_connection_that_did_not_last_is_no_success() -> None:
    patience, now = Patience(FIRST, MOST), 0.0
    pauses = []
    for _ in range(10):
        pauses.append(patience.pause(now))
        now += pauses[-1]
        patience.reached(now)
        now += STEADY_S / 10
    assert pauses[-1] >= QUICK_S
    patience.reached(now)
    assert patience.pause(now + STEADY_S) == FIRST


def test_a_dial_that_hangs_is_no_connection() -> None:
    patience, now = Patience(FIRST, MOST), 0.0
    for _ in range(200):
        last = patience.pause(now)
        now += last + 2 * STEADY_S
    assert last == MOST
