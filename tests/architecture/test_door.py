"""There is one path to a terminal: two paths could interleave inside an escape sequence."""

from __future__ import annotations

import re
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "holdfast"


def uses(pattern: str, package: str) -> set[str]:
    return {
        str(p.relative_to(SRC))
        for p in (SRC / package).rglob("*.py")
        if re.search(pattern, p.read_text())
    }


def test_only_the_lane_sends_acts_to_a_keeper() -> None:
    assert uses(r"wire\.(act|resize|signal)\(", "host") == {"host/session/lane.py"}


def test_acts_reach_the_lane_only_through_the_session() -> None:
    assert uses(r"lane\.(submit|key)\(", "host") == {
        "host/session/session.py",
        "host/session/viewers.py",  # sizes
    }
    assert uses(r"\.submit_keys\(", "host") == {"host/acts/keyboard.py"}


def test_nothing_but_the_keeper_writes_to_a_terminal() -> None:
    assert uses(r"self\.master", "host") == set()
    assert uses(r"os\.write\((self\.)?master", "keeper") == {"keeper/acts.py"}
    assert uses(r"TIOCSTI", "host") <= {
        "host/doctor/report.py",
    } | uses(r"TIOCSTI", "host/doctor")
