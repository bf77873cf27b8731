"""What the tests of the exec gate share: a policy that refuses one harmless program, and where the gate is in force."""

from __future__ import annotations

import os

from tests.e2e.harness import Installation

LAYOUTS = ("--contained", "--plain") if os.getuid() == 0 else ("--contained",)
NO_TAC = """version = 1
extends = "default"
[[rule]]
name = "no tac"
verdict = "refuse"
because = "nobody reads backwards"
when = { command = ["tac"] }
"""


def obey(hf: Installation, policy: str) -> None:
    """From the next act on."""
    file = hf.home / "policy.toml"
    file.write_text(policy)
    file.chmod(0o600)
