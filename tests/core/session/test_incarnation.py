"""R1: what the next incarnation of a session gets."""

from __future__ import annotations

import pytest

from holdfast.core.session.incarnation import (
    OFFSET_STEP,
    SUBSHELL,
    Lost,
    Running,
    first_offset,
    named,
    notice,
    scrollback,
)
from holdfast.host.terminal.screen import Screen


def test_s5_offsets_grow_with_each_incarnation_also_if_nothing_was_stored() -> None:
    assert first_offset(0, 2) == OFFSET_STEP
    assert first_offset(0, 3) == 2 * OFFSET_STEP, "the second incarnation had offsets from the step"
    assert first_offset(5 * OFFSET_STEP + 1, 3) == 6 * OFFSET_STEP


def test_r1_only_output_of_the_last_incarnation_is_shown_and_a_gap_is_named() -> None:
    start = OFFSET_STEP
    end, shown = scrollback([(0, b"older"), (start, b"copy"), (start + 10, b"new")])
    assert end == start + 13 and shown.startswith(b"copy") and shown.endswith(b"new")
    assert b"6 bytes of output were not stored" in shown and b"older" not in shown


LOST = Lost(1, "Keeper and host died", None, (), ("hf:a@1#4",) * 3, False, ("a " * 30,))


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"\x1b7\x1b[?1049hfull screen",
        b"\x1b[?47hfull screen",
        b"\x1b[2;3r\x1b[?6h",
        b"\x1b[?69h\x1b[2;4s",
        b"\x1b[3A\x1b[3D",
        b"\x1b7\x1b[1;1H",
        b"\x1b[4;20",
    ],
)
def test_r1_s5_the_notice_is_below_the_old_rows(last: bytes) -> None:
    screen = Screen(30, 6)
    screen.feed(b"".join(b"row %d\r\n" % n for n in range(20)) + b"half" + last)
    screen.feed(notice("work", 2, LOST, "", 30) + b"$ ")
    rows = [*screen.history_text(100), *screen.text()]
    assert [row for row in rows if row.startswith("row")] == [f"row {n}" for n in range(20)]
    told = rows.index("[holdfast] Keeper and host")
    assert rows[20] == "half" and told > 20 and rows[-1] == "$"
    assert screen.cursor == (2, 5, True) and not screen.alternate


def test_r1_the_notice_breaks_between_words() -> None:
    for cols in (2, 30, 80):
        _, _, text = notice("work", 2, LOST, "", cols).decode().partition("H\r\n")
        rows = text.splitlines()
        assert all(len(row) <= cols for row in rows)
        words = "Keeper and host died. This is a new incarnation (2) of work:"
        assert cols == 2 or words in " ".join(rows)


def test_r1_a_subshell_is_named_by_the_text_of_its_act() -> None:
    act = "hf:s@1#3"
    found = named(
        [
            Running("", "ann", act),
            Running("", "ann", act),
            Running("sleep 9", "ann", act),
            Running("", "bob", "hf:s@1#4"),
            Running("", "shell", None),
        ],
        {act: "(sleep 9; date) &\r"},
    )
    told = [(one.argv, one.operator) for one in found]
    assert told == [("(sleep 9; date) &", "ann"), ("sleep 9", "ann"), (SUBSHELL, "bob")]
