"""Rates: never more in any window than burst and refill, for any clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.people.rate import Bucket, take


@given(st.integers(1, 10), st.integers(1, 60), st.lists(st.floats(0, 30), min_size=1, max_size=60))
def test_never_more_than_burst_and_refill(count: int, seconds: int, steps: list[float]) -> None:
    bucket, now, taken = Bucket(count, seconds, 0.0), 0.0, list[float]()
    for step in steps:
        now += step
        if take([bucket], now) <= 0.0:
            taken.append(now)
    for i, start in enumerate(taken):
        for j in range(i, len(taken)):
            assert j - i + 1 <= count + (taken[j] - start) * count / seconds + 1e-6


@given(st.integers(1, 5), st.integers(1, 60))
def test_after_the_stated_wait_an_act_is_free(count: int, seconds: int) -> None:
    bucket = Bucket(count, seconds, 0.0)
    for _ in range(count):
        assert take([bucket], 0.0) <= 0.0
    wait = take([bucket], 0.0)
    assert wait == pytest.approx(seconds / count)
    assert take([bucket], wait + 1e-6) <= 0.0


def test_from_all_or_from_none() -> None:
    narrow, wide = Bucket(1, 60, 0.0), Bucket(2, 60, 0.0)
    assert take([narrow, wide], 0.0) <= 0.0
    for _ in range(5):
        assert (
            take([narrow, wide], 0.0) > 0.0
        )  # refused by the narrow rate: the wide rate keeps the second token
    assert take([wide], 0.0) <= 0.0 and take([wide], 0.0) > 0.0
    assert take([], 0.0) <= 0.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(1, 10, 1000.0)
    assert take([bucket], 1000.0) <= 0.0
    for now in (500.0, 505.0, 509.0):
        assert take([bucket], now) > 0.0
    assert take([bucket], 511.0) <= 0.0
    assert take([bucket], 1e12) <= 0.0 and take([bucket], 1e12) > 0.0
