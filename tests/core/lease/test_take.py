"""Who may take the next epoch of a session (R3)."""

from __future__ import annotations

import pytest

from holdfast.core.lease.changes import Denied, Found, Self, Sights, Wait, take
from holdfast.core.lease.records import HELD, RELEASED, Lease, Machine, Stored, encode

ME = Self("b", 1, 10.0, 0.05)


def found(state: str, rehomable: bool) -> Found:
    session = Stored(encode(Lease(7, "a", state, rehomable)), 5)
    return Found(session, Stored(encode(Machine(1, 1, 10.0, "a")), 4), Stored(b"", 0))


def test_r3_the_statement_that_a_machine_is_lost_counts_for_pinned_sessions_only() -> None:
    pinned, rehomable = found(HELD, False), found(HELD, True)
    with pytest.raises(Denied):
        take("s", 3, pinned, ME, Sights(), 0.0)
    epoch, commit = take("s", 99, pinned, ME, Sights(), 0.0, lost=True)
    assert epoch == 100 and ("session/s", 5) in commit.expect
    for lost in (False, True):
        with pytest.raises(Wait):
            take("s", 3, rehomable, ME, Sights(), 0.0, lost=lost)


@pytest.mark.parametrize("rehomable", [False, True])
def test_r3_a_released_session_needs_no_wait(rehomable: bool) -> None:
    assert take("s", 3, found(RELEASED, rehomable), ME, Sights(), 0.0)[0] == 8
