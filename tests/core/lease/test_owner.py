"""How a machine writes its term (R3); test_model.py follows every history."""

from __future__ import annotations

import json

from holdfast.core.lease import changes
from holdfast.core.lease.changes import Found, Self, Sights
from holdfast.core.lease.owner import Answer, Ask, Hold, Owner, State, Tick
from holdfast.core.lease.records import HELD, Lease, Machine, Stored, encode

KEY = "machine/a"


def written(effects: list[object]) -> float:
    """The term of the renewal that is sent."""
    [ask] = [one for one in effects if isinstance(one, Ask)]
    assert ask.commit is not None
    return float(json.loads(dict(ask.commit.puts)[KEY])["term_s"])


def test_r3_a_shorter_term_is_written_once_the_longer_deadlines_are_over() -> None:
    owner = Owner(State("a", 2, 10.0))
    owner.handle(Hold("s", 1), 100.0)
    found = (
        (KEY, Stored(encode(Machine(1, 7, 60.0)), 3)),
        ("session/s", Stored(encode(Lease(1, "a", HELD, True)), 2)),
    )
    terms = {101.0: written([*owner.handle(Answer(owner.state.number, found), 101.0)])}
    for revision, now in enumerate((102.0, 120.0, 160.9, 161.0, 170.0), 4):
        owner.handle(Answer(owner.state.number, (), revision), now - 0.1)
        terms[now] = written([*owner.handle(Tick(), max(now, owner.state.due))])
    assert terms == {101.0: 60, 102.0: 60, 120.0: 60, 160.9: 60, 161.0: 10, 170.0: 10}


def test_r3_no_change_of_a_session_lowers_the_term() -> None:
    mine = Stored(encode(Machine(2, 7, 60.0)), 3)
    found = Found(Stored(b"", 0), Stored(b"", 0), mine)
    for me in (Self("a", 2, 10.0, 0.05), Self("a", 3, 90.0, 0.05)):
        _, commit = changes.take("s", 0, found, me, Sights(), 0.0)
        assert json.loads(dict(commit.puts)[KEY])["term_s"] == max(60.0, me.term)
