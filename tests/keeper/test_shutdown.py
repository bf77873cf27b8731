"""A keeper survives SIGTERM, except in the last step of a shutdown, which waits for its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.keeper import WAIT_S
from tests.support.ordinary_user import SOURCE

IN_A_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.parametrize("layout", ["plain", "contained"])
def test_r1_only_the_last_step_of_a_shutdown_ends_a_keeper(layout: str, short_path: Path) -> None:
    options = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    program = [sys.executable, "-m", "tests.support.recovery.last_step", layout, str(short_path)]
    made = subprocess.run(
        [*IN_A_NAMESPACE, *options, *program],
        cwd=SOURCE,
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * WAIT_S,
    )
    first, last = made.stdout.splitlines()
    left, of = first.removeprefix("an ordinary SIGTERM leaves ").split(" of ")
    assert left == of
    assert last == "the last one leaves 0; the nursery ends by 15"
