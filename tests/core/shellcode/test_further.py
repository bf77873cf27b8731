"""Programs that read further files as code (P3)."""

from __future__ import annotations

import pytest

from holdfast.core.shellcode.facts import Command, Surroundings, analyse
from holdfast.core.shellcode.further import ANY, further, searched
from holdfast.host.policy.shfmt import Parser, find_shfmt

pytestmark = pytest.mark.skipif(find_shfmt() is None, reason="needs shfmt")


def commands(line: str) -> list[Command]:
    return analyse(line, Parser(), Surroundings("/home/u/p", "/home/u")).commands


@pytest.mark.parametrize(
    "line",
    ["make", "bash run.sh", ". ./lib.sh", "source lib.sh", "./run.sh", "env make", "cargo b"],
)
def test_p3_build_programs_shells_and_scripts_may_read_every_file_as_code(line: str) -> None:
    assert any(further(one) == ANY for one in commands(line)), line


@pytest.mark.parametrize("line", ["python3 main.py", "python3 -c 'print(1)'", "pytest -q"])
def test_p3_python_reads_modules(line: str) -> None:
    (one,) = commands(line)
    assert ".py" in (further(one) or ()) and ".txt" not in (further(one) or ())


@pytest.mark.parametrize(
    "line", ["ls -la", "cat x", "git status", "grep -n x y", "echo $x", "cd sub", "/usr/bin/env ls"]
)
def test_p3_most_programs_read_no_further_code(line: str) -> None:
    assert not any(further(one) for one in commands(line)), line


def test_p3_the_directories_of_operands_are_searched_except_the_machines_own() -> None:
    (one,) = commands("python3 /srv/tool/main.py /usr/lib/x.py")
    assert searched(one, "/home/u/p") == ("/home/u/p", "/srv/tool")
    assert searched(one, None) == ("/srv/tool",)
