"""docs/reference/policy.md: all examples run, and all listed names exist."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from holdfast.core.policy import policy_file
from holdfast.core.policy.conditions import CONDITIONS
from holdfast.core.policy.policy import ACTS, UNGATED, Verdict
from holdfast.core.shellcode.reasons import CODES
from holdfast.faces.cli import policy as cli
from holdfast.host.policy.plugins import Plugin, Worker

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "policy.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
POLICIES = [body for kind, body in BLOCKS if kind == "toml" and body.startswith("version")]
EXAMPLES = [body for kind, body in BLOCKS if kind == "toml" and not body.startswith("version")]
COMMANDS = re.findall(
    r"^\$ holdfast (.*)\n(.*)$", "\n".join(body for kind, body in BLOCKS if kind == "console"), re.M
)


def run(words: list[str]) -> int:
    parser = ArgumentParser()
    cli.policy_parser(parser)
    return cli.policy(parser.parse_args(words))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.chdir(tmp_path)


def test_there_are_examples_of_each_kind() -> None:
    assert len(POLICIES) == len(EXAMPLES) == 3 and len(COMMANDS) >= 6


@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[c for c, _ in COMMANDS])
def test_commands_print_the_text_of_the_page(
    line: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *words = shlex.split(line)
    assert command == "policy"
    run(words)
    assert capsys.readouterr().out == expected + "\n"


@pytest.mark.parametrize("n", range(len(EXAMPLES)))
def test_policies_pass_their_examples(n: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.toml").write_text(POLICIES[n])
    Path("examples.toml").write_text(EXAMPLES[n])
    assert run(["test", "examples.toml"]) == 0, capsys.readouterr().out


def test_the_plugin_answers_as_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "documented.py").write_text(next(body for kind, body in BLOCKS if kind == "python"))
    worker = Worker(Plugin("documented", "documented:judge"), 20.0, 60.0, paths=[str(tmp_path)])
    try:
        assert (
            worker.judge({"commands": [{"name": "docker"}], "contained": False}).verdict
            is Verdict.ASK
        )
        assert (
            worker.judge({"commands": [{"name": "docker"}], "contained": True}).verdict
            is Verdict.NOTHING
        )
    finally:
        worker.close()


def test_the_cedar_policy_validates(tmp_path: Path) -> None:
    pytest.importorskip("cedarpy", reason="the extra `cedar` is not installed")
    from holdfast.host.policy import cedar

    (tmp_path / "policy.cedar").write_text(next(body for kind, body in BLOCKS if kind == "cedar"))
    assert cedar.load(str(tmp_path / "policy.cedar"))


def test_every_condition_act_reason_and_fact_is_on_the_page() -> None:
    from holdfast.core.policy.conditions import Actor, Request
    from holdfast.core.shellcode.facts import Command, Facts
    from holdfast.host.policy.gate import describe

    for name in (*CONDITIONS, *CODES, *(set(ACTS) - UNGATED), *policy_file.PLACE_NAMES):
        assert f"`{name}`" in PAGE, name
    told = describe(Request("run", Actor("a")), Facts([Command("x", ())]), "")
    commands = told["commands"]
    assert isinstance(commands, list)
    for key in (*told, *commands[0]):
        assert re.search(rf"\b{key}\b", PAGE.partition("`act` has:")[2]), key
