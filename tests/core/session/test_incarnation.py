"""R1: what the next incarnation of a session gets."""

from __future__ import annotations

from holdfast.core.session.incarnation import OFFSET_STEP, first_offset, scrollback


def test_s5_offsets_grow_with_each_incarnation_also_if_nothing_was_stored() -> None:
    assert first_offset(0, 2) == OFFSET_STEP
    assert first_offset(0, 3) == 2 * OFFSET_STEP, "the second incarnation had offsets from the step"
    assert first_offset(5 * OFFSET_STEP + 1, 3) == 6 * OFFSET_STEP


def test_r1_only_output_of_the_last_incarnation_is_shown_and_a_gap_is_named() -> None:
    start = OFFSET_STEP
    end, shown = scrollback([(0, b"older"), (start, b"copy"), (start + 10, b"new")])
    assert end == start + 13 and shown.startswith(b"copy") and shown.endswith(b"new")
    assert b"6 bytes of output were not stored" in shown and b"older" not in shown
