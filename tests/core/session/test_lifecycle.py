"""The lifecycle table (S9): the rules hold for every state and event."""

from __future__ import annotations

import pytest

from holdfast.core.session import lifecycle

EVENTS = sorted({event for row in lifecycle.TABLE.values() for event in row})


@pytest.mark.parametrize("state", lifecycle.STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_s9_every_step_is_in_the_table_or_refused(state: str, event: str) -> None:
    if event in lifecycle.TABLE[state]:
        assert lifecycle.step(state, event) in lifecycle.STATES
    else:
        with pytest.raises(lifecycle.NotPossible) as refused:
            lifecycle.step(state, event)
        assert (refused.value.state, refused.value.event) == (state, event)


def test_s9_the_end_is_final() -> None:
    """Only the next incarnation of the session follows an end."""
    assert lifecycle.TABLE["reaped"] == {}
    assert lifecycle.TABLE["ended"] == {
        "restore": "restoring",
        "interrupted": "restoring",
        "reaped": "reaped",
    }


def test_s9_every_state_can_be_reached_and_every_running_one_can_end() -> None:
    reached, todo = {"creating"}, ["creating"]
    while todo:
        for after in lifecycle.TABLE[todo.pop()].values():
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert reached == set(lifecycle.STATES)
    for state in lifecycle.STATES:
        if lifecycle.running(state):
            assert "ended" in lifecycle.TABLE[state].values(), state


@pytest.mark.parametrize("state", ["live", "detached", *lifecycle.STANDING])
def test_r2_every_session_with_programs_can_end_with_a_checkpoint(state: str) -> None:
    assert lifecycle.step(state, "checkpointed") == "checkpointed"


def test_running_states_are_exactly_those_that_may_have_processes() -> None:
    assert {s for s in lifecycle.STATES if lifecycle.running(s)} == {
        "creating",
        "live",
        "detached",
        "halted",
        "fenced",
        "restoring",
    }


def test_unknown_states_and_events_are_refused() -> None:
    for state, event in (("nonsense", "exited"), ("live", "nonsense"), ("", "")):
        with pytest.raises(lifecycle.NotPossible):
            lifecycle.step(state, event)


def test_the_diagram_draws_every_step() -> None:
    drawn = lifecycle.diagram()
    assert all(
        f"{state} --> {after}: {event}" in drawn
        for state, row in lifecycle.TABLE.items()
        for event, after in row.items()
    )
