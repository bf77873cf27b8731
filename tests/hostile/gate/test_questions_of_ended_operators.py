"""A program of an operator that was revoked, or whose grant ended, waits for an approval (P4, A5).

Nobody can approve such a question any more: it is void, the program is refused, and a program that
the operator left running gets no new question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.commands.approving import waiting
from tests.support.exec_gate.approval_lab import POLICY
from tests.support.installation import Installation, eventually, installation

RIGHTS = ("--rights", "observe,run,turn.request", "--session", "lab")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        policy = made.home / "policy.toml"
        policy.write_text(POLICY)
        policy.chmod(0o600)
        made.people("ann")
        (made.user / "work").mkdir()
        made.new("lab", "--contained", "--cwd", str(made.user / "work"), "--", "bash")
        made.wait("lab", "idle")
        yield made


def questions(hf: Installation) -> list[dict[str, Any]]:
    return [q for q in waiting(hf) if q["act"] == "exec"]


def events(hf: Installation, kind: str) -> list[dict[str, Any]]:
    records = hf.ok("events", "lab", "--limit", "100000", "--json").records
    return [e for e in records if e["event"] == kind]


def asked(hf: Installation, name: str, script: str, *more: str) -> dict[str, Any]:
    """Let a new agent run a script whose `rm` is asked about; return that question."""
    hf.people(name, rights="", kind="agent")
    hf.ok("grant", name, *RIGHTS, *more)
    work = hf.user / "work"
    (work / name).mkdir()
    (work / f"{name}.sh").write_text(script)
    hf.ok("seize", "lab")  # an operator whose grant has ended may have the turn
    hf.ok("turn", "lab", "release")
    hf.start("--as", name, "run", "lab", "--", f"sh {name}.sh")
    return eventually(lambda: next(iter(questions(hf)), None), "a question about rm")


def refused(hf: Installation, name: str, why: str) -> None:
    """The program was refused for this reason, and its question is void."""

    def told(kind: str) -> bool:
        found = [e for e in events(hf, kind) if name in (e.get("operator"), e.get("actor"))]
        return any(why in str(e) for e in found)

    eventually(lambda: told("approval.void"), "the question is void")
    eventually(lambda: told("exec.refused"), "the program is refused")
    assert questions(hf) == []
    assert (hf.user / "work" / name).exists()


def test_p4_a5_the_revocation_of_an_agent_voids_questions_about_its_programs(
    house: Installation,
) -> None:
    question = asked(house, "bot", "rm -r bot\n")
    house.ok("operator", "revoke", "bot")
    assert questions(house) == []
    late = ("approve", question["id"], "--yes", "--binding", question["binding"])
    assert house.cli("--as", "ann", *late).rc != 0
    refused(house, "bot", "bot was revoked")


def test_p4_a5_a_program_that_a_revoked_agent_left_gets_no_new_question(
    house: Installation,
) -> None:
    asked(house, "two", "rm -r two || rm -rf two\ntouch two.done\n")
    house.ok("operator", "revoke", "two")
    eventually((house.user / "work" / "two.done").exists, "the script goes on")
    refused(house, "two", "two was revoked")


def test_p4_a5_a_question_ends_with_the_grant_of_its_agent(house: Installation) -> None:
    asked(house, "brief", "rm -r brief\n", "--expires", "12s")
    eventually(lambda: questions(house) == [], "the question ends")
    refused(house, "brief", "may not act")


def test_p4_a_question_outlives_a_grant_of_another_agent(house: Installation) -> None:
    question = asked(house, "stays", "rm -r stays\n")
    house.people("goes", rights="", kind="agent")
    house.ok("operator", "revoke", "goes")
    assert [q["id"] for q in questions(house)] == [question["id"]]
    house.ok("--as", "ann", "approve", question["id"], "--yes", "--binding", question["binding"])
    eventually(lambda: not (house.user / "work" / "stays").exists(), "rm runs")
