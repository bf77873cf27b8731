"""There is one door to a terminal. Peers with two paths garbled vim in the middle of an escape sequence."""

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
    assert uses(r"wire\.(act|resize|signal)\(", "host") == {"host/lane.py"}


def test_acts_reach_the_lane_only_through_the_session() -> None:
    assert uses(r"lane\.(submit|key)\(", "host") == {"host/session.py"}
    assert uses(r"\.submit_keys\(", "host") == {"host/keyboard.py"}


def test_nothing_but_the_keeper_writes_to_a_terminal() -> None:
    assert uses(r"self\.master", "host") == set()
    assert uses(r"os\.write\((self\.)?master", "keeper") == {"keeper/acts.py"}
    assert uses(r"TIOCSTI", "host") <= {
        "host/doctor.py",
        "host/checks/terminal.py",
        "host/checks/kernel.py",
    } | uses(r"TIOCSTI", "host/checks")
