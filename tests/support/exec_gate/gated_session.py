"""Shared by the tests of the exec gate: a policy against one harmless program, and the layouts."""

from __future__ import annotations

import os

from tests.support.installation import Installation

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
    """Put this policy in force, from the next act on."""
    file = hf.home / "policy.toml"
    file.write_text(policy)
    file.chmod(0o600)
