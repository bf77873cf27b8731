"""A stopped person keeps the acts of safety; a stopped agent loses them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.contract.table import OPERATIONS
from holdfast.core.session.stopping import SAFETY_ACTS, refused

ACTS = st.sampled_from(sorted(one.name for one in OPERATIONS.values() if one.act))
NAMES = st.sampled_from(["ann", "bob", "bot"])
KINDS = st.sampled_from(["human", "agent", "service"])


@given(ACTS, NAMES, KINDS, st.none() | NAMES)
def test_a4_a_stop_takes_every_act_but_the_safety_acts_of_a_person(
    act: str, operator: str, kind: str, stopped_by: str | None
) -> None:
    stopped = stopped_by not in (None, operator)
    assert refused(act, operator, kind, stopped_by) is (
        stopped and (kind != "human" or act not in SAFETY_ACTS)
    )


@given(NAMES, st.none() | NAMES)
def test_a4_no_operator_can_take_seize_and_halt_from_a_person(
    operator: str, stopped_by: str | None
) -> None:
    assert not any(refused(act, operator, "human", stopped_by) for act in ("seize", "halt"))
    assert {"seize", "halt"} == SAFETY_ACTS <= OPERATIONS.keys()
