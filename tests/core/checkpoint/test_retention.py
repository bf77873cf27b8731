"""Old checkpoints are removed, but never the newest of a session (R2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checkpoint.retention import Kept, surplus


def kept(session: str, number: int, epoch: int = 1, **files: int) -> Kept:
    return Kept(session, f"{session}-{number}", epoch, float(number), files)


def age(one: Kept) -> tuple[int, float]:
    return one.epoch, one.at


FOUND = st.lists(
    st.builds(
        kept,
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 30),
        st.integers(1, 3),
        one=st.integers(1, 100),
        two=st.integers(1, 100),
    ),
    unique_by=lambda one: one.id,
)


@given(FOUND, st.integers(1, 5), st.integers(0, 500), st.sets(st.integers(0, 30)))
def test_r2_the_newest_of_each_session_stays(
    found: list[Kept], keep: int, most: int, damaged: set[int]
) -> None:
    """The newest that can be used: by its epoch, because a clock may step back."""
    gone = surplus(found, keep, most, lambda one: one.at not in damaged)
    left = [one for one in found if one not in gone]
    for session in {one.session for one in found}:
        group = sorted((one for one in found if one.session == session), key=age)
        usable = [one for one in group if one.at not in damaged]
        assert (usable or group)[-1] in left
        assert sum(one.session == session for one in left) <= keep + 1
        if usable and usable[-1] in group[-keep:]:
            assert sum(one.session == session for one in left) <= keep
    assert gone == sorted(gone, key=lambda one: one.at)


def test_r2_a_bound_removes_the_oldest_first() -> None:
    found = [kept("a", 1, x=50), kept("a", 3, y=50), kept("b", 2, z=50), kept("b", 4, w=50)]
    assert [one.id for one in surplus(found, 9, 200)] == []
    assert [one.id for one in surplus(found, 9, 199)] == ["a-1"]
    assert [one.id for one in surplus(found, 9, 0)] == ["a-1", "b-2"]


def test_r2_shared_files_count_once() -> None:
    found = [kept("a", 1, x=90, y=1), kept("a", 2, x=90, w=2), kept("a", 3, x=90, z=5)]
    assert surplus(found, 9, 98) == []
    assert [one.id for one in surplus(found, 9, 97)] == ["a-1"]
    assert [one.id for one in surplus(found, 9, 96)] == ["a-1", "a-2"]
