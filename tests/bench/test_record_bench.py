"""The figures of the record come from records that verify. No figure is judged here."""

from __future__ import annotations

from bench import record


def test_appending_and_verifying_give_numbers() -> None:
    appended = record.append(20)
    assert appended["one_by_one_per_s"] > 0 and appended["key_ns"] > 0
    for name, make in (("commands", record.commands), ("keys", record.keys)):
        figures = record.verify(name, 128, make)
        assert figures[f"{name}_one_per_s"] > 0 and figures[f"{name}_all_per_cpu_s"] > 0
