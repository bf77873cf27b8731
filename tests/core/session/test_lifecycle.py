"""The lifecycle table (S9): its rules hold for every state and event."""

from __future__ import annotations

import pytest

from holdfast.core import session

EVENTS = sorted({event for row in session.TABLE.values() for event in row})


@pytest.mark.parametrize("state", session.STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_s9_every_step_is_in_the_table_or_refused(state: str, event: str) -> None:
    if event in session.TABLE[state]:
        assert session.step(state, event) in session.STATES
    else:
        with pytest.raises(session.NotPossible) as refused:
            session.step(state, event)
        assert (refused.value.state, refused.value.event) == (state, event)


def test_s9_the_end_is_final() -> None:
    assert session.TABLE["reaped"] == {} and set(session.TABLE["ended"].values()) == {"reaped"}


def test_s9_every_state_can_be_reached_and_every_running_one_can_end() -> None:
    reached, todo = {"creating"}, ["creating"]
    while todo:
        for after in session.TABLE[todo.pop()].values():
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert reached == set(session.STATES)
    for state in session.STATES:
        if session.running(state):
            assert "ended" in session.TABLE[state].values(), state


def test_running_is_exactly_what_may_have_processes() -> None:
    assert {s for s in session.STATES if session.running(s)} == {
        "creating",
        "live",
        "detached",
        "halted",
        "fenced",
        "restoring",
    }


def test_unknown_states_and_events_are_refused() -> None:
    for state, event in (("nonsense", "exited"), ("live", "nonsense"), ("", "")):
        with pytest.raises(session.NotPossible):
            session.step(state, event)


def test_the_diagram_draws_every_step() -> None:
    drawn = session.diagram()
    assert all(
        f"{state} --> {after}: {event}" in drawn
        for state, row in session.TABLE.items()
        for event, after in row.items()
    )
