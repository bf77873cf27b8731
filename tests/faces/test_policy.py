"""policy, approvals, approve, deny: from the words of the command line to what is printed and the exit code."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import policy as policies
from holdfast.faces.cli import policy as cli
from holdfast.model.errors import NotFound, Refused, Usage

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


def test_show_prints_a_file_that_means_the_same(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("policy", "show") == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("# in force: default")
        and policies.parse(shown).rules[0].name == policies.default().rules[0].name
    )
    (home / "policy.toml").write_text(RULES)
    assert run("policy", "show") == 0
    assert RULES in capsys.readouterr().out
    (home / "policy.toml").write_text(
        RULES.replace("version = 1", 'version = 1\nextends = "default"')
    )
    assert run("policy", "show") == 0
    assert len(policies.parse(capsys.readouterr().out).rules) == len(policies.default().rules) + 1
    assert run("policy", "show", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert (
        body["file"] == str(home / "policy.toml")
        and body["rules"][-1]["when"] == {"command": ["ls", "cat"]}
        and len(body["version"]) == 32
    )


def test_check(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text(RULES)
    assert run("policy", "check", "p.toml") == 0 and "1 rules" in capsys.readouterr().out
    assert (
        run("policy", "check", "p.toml", "--json") == 0
        and json.loads(capsys.readouterr().out)["ok"] is True
    )
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
    Path("examples.toml").write_text(
        EXAMPLES.replace('expect = "refuse"', 'expect = "ask"').replace(
            'rule = "look"', 'rule = "other"'
        )
    )
    assert run("policy", "test", "examples.toml") == 1
    out = capsys.readouterr().out.splitlines()
    assert (
        out[-1] == "1 of 4 examples as expected"
        and "no deleting: expected ask, but refused: no rule of the policy speaks of it: rm x"
        in out
        and out[0].startswith("ls -l: expected allow, but allowed by the rule 'look'")
    )
    assert run("policy", "test", "examples.toml", "--json") == 1
    assert [r["ok"] for r in json.loads(capsys.readouterr().out)] == [False, False, True, False]
    Path("strict.toml").write_text("version = 1\n")
    assert run("policy", "test", "examples.toml", "--policy", "strict.toml") == 1


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "colour = 1\n",
        "",
        '[[example]]\ntext = "ls"\n',
        '[[example]]\ntext = "ls"\nexpect = "maybe"\n',
        '[[example]]\nexpect = "allow"\n',
        '[[example]]\ntext = 3\nexpect = "allow"\n',
        '[[example]]\ntext = "ls"\ncolour = 1\nexpect = "allow"\n',
        "defaults = 3\n",
        'policy = 3\n[[example]]\ntext = "a"\nexpect = "ask"\n',
        '[defaults]\nexpect = "ask"\n[[example]]\ntext = "a"\nexpect = "ask"\n',
        "example = [3]\n",
        '[[example]]\ntext = "a"\nargv = ["b"]\nexpect = "ask"\n',
    ],
)
def test_bad_examples_are_usage_errors(text: str) -> None:
    Path("examples.toml").write_text(text)
    with pytest.raises(Usage) as caught:
        run("policy", "test", "examples.toml")
    assert caught.value.message.startswith("examples.toml")


def test_try_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policy", "try", "rm -rf /") == 4
    assert capsys.readouterr().out.startswith("refused by the rule 'the system is not deleted'")
    assert run(
        "policy", "try", "rm -rf ./x", "--cwd", "/srv/app"
    ) == 0 and capsys.readouterr().out.startswith("allowed")
    assert run(
        "policy", "try", "eval x", "--kind", "human"
    ) == 0 and capsys.readouterr().out.startswith("allowed")
    assert (
        run("policy", "try", "eval x", "--json") == 0
        and json.loads(capsys.readouterr().out)["verdict"] == "ask"
    )
    for act in ("try", "test"):
        with pytest.raises(Usage):
            run("policy", act)


PENDING = {
    "id": "3f2a",
    "operator": "bot",
    "session": "s1",
    "name": "work",
    "act": "run",
    "text": "rm \\u{202e}x",
    "whole": True,
    "cwd": "/p",
    "because": "sure?",
    "rule": "r",
    "layout": "plain",
    "counts": True,
    "why_not": None,
    "recover": None,
    "state": "waiting",
    "asked": 300.0,
    "expires": 900,
    "expires_in": 90.0,
    "needed": 1,
    "given": [],
    "binding": "d1",
}


class Host:
    """Stands in for a host: remembers what it was asked."""

    operator = "me"

    def __init__(self, *pending: dict[str, Any]) -> None:
        self.pending, self.asked = list(pending), list[tuple[str, dict[str, Any]]]()

    def request(
        self, op: str, on_event: Any = None, wait_s: Any = None, **fields: Any
    ) -> dict[str, Any]:
        self.asked.append((op, fields))
        if on_event is not None:
            on_event({"event": "approvals", "approvals": self.pending})
            on_event({"event": "other"})
        if op == "approvals":
            return {"approvals": [p for p in self.pending if fields.get("id") in (None, p["id"])]}
        return {
            "id": fields["id"],
            "complete": fields["id"] == "3f2a",
            "needed": 2,
            "given": ["ann"],
        }

    def sign(self, domain: str, message: Any) -> str:
        return f"{domain} {message('me').decode()}"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(PENDING, {**PENDING, "id": "77aa", "text": "end", "needed": 2})

    def link(args: Namespace) -> Host:
        return made

    monkeypatch.setattr(cli, "link", link)
    return made


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A person who answers so, and what they were asked."""
    asked, left = list[str](), list(answers)

    def reply(question: str) -> str:
        asked.append(question)
        if not left:
            raise EOFError
        return left.pop(0)

    monkeypatch.setattr("builtins.input", reply)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    return asked


def test_approvals_are_listed_escaped(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("approvals") == 0
    out = capsys.readouterr().out
    assert (
        "3f2a" in out
        and "rm \\u{202e}x" in out
        and "sure?" in out
        and "0 of 2 approved" in out
        and "work" in out
        and out.isascii()
    )
    assert (
        run("approvals", "--json") == 0
        and json.loads(capsys.readouterr().out)[0]["binding"] == "d1"
    )
    assert run("approvals", "work", "--follow") == 0 and capsys.readouterr().out.count("3f2a") == 1
    assert host.asked[-1] == ("approvals", {"session": "work", "follow": True})
    host.pending.clear()
    assert run("approvals") == 0 and capsys.readouterr().out == ""


def test_the_list_says_on_whose_state_it_runs_and_why_an_approval_would_not_count(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.pending[0] = {
        **host.pending[0],
        "shaped": ["bob's alias gs"],
        "counts": False,
        "why_not": "code in it could read your key",
        "recover": "lock it",
    }
    assert run("approvals") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "it runs on bob's alias gs" in out
        and "yours would not count: code in it could read your key; lock it" in out
    )


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_deciding_signs_what_was_shown(
    answer: str, host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = at_a_terminal(monkeypatch, "y", "n")
    assert run(answer, "3f") == 0
    op, fields = host.asked[-1]
    signed = f'approval {{"answer":"{answer}","approver":"me","binding":"d1","expires":900,"id":"3f2a","v":1}}'
    assert op == answer and fields == {"id": "3f2a", "binding": "d1", "signature": signed}
    out = capsys.readouterr().out
    assert all(
        part in out
        for part in (
            "bot asks to run on session work (plain), in /p",
            "  rm \\u{202e}x\n",
            "because sure? (rule 'r')",
            "1 of 1 still needed",
        )
    )
    assert answer in asked[0]
    assert run(answer, "3f") == 1 and run(answer, "3f") == 1 and host.asked[-1][0] == "approvals", (
        "a no, or no answer, decides nothing"
    )


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_scripts_say_what_they_have_seen(
    answer: str, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    for odd in ((), ("--yes",), ("--json",)):
        with pytest.raises(Usage, match=r"binding|terminal"):
            run(answer, "3f", *odd)
    with pytest.raises(Refused, match="not what you have seen"):
        run(answer, "3f", "--yes", "--binding", "d2")
    assert run(answer, "77aa", "--yes", "--binding", "d1") == 0
    assert ("1 more must approve it" in capsys.readouterr().out) is (answer == "approve")
    assert (
        run(answer, "77aa", "--yes", "--binding", "d1", "--json") == 0
        and json.loads(capsys.readouterr().out)["id"] == "77aa"
    )


def test_what_could_act_on_a_terminal_is_escaped_here_too(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "n")
    host.pending[:] = [
        {**PENDING, "text": "rm \x1b[2J\u202e \u0430", "cwd": None, "given": ["x\ny"]}
    ]
    assert run("approve", "3f") == 1
    out = capsys.readouterr().out
    assert (
        "\x1b" not in out
        and "\u202e" not in out
        and "rm \\x1b[2J\\u202e" in out
        and "other alphabets" in out
        and "not known" in out
    )


def test_an_unclear_id_decides_nothing(host: Host) -> None:
    for id in ("", "zz"):
        with pytest.raises(NotFound):
            run("approve", id, "--yes", "--binding", "d1")
    assert [op for op, _ in host.asked] == ["approvals", "approvals"]
