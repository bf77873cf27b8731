"""The order of continuation, and the groups of sessions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session import halt
from holdfast.core.session.halt import Member, all_stopped, group_of, member, says, to_continue

STATUS = """Name:\tsh (x)
State:\tT (stopped)
PPid:\t7
NSpid:\t20\t2
NSpgid:\t21\t2
NSsid:\t22\t2
ShdPnd:\t0000000000040000
SigIgn:\t0000000000200000
"""


def test_a_status_is_read() -> None:
    assert member(20, STATUS) == Member(20, 7, "T", 1 << 18, (20, 2), 21, 22, 1 << 21)
    for broken in (
        "",
        "State:\t\nPPid:\t1\nShdPnd:\t0\nSigIgn:\t0\n",
        STATUS.replace("PPid:\t7", "PPid:\tx"),
    ):
        with pytest.raises(ValueError):
            member(20, broken)


def test_a4_a_process_stopped_before_is_marked_with_a_signal_it_does_not_ignore() -> None:
    assert [Member(1, 0, "T", 0, ignored=i).mark for i in (0, 1 << 21, 3 << 20, 7 << 19)] == [
        22,
        21,
        20,
        0,
    ]
    marked = Member(1, 0, "T", 1 << 21)
    assert (
        marked.stopped_before
        and not Member(1, 0, "T", 1 << 18).stopped_before
        and not Member(1, 0, "S", 1 << 21).stopped_before
    )
    assert to_continue([marked, Member(2, 1, "T", 0), Member(3, 1, "Z", 0)]) == [2]


def test_a4_a_process_that_stopped_before_its_first_step_does_not_run() -> None:
    assert (
        Member(1, 0, "D", 0).running
        and not Member(1, 0, "D", 1 << 18).running
        and Member(1, 0, "R", 1 << 18).running
    )
    assert (
        not all_stopped([])
        and not all_stopped([Member(1, 0, "Z", 0)])
        and not all_stopped([Member(1, 0, "T", 0), Member(2, 0, "S", 0)])
    )
    assert all_stopped([Member(1, 0, "T", 0), Member(2, 1, "Z", 0), Member(3, 1, "t", 0)])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30))
def test_a4_children_are_continued_before_their_parents(parents: list[int]) -> None:
    """Also for facts that form no tree, because processes changed during the scan."""
    members = [Member(pid, parent, "T", 0) for pid, parent in enumerate(parents, 1)]
    order = to_continue(members)
    assert sorted(order) == [one.pid for one in members]
    by_pid = {one.pid: one for one in members}
    for one in members:
        above, seen = one.parent, {one.pid}
        while above in by_pid and above not in seen:
            seen.add(above)
            above = by_pid[above].parent
        tree = above not in seen
        if tree and one.parent in by_pid:
            assert order.index(one.pid) < order.index(one.parent)


@pytest.mark.parametrize(
    "text, found",
    [
        ("9:name=systemd:/\n0::/holdfast-1/abc\n", "/holdfast-1/abc"),
        ("0::/user.slice/x/holdfast-1/abc/made/below\n", "/user.slice/x/holdfast-1/abc"),
        ("0::/holdfast-2/abc\n", None),
        ("0::/holdfast-1/abcd\n", None),
        ("0::/\n", None),
        ("", None),
        ("1:cpu:/holdfast-1/abc\n", None),
    ],
)
def test_a_session_is_in_its_group_or_elsewhere(text: str, found: str | None) -> None:
    assert group_of(text, "holdfast-1", "abc") == found


def test_a4_a_best_effort_halt_is_always_reported_as_such() -> None:
    for contained in (False, True):
        for how in (halt.FREEZE, halt.NAMESPACE, halt.BEST_EFFORT):
            assert ("best effort" in says(contained, how)) == (how == halt.BEST_EFFORT)


def test_a4_a_process_runs_if_any_of_its_threads_does() -> None:
    """The first thread can be stopped for a tracer, or have ended, while others run."""
    for leader in "tZ":
        one = halt.Member(7, 1, leader, 0, threads=3)
        assert halt.with_threads(one, (leader, "t", "R")).running
        assert halt.with_threads(one, (leader, "D")).running
        assert not halt.with_threads(one, (leader, "t", "T")).running
    stopped = halt.Member(7, 1, "T", 0, threads=2)
    assert not halt.with_threads(stopped, ("T", "D")).running, "it stops before its next step"
    assert halt.with_threads(stopped, ("T", "S")).running
