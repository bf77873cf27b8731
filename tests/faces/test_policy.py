"""policy, approvals, approve, deny: from the words of the command line to what is printed and the exit code."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import policy as policies
from holdfast.faces.cli import policy as cli
from holdfast.model.errors import NotFound, Usage

RULES = 'version = 1\n[[rule]]\nname = "look"\nverdict = "allow"\nbecause = "looking is fine"\nwhen = { command = ["ls", "cat"] }\n'
EXAMPLES = """
policy = "policy.toml"
[defaults]
kind = "agent"
cwd = "/srv/app"
[[example]]
text = "ls -l"
expect = "allow"
rule = "look"
[[example]]
name = "no deleting"
text = "rm x"
expect = "refuse"
[[example]]
argv = ["cat", "a b"]
expect = "allow"
[[example]]
act = "end"
expect = "refuse"
"""


def run(command: str, *words: str) -> int:
    parser = ArgumentParser()
    getattr(cli, f"{command}_parser")(parser)
    args = parser.parse_args(words)
    args.operator = None
    code: int = getattr(cli, command)(args)
    return code


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_show_prints_a_file_that_means_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policy", "show") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# in force: default") and policies.parse(shown).rules[0].name == policies.default().rules[0].name
    (home / "policy.toml").write_text(RULES)
    assert run("policy", "show") == 0
    assert RULES in capsys.readouterr().out
    (home / "policy.toml").write_text(RULES.replace("version = 1", 'version = 1\nextends = "default"'))
    assert run("policy", "show") == 0
    assert len(policies.parse(capsys.readouterr().out).rules) == len(policies.default().rules) + 1
    assert run("policy", "show", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["file"] == str(home / "policy.toml") and body["rules"][-1]["when"] == {"command": ["ls", "cat"]} and len(body["version"]) == 32


def test_check(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text(RULES)
    assert run("policy", "check", "p.toml") == 0 and "1 rules" in capsys.readouterr().out
    assert run("policy", "check", "p.toml", "--json") == 0 and json.loads(capsys.readouterr().out)["ok"] is True
    Path("p.toml").write_text(RULES + "[[rule]]\ncolour = 1\n")
    with pytest.raises(Usage) as caught:
        run("policy", "check", "p.toml")
    assert caught.value.message.startswith("p.toml:8: unknown key 'colour'")
    with pytest.raises(NotFound):
        run("policy", "check", "none.toml")
    Path("p.toml").write_bytes(b"\xff")
    with pytest.raises(Usage):
        run("policy", "check", "p.toml")


def test_examples_as_expected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.toml").write_text(RULES)
    Path("examples.toml").write_text(EXAMPLES)
    assert run("policy", "test", "examples.toml") == 0
    assert capsys.readouterr().out == "4 of 4 examples as expected\n"


def test_examples_that_differ_are_told_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.toml").write_text(RULES)
    Path("examples.toml").write_text(EXAMPLES.replace('expect = "refuse"', 'expect = "ask"').replace('rule = "look"', 'rule = "other"'))
    assert run("policy", "test", "examples.toml") == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "1 of 4 examples as expected" and "no deleting: expected ask, but refused: no rule of the policy speaks of it: rm x" in out and out[0].startswith("ls -l: expected allow, but allowed by the rule 'look'")
    assert run("policy", "test", "examples.toml", "--json") == 1
    assert [r["ok"] for r in json.loads(capsys.readouterr().out)] == [False, False, True, False]
    Path("strict.toml").write_text("version = 1\n")
    assert run("policy", "test", "examples.toml", "--policy", "strict.toml") == 1


@pytest.mark.parametrize(
    "text",
    ["x", "colour = 1\n", "", '[[example]]\ntext = "ls"\n', '[[example]]\ntext = "ls"\nexpect = "maybe"\n', '[[example]]\nexpect = "allow"\n', '[[example]]\ntext = 3\nexpect = "allow"\n',
     '[[example]]\ntext = "ls"\ncolour = 1\nexpect = "allow"\n', "defaults = 3\n", 'policy = 3\n[[example]]\ntext = "a"\nexpect = "ask"\n', '[defaults]\nexpect = "ask"\n[[example]]\ntext = "a"\nexpect = "ask"\n',
     'example = [3]\n', '[[example]]\ntext = "a"\nargv = ["b"]\nexpect = "ask"\n'],
)
def test_bad_examples_are_usage_errors(text: str) -> None:
    Path("examples.toml").write_text(text)
    with pytest.raises(Usage) as caught:
        run("policy", "test", "examples.toml")
    assert caught.value.message.startswith("examples.toml")


def test_try_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policy", "try", "rm -rf /") == 4
    assert capsys.readouterr().out.startswith("refused by the rule 'the system is not deleted'")
    assert run("policy", "try", "rm -rf ./x", "--cwd", "/srv/app") == 0 and capsys.readouterr().out.startswith("allowed")
    assert run("policy", "try", "eval x", "--kind", "human") == 0 and capsys.readouterr().out.startswith("allowed")
    assert run("policy", "try", "eval x", "--json") == 0 and json.loads(capsys.readouterr().out)["verdict"] == "ask"
    for act in ("try", "test"):
        with pytest.raises(Usage):
            run("policy", act)


PENDING = {"id": "3f2a", "operator": "bot", "session": "work", "act": "run", "text": "rm \\u{202e}x", "cwd": "/p", "because": "sure?", "rule": "r", "expires_in": 90.0, "needed": 1, "given": [], "binding": "d1"}


class Host:
    """Stands in for a host: remembers what it was asked."""

    def __init__(self, *pending: dict[str, Any]) -> None:
        self.pending, self.asked = list(pending), list[tuple[str, dict[str, Any]]]()

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        self.asked.append((op, fields))
        return {"approvals": self.pending} if op == "approvals" else {"id": fields["id"], "complete": True}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(PENDING, {**PENDING, "id": "77aa", "text": "end", "needed": 2})

    def link(args: Namespace) -> Host:
        return made

    monkeypatch.setattr(cli, "link", link)
    return made


def test_approvals_are_listed_escaped(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("approvals") == 0
    out = capsys.readouterr().out
    assert "3f2a" in out and "rm \\u{202e}x" in out and "sure?" in out and "0/2" in out and out.isascii()
    assert run("approvals", "--json") == 0 and json.loads(capsys.readouterr().out)[0]["binding"] == "d1"
    host.pending.clear()
    assert run("approvals") == 0 and capsys.readouterr().out == ""


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_deciding_names_what_was_shown(answer: str, host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(answer, "3f") == 0
    assert host.asked[-1] == (answer, {"id": "3f2a", "binding": "d1"})
    assert "bot in /p: rm \\u{202e}x" in capsys.readouterr().out
    assert run(answer, "77aa", "--json") == 0 and json.loads(capsys.readouterr().out)["id"] == "77aa"


def test_an_unclear_id_decides_nothing(host: Host) -> None:
    for id in ("", "zz"):
        with pytest.raises(NotFound):
            run("approve", id)
    assert [op for op, _ in host.asked] == ["approvals", "approvals"]
