"""What the scripts of agents share: calls of our tools, their results, and the record."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.support.agents.model import Call
from tests.support.installation import Installation

TREE = "git worktree remove --force tree"  # waits for an approval; see `repository`
BEGINNING = 16  # characters of an act that tell it from the others
DECIDED = ("command", "seize", "turn", "approve")


def repository(place: Path) -> None:
    """A repository with a linked work tree."""
    place.mkdir(exist_ok=True)
    me = ("-c", "user.name=ann", "-c", "user.email=ann@host.test")
    for words in (
        ("init", "-q"),
        (*me, "commit", "-q", "--allow-empty", "-m", "begin"),
        ("worktree", "add", "-q", "tree"),
    ):
        subprocess.run(["git", *words], cwd=place, check=True, capture_output=True)


def body(result: str) -> dict[str, Any]:
    """Our result, around which some agents put words of their own."""
    assert "{" in result, result
    found: dict[str, Any] = json.JSONDecoder().raw_decode(result[result.index("{") :])[0]
    return found


def run(command: str, **more: Any) -> Call:
    return Call("run", {"command": command, **more})


def polled(ref: str, known: str | None = None) -> Generator[Call, str, dict[str, Any]]:
    """Asks by the reference until the command is over or held by a question that is not known."""
    while True:
        found = body((yield Call("read", {"ref": ref, "wait_s": 5})))
        unknown = found["state"] == "held" and found["approval"] != known
        if unknown or found["state"] not in ("held", "running", "waiting_for_turn"):
            return found


def decided(house: Installation, session: str) -> list[tuple[object, ...]]:
    """Operator, modality, kind, verdict and the beginning of each act in the record."""
    return [
        ((e["actor"], e["modality"]), e["kind"], e["verdict"], (e["content"] or "")[:BEGINNING])
        for e in house.ok("log", session, "--json", "--limit", "200").records
        if e["kind"] in DECIDED and e["phase"] != "outcome"
    ]


def approve(house: Installation, session: str, agent: str, text: str) -> str:
    """Approves the only question of the session, as a person does. Gives the kind of the act."""
    (question,) = house.ok("approvals", session, "--json").json
    assert text in question["text"] and question["operator"] == agent, question
    house.ok("approve", question["id"], "--yes", "--binding", question["binding"])
    return str(question["act"])
