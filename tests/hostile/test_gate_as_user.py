"""Attacks on gate, door and grants (P3, P4, A5) again, on the host of an ordinary user.

Most other files beside this one repeat themselves in their last test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ordinary_user import passes_as_ordinary_user

HERE = Path(__file__).parent
RUNS = {
    "limits": ("test_command_limits.py", "test_unfinished_line.py"),
    "gate": ("test_exec_gate.py", "test_door.py"),
    "texts": (
        "gate/test_builtins.py",
        "gate/test_directories.py",
        "gate/test_evaluated_values.py",
        "gate/test_lent_name.py",
        "gate/test_questions_of_ended_operators.py",
        "gate/test_typed_comments.py",
    ),
    "people": (
        "../e2e/authority/test_halt.py::test_a4_a_session_is_halted_also_when_the_host_is_stopped",
        "../e2e/authority/test_approvals.py::"
        "test_p4_in_a_plain_session_a_key_that_its_code_could_read_approves_nothing",
    ),
}


@pytest.mark.parametrize("files", RUNS.values(), ids=RUNS)
def test_p4_attacks_on_the_gate_as_an_ordinary_user(files: tuple[str, ...]) -> None:
    if os.getuid() != 0:
        pytest.skip("it is being run as an ordinary user")
    passes_as_ordinary_user(*(str(HERE / name) for name in files))
