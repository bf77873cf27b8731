"""T3: a machine that was asleep is noticed by its clocks, in all circumstances."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.transport.asleep import NOTICED_S, Asleep


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)), max_size=20))
def test_t3_sleep_is_told_once_and_time_awake_never(steps: list[tuple[float, float]]) -> None:
    awake, slept = 1000.0, 0.0
    watch = Asleep(lambda: awake + slept, lambda: awake)
    for up, down in steps:
        awake, slept = awake + up, slept + down
        assert watch.since() == (down > NOTICED_S) or abs(down - NOTICED_S) < 1e-6
        assert not watch.since()


def test_t3_the_clocks_of_this_machine_agree() -> None:
    watch = Asleep()
    assert not watch.since()
