"""The table of file transfers beside scp."""

from __future__ import annotations

from bench.sessions.transfer import table


def test_each_tool_is_compared_with_scp_by_medians() -> None:
    found = {
        "scp": {"get": [10.0, 40.0, 20.0], "put": [10.0]},
        "holdfast": {"get": [30.0], "put": [5.0]},
    }
    assert table(found)[2:] == [
        "| scp | 20 | 10 | 1.00 | 1.00 |",
        "| holdfast | 30 | 5 | 1.50 | 0.50 |",
    ]
