"""The ten minutes of each guide, typed into real terminals as printed (M)."""

from __future__ import annotations

import json

import pytest

from tests.support.commands.guide import Reader, section
from tests.support.installation import Installation, eventually
from tests.support.recovery.checkpoint import criu

HEADING = "Ten minutes"


@pytest.mark.parametrize(
    "guide", ["attach.md", "write-scripts.md", "operate.md", "troubleshooting.md"]
)
def test_m_the_ten_minutes_work_as_printed(fresh: Installation, guide: str) -> None:
    Reader(fresh).follow(section(guide, HEADING))


def test_m_a_branch_is_made_and_kept_as_printed(fresh: Installation) -> None:
    criu()
    Reader(fresh).follow(section("branch-a-session.md", HEADING))


def test_m_an_agent_is_held_approved_and_taken_over_as_printed(fresh: Installation) -> None:
    def question() -> str:
        (waiting,) = eventually(
            lambda: json.loads(fresh.quick("approvals", "--json")), "a question"
        )
        return str(waiting["id"])

    Reader(fresh, {"q5d": question}).follow(section("agent-under-approval.md", HEADING))
    removed = fresh.account / "trial/releases/1.2"
    eventually(lambda: not removed.exists() or None, "the approved rm")
