"""The table of forwarded ports beside ssh -L."""

from __future__ import annotations

from bench.sessions.forward import table


def test_the_table_compares_with_ssh() -> None:
    found = {
        "ssh -L": {"down": [100.0, 300.0, 200.0], "up": [50.0], "exchange": [0.1]},
        "holdfast": {"down": [150.0], "up": [100.0], "exchange": [0.25]},
    }
    rows = table(found)
    assert "| ssh -L | 200 | 50 | 0.10 | 1.00 | 1.00 |" in rows
    assert "| holdfast | 150 | 100 | 0.25 | 0.75 | 2.00 |" in rows
