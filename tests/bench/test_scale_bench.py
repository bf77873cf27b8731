"""The table of costs by number of sessions can be made. No figure is judged here."""

from __future__ import annotations

from bench import standing


def test_the_scale_table_has_a_row_for_each_number_of_sessions() -> None:
    rows = standing.scale([3], seconds=0.2, settle_s=0.0, restarts=2)
    assert [row["sessions"] for row in rows] == [3]
    assert all(row.keys() == standing.COLUMNS.keys() for row in rows)
    assert all((row["adopted_s"] or 0) >= (row["answers_s"] or 0) > 0 for row in rows)
    assert len(standing.scale_table(rows).splitlines()) == 3
