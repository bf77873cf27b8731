"""Forks at the same time do not count on the same room (R5)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from holdfast.core.branch.preflight import Promise, Wish, beside, judge
from holdfast.core.checkpoint.preflight import Preflight

FOUND = Preflight((), (), 100, 1.0)
COUNTS = st.lists(st.integers(1, 16), max_size=8)


@given(COUNTS, st.integers(0, 40), st.integers(0, 4000), st.integers(0, 1000))
def test_r5_forks_at_the_same_time_have_room_together(
    counts: list[int], room: int, memory: int, free: int
) -> None:
    made = list[Promise]()
    for count in counts:
        wish = Wish(count, free=free, memory=memory, room=room)
        if judge(FOUND, beside(wish, made)).possible:
            made.append(Promise(count, FOUND.bytes * count, FOUND.bytes))
    assert sum(one.branches for one in made) <= room
    assert sum(one.memory for one in made) <= memory
    assert sum(one.disk for one in made) <= free


def test_r5_the_refusal_never_names_a_negative_amount() -> None:
    wish = Wish(1, free=1, memory=1, room=1)
    said = judge(FOUND, beside(wish, [Promise(2, 10, 10)])).blockers
    assert len(said) == 3 and not [one for one in said if "-" in one]
