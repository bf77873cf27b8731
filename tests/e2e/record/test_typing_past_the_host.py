"""P3: each session states whether its programs can type past the host (TIOCSTI)."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.support.installation import Installation
from tests.support.ordinary_user import passes_as_ordinary_user

PUSH = "import fcntl, termios; fcntl.ioctl(open('/dev/tty'), termios.TIOCSTI, b'\\n')"


@pytest.mark.parametrize("depth", ["input", "exec"])
def test_p3_who_and_the_record_state_whether_a_program_can_type(
    hf: Installation, depth: str
) -> None:
    hf.ready(depth, "--plain", "--gate", depth)
    pushed = hf.cli("run", depth, "--", shlex.join([hf.python, "-c", PUSH])).rc == 0
    assert ("(TIOCSTI)" in hf.ok("who", depth).out) is pushed
    [spawn] = [e for e in hf.ok("log", depth, "--json").records if e["kind"] == "spawn"]
    assert spawn["facts"].get("tiocsti") == ("open" if pushed else None)
    assert not pushed or depth == "input"


@pytest.mark.skipif(os.getuid() != 0, reason="runs as an ordinary user already")
def test_p3_the_same_holds_on_an_ordinary_users_host() -> None:
    passes_as_ordinary_user(__file__)
