"""Every command that asks for an act takes an idempotency key (A9)."""

from __future__ import annotations

import pytest

from holdfast.core.contract.table import OPERATIONS
from holdfast.faces.cli.main import ALSO_ACT, COMMANDS, parser

# Acts that are no command of their own, with the command that asks for the act.
ELSEWHERE = {"recovery.off": "operator", "relays.changed": "host"} | dict.fromkeys(
    # Another machine sends a checkpoint, or takes it back; a lost session is taken over.
    ("copies.offer", "copies.commit", "copies.withdraw"),
    "checkpoint",
)
ELSEWHERE["copies.take"] = "restore"
ACTS = sorted({*(one.name for one in OPERATIONS.values() if one.act), *ALSO_ACT})


@pytest.mark.parametrize("act", ACTS)
def test_a9_every_acting_command_takes_an_idempotency_key(act: str) -> None:
    name = ELSEWHERE.get(act, act.partition(".")[0])
    assert name in COMMANDS, f"{act}: name its command in ELSEWHERE"
    assert "--once" in parser(name).format_help(), f"`holdfast {name}` has no --once"
