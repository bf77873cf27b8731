"""Only a session whose programs run is forked (R5, A4, R3)."""

from __future__ import annotations

import pytest

from holdfast.core.branch.preflight import Wish, judge
from holdfast.core.checkpoint.preflight import Preflight
from holdfast.core.session import lifecycle


@pytest.mark.parametrize("state", lifecycle.STATES)
def test_r5_a_session_is_forked_only_while_its_programs_run(state: str) -> None:
    found = judge(Preflight((), (), 1, 1.0), Wish(1, free=10, memory=10, state=state))
    assert found.possible == (state in ("live", "detached"))
    assert found.possible or state in found.blockers[0]
