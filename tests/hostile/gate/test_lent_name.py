"""A person's key while an inner interpreter works on an agent's line (P3, P4).

The inner interpreter does not report which line it executes. The agent's line waits for the key,
and starts a program afterwards that agents may not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.commands.approving import free
from tests.support.exec_gate.gated_session import LAYOUTS, obey
from tests.support.installation import Installation, eventually, installation

RULE = "agents do not read backwards"
POLICY = f"""version = 1
[[rule]]
name = "all"
verdict = "allow"
because = "a test"
when = {{ unresolvable = "any" }}
[[rule]]
name = "{RULE}"
verdict = "refuse"
because = "a test"
who = {{ kind = ["agent"] }}
when = {{ command = ["tac"] }}
"""
# Not on the command line: the gate at input depth would see it.
SCRIPT = "#!/bin/sh\ntac word > stolen\ntouch done\n"


class Lab:
    """A session of a person in which an agent types too."""

    def __init__(self, hf: Installation, layout: str, *program: str) -> None:
        self.hf, self.name = hf, f"lab{next(_numbers)}"
        self.place = hf.user / self.name
        self.place.mkdir()
        (self.place / "word").write_text("a\nb\n")
        (self.place / "x.sh").write_text(SCRIPT)
        (self.place / "x.sh").chmod(0o755)
        hf.new(self.name, layout, "--cwd", str(self.place), "--", *program)
        assert hf.get(self.name)["gate"] == "exec"

    def order(self, who: str, *what: str) -> None:
        self.hf.ok("--as", who, "send", self.name, *what)
        free(self.hf, self.name)

    def has(self, name: str) -> None:
        eventually((self.place / name).exists, f"the file {name}")

    def nest(self, who: str) -> None:
        self.order(who, "bash --norc", "--enter")
        self.order(who, "touch inside", "--enter")
        self.has("inside")

    def agent_waits(self) -> None:
        self.order("bot", "touch waits; until [ -e go ]; do :; done; ./x.sh", "--enter")
        self.has("waits")

    def go(self) -> bytes:
        (self.place / "go").touch()
        self.has("done")
        return (self.place / "stolen").read_bytes()

    def refusals(self) -> list[dict[str, Any]]:
        records = self.hf.ok("events", self.name, "--limit", "100000", "--json").records
        return [e for e in records if e["event"] == "exec.refused"]


_numbers = itertools.count()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        obey(made, POLICY)
        made.people("bot", rights="execute,observe", kind="agent")
        yield made


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KEYS = {"Up": ("--key", "Up"), "Enter": ("--key", "Enter"), "text": ("x",)}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("starter", ["bot", "tester"])
def test_p3_a_key_of_a_person_does_not_lend_the_persons_name(
    house: Installation, layout: str, starter: str, key: str
) -> None:
    lab = Lab(house, layout, "bash")
    lab.nest(starter)
    lab.agent_waits()
    lab.order("tester", *KEYS[key])
    assert lab.go() == b"", "tac ran in the name of the person"
    found = eventually(lab.refusals, "the report")
    assert {(e["rule"], e["operator"]) for e in found} == {(RULE, "bot")}
    assert all("tester" in e["originators"] for e in found)


@pytest.mark.parametrize("key", KEYS)
def test_p3_nor_in_a_session_whose_shell_reports_no_lines(
    house: Installation, layout: str, key: str
) -> None:
    lab = Lab(house, layout, "bash", "--norc")
    lab.agent_waits()
    lab.order("tester", *KEYS[key])
    assert lab.go() == b""


def test_p3_nor_in_a_nested_shell_that_was_suspended(house: Installation, layout: str) -> None:
    lab = Lab(house, layout, "bash")
    lab.nest("tester")
    lab.order("tester", "suspend", "--enter")
    lab.hf.wait(lab.name, "idle")
    lab.order("tester", "fg", "--enter")
    lab.agent_waits()
    lab.order("tester", *KEYS["Up"])
    assert lab.go() == b""


def test_p3_nor_by_a_program_that_outlives_the_nested_shell(
    house: Installation, layout: str
) -> None:
    lab = Lab(house, layout, "bash")
    lab.nest("tester")
    lab.order("bot", "until [ -e go ]; do :; done 2> /dev/null && ./x.sh & exit", "--enter")
    lab.order("tester", *KEYS["Enter"])
    assert lab.go() == b""


def test_p3_nor_by_the_answer_that_a_persons_program_reads(
    house: Installation, layout: str
) -> None:
    lab = Lab(house, layout, "bash")
    lab.order("tester", "touch waits; read -r program; ./$program", "--enter")
    lab.has("waits")
    lab.order("bot", "x.sh", "--enter")
    assert lab.go() == b""


def test_p3_a_nested_shell_that_only_a_person_uses_is_the_persons(
    house: Installation, layout: str
) -> None:
    lab = Lab(house, layout, "bash")
    lab.order("bot", "true", "--enter")
    lab.hf.wait(lab.name, "idle")
    lab.nest("tester")
    lab.order("tester", "./x.sh", "--enter")
    assert lab.go() == b"b\na\n"
