"""The steps of a person that is asked for approvals."""

from __future__ import annotations

import json
from typing import Any

from tests.support.installation import Installation


def free(hf: Installation, session: str) -> None:
    holder = hf.get(session)["turn"]
    if holder is not None:
        hf.ok("--as", holder["holder"], "turn", session, "release")


def waiting(hf: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hf.ok("--as", "ann", "approvals", "--json").out)
    return found


def approve(hf: Installation, question: dict[str, Any], answer: str = "approve") -> None:
    hf.ok("--as", "ann", answer, question["id"], "--yes", "--binding", question["binding"])
