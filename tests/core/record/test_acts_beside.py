"""R7: which acts a checkpoint caught in the middle, and which came after it."""

from __future__ import annotations

from typing import Any

from holdfast.core.record import acts_beside as rules

ORIGINS = ((0xA, 5, 9), (0xB, 2, 4))


def entry(seq: int, client: str, number: int, epoch: int = 3, **more: Any) -> dict[str, Any]:
    given = {"session": "s", "seq": seq, "epoch": epoch, "kind": "command", "phase": "intent"}
    return {**given, "actor": "ann", "client": client, "number": number, **more}


def refs(found: Any) -> list[str]:
    return [one["act"] for one in found]


def test_r7_only_acts_that_the_session_had_taken_are_in_flight() -> None:
    """An act that waits in the host is not in the memory; other kinds have no middle."""
    entries = [
        entry(1, "a", 5),
        entry(2, "a", 6),
        entry(3, "b", 2),
        entry(4, "c", 1),
        entry(5, "a", 4, kind="save"),
        entry(6, "a", 3, epoch=2),
    ]
    assert refs(rules.in_flight(entries, 3, ORIGINS)) == ["hf:s@3#9", "hf:s@3#4"]


def test_r7_acts_of_later_incarnations_came_after_the_checkpoint() -> None:
    entries = [
        entry(1, "a", 5),
        entry(2, "a", 6),
        entry(3, "a", 6, phase="outcome"),
        entry(4, "a", 8, kind="keys", phase="fact"),
        entry(5, "b", 2, kind="keys", phase="fact"),
        entry(6, "a", 1, epoch=4),
        entry(7, "c", 1, kind="save"),
    ]
    assert refs(rules.later(entries, 3, ORIGINS)) == [
        "entry 2 of hf:s@3",
        "entry 4 of hf:s@3",
        "entry 6 of hf:s@4",
    ]


def test_s8_an_act_has_the_number_that_its_reference_has_everywhere() -> None:
    """The number of an entry is another one: behind `#` it would name another act."""
    entries = [entry(1, "a", 4), entry(2, "a", 5), entry(3, "b", 1, act=3)]
    acts = ["entry 1 of hf:s@3", "hf:s@3#9", "hf:s@3#3"]
    assert refs(rules.in_flight(entries, 3, ORIGINS)) == acts
    assert refs(rules.later([entry(7, "a", 6, act=12)], 3, ORIGINS)) == ["hf:s@3#12"]


def test_r7_the_acts_of_a_manifest_are_bounded_and_damaged_ones_left_out() -> None:
    sound = {"act": "hf:s@3#1", "actor": "ann", "kind": "command"}
    found: list[Any] = [{}, 1, {**sound, "act": "x" * 1000}, *[sound] * 100]
    rows = rules.rows(found)
    assert len(rows) == rules.KEPT_MAX - 2 and len(rows[0]["act"]) == 200
    assert rules.words(rows[1:2], 3) == "hf:s@3#1 (command of ann), and 3 before these"
