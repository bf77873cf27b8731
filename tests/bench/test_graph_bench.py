"""The figures of a look come from a real look. No figure is judged here."""

from __future__ import annotations

from bench import graph


def test_a_look_and_the_events_give_numbers() -> None:
    figures = graph.looks(5)
    assert (
        figures["processes"] == 5
        and (figures["descriptors"] or 0) >= 5 * 4
        and (figures["whole_ms"] or 0) > 0
    )
    assert graph.told().keys() == {"event_p50_us", "event_p99_us", "events_lost"}
