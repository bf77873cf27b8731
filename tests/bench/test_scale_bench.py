"""The table of costs by number of sessions can be made. No figure is judged here."""

from __future__ import annotations

import os

import pytest

from bench import standing

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the gate at exec depth needs root")


@pytest.mark.parametrize("net", [None, pytest.param("none", marks=ROOT)])
def test_the_scale_table_has_a_row_for_each_number_of_sessions(net: str | None) -> None:
    rows = standing.scale([3], seconds=0.2, settle_s=0.0, restarts=2, net=net)
    assert [row["sessions"] for row in rows] == [3]
    columns = standing.COLUMNS if net is None else standing.COLUMNS | standing.CONTAINED
    assert all(row.keys() == columns.keys() for row in rows)
    assert all((row["adopted_s"] or 0) >= (row["answers_s"] or 0) > 0 for row in rows)
    assert len(standing.scale_table(rows).splitlines()) == 3
