"""A drain saves as many sessions as fit, and every session has a result (R9)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.reaper.drain import (
    CANCELLED,
    NO_TIME,
    Cancelled,
    Candidate,
    Done,
    Drain,
    Effect,
    Examined,
    Save,
    Stop,
    Tick,
)

ROOM = 1 << 40


def begun(drain: Drain, *candidates: Candidate, free: int = ROOM, now: float = 0) -> list[Effect]:
    return drain.handle(Examined(candidates, free), now)


def test_r9_with_time_enough_the_biggest_goes_first() -> None:
    drain = Drain(100, 2)
    small, big, middle = Candidate("s", 1, 1), Candidate("b", 9, 9), Candidate("m", 5, 5)
    assert begun(drain, small, big, middle) == [Save("b"), Save("m")]
    assert drain.handle(Done("m", "", ROOM), 5) == [Save("s")]


def test_r9_with_too_little_time_the_quickest_go_first() -> None:
    drain = Drain(6, 1)
    assert begun(drain, Candidate("b", 9, 9), Candidate("s", 1, 1), Candidate("m", 5, 5)) == [
        Save("s")
    ]
    assert drain.handle(Done("s", "", ROOM), 1) == [Save("m")]
    assert drain.handle(Done("m", "", ROOM), 5.5) == [Save("b")], "the last hope"
    assert drain.handle(Tick(), 6) == [Stop("b")]
    drain.handle(Done("b", "stopped", ROOM), 6)
    assert drain.finished and drain.results == {"s": "", "m": "", "b": NO_TIME}


def test_r9_saves_at_the_same_time_fit_on_the_disk_together() -> None:
    drain = Drain(100, 2)
    assert begun(drain, Candidate("a", 60, 1), Candidate("b", 60, 1), free=100) == [Save("a")]
    assert drain.handle(Done("a", "", 90), 1) == [Save("b")]


def test_r9_a_cancelled_drain_stops_saves_and_begins_none() -> None:
    drain = Drain(100, 1)
    begun(drain, Candidate("a", 1, 1), Candidate("b", 1, 1))
    assert drain.handle(Cancelled(), 1) == [Stop("a")]
    assert drain.handle(Done("a", "stopped", ROOM), 2) == [] and drain.finished
    assert drain.results == {"a": CANCELLED, "b": CANCELLED}


@given(
    st.lists(
        st.builds(Candidate, st.integers(0, 99).map(str), st.integers(0, 100), st.floats(0, 20)),
        max_size=12,
        unique_by=lambda one: one.id,
    ),
    st.integers(0, 300),
    st.integers(1, 4),
    st.floats(0, 60),
    st.data(),
)
def test_r9_every_session_has_one_result(
    candidates: list[Candidate], free: int, parallel: int, notice: float, data: st.DataObject
) -> None:
    drain, now, saving = Drain(notice, parallel), 0.0, set[str]()
    begins = [one.session for one in begun(drain, *candidates, free=free)]
    begun_once = set[str]()
    for _ in range(10 * len(candidates) + 1):
        assert not begun_once & {*begins}, "it was saved twice"
        begun_once |= {*begins}
        saving |= {*begins}
        assert len(saving) <= parallel
        if drain.finished:
            break
        now += data.draw(st.floats(0, 10))
        ends: bool = data.draw(st.booleans())
        if saving and ends:
            one: str = data.draw(st.sampled_from(sorted(saving)))
            saving.discard(one)
            event: Done | Tick = Done(one, data.draw(st.sampled_from(("", "it failed"))), free)
        else:
            event = Tick()
        effects = drain.handle(event, now)
        begins = [effect.session for effect in effects if isinstance(effect, Save)]
        assert not begins or now < notice, "a save began after the notice"
    else:
        now = notice + 1
        drain.handle(Tick(), now)
        for one in sorted(saving):
            drain.handle(Done(one, "it was stopped", free), now)
    assert drain.finished
    assert drain.results.keys() == {one.id for one in candidates}
