"""Write `expected` for the cases in tests/vectors that have none; existing results stay.

`--all` writes every result again, so that a reader can inspect the difference.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.vectors import cases  # noqa: E402

MODULES = {
    "acts.json": "core.test_acts_vectors",
    "approvals.json": "core.test_gate_vectors",
    "canonical.json": "model.test_canonical_vectors",
    "conversations.json": "client.test_link_vectors",
    "errors.json": "model.test_errors_vectors",
    "handover.json": "host.test_handover_vectors",
    "hello.json": "wire.test_hello_vectors",
    "home.json": "home.test_home_vectors",
    "invitations.json": "core.test_invitation_vectors",
    "layouts.json": "wire.test_layouts_vectors",
    "messages.json": "wire.test_frames_vectors",
    "outer_messages.json": "wire.test_outer_vectors",
    "packets.json": "wire.test_keeper_vectors",
    "record_parts.json": "core.test_record_vectors",
    "relays.json": "core.test_route_vectors",
    "requests.json": "host.requests.test_requests_vectors",
}


def render(file: str, module: str) -> None:
    make = importlib.import_module(f"tests.{module}").MAKE
    whole = json.loads((cases.FOLDER / file).read_text())
    for case in whole["cases"]:
        if "expected" not in case or "--all" in sys.argv:
            case["expected"] = cases.made(make, case)
    (cases.FOLDER / file).write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    for file, module in MODULES.items():
        if (cases.FOLDER / file).exists():
            render(file, module)
