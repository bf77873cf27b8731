"""policy, approvals, approve, deny: from the command line to the printed text and the exit code."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.policy import policy_file
from holdfast.faces.cli import policy as cli
from holdfast.model.errors import GateRefused, NotFound, PeerFault, Refused, Usage
from tests.support.commands.questions import question

RULES = (
    'version = 1\n[[rule]]\nname = "look"\nverdict = "allow"\nbecause = "looking is fine"\n'
    'when = { command = ["ls", "cat"] }\n'
)
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
        and policy_file.parse(shown).rules[0].name == policy_file.default().rules[0].name
    )
    (home / "policy.toml").write_text(RULES)
    assert run("policy", "show") == 0
    assert RULES in capsys.readouterr().out
    (home / "policy.toml").write_text(
        RULES.replace("version = 1", 'version = 1\nextends = "default"')
    )
    assert run("policy", "show") == 0
    assert (
        len(policy_file.parse(capsys.readouterr().out).rules)
        == len(policy_file.default().rules) + 1
    )
    assert run("policy", "show", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert (
        body["file"] == str(home / "policy.toml")
        and body["rules"][-1]["when"] == {"command": ["ls", "cat"]}
        and len(body["version"]) == 32
    )


@pytest.mark.parametrize(("when", "warned"), [("", 1), ('act = ["exec"]', 1), ('act = ["run"]', 0)])
def test_check_warns_of_a_checkpoint_that_no_program_waits_for(
    home: Path, capsys: pytest.CaptureFixture[str], when: str, warned: int
) -> None:
    """A program that starts inside waits in the kernel, and is not saved before."""
    Path("p.toml").write_text(
        'version = 1\n[[rule]]\nname = "save first"\nverdict = "checkpoint"\nbecause = "x"\n'
        f"when = {{ {when} }}\n"
    )
    assert run("policy", "check", "p.toml", "--json") == 0
    said = json.loads(capsys.readouterr().out)["warnings"]
    assert len(said) == warned and all("'save first'" in one and "(exec)" in one for one in said)
    run("policy", "check", "p.toml")
    assert capsys.readouterr().out.count("saves nothing") == warned


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
        and "no deleting: expected ask, but refused: no rule of the policy covers it: rm x" in out
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


PENDING: dict[str, Any] = {
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
}

BINDING = question(PENDING)["binding"]


class Host:
    """Stands in for a host and remembers the requests."""

    operator = "me"
    away = None
    sock = object()

    def __init__(self, *pending: dict[str, Any]) -> None:
        self.pending, self.asked = list(pending), list[tuple[str, dict[str, Any]]]()

    def request(
        self, op: str, on_event: Any = None, wait_s: Any = None, **fields: Any
    ) -> dict[str, Any]:
        self.asked.append((op, fields))
        if on_event is not None:
            on_event({"event": "approvals", "approvals": self.pending})
            on_event({"event": "other"})
        if op == "get":
            return {"id": fields["session"]}
        if op == "approvals":
            return {"approvals": [p for p in self.pending if fields.get("id") in (None, p["id"])]}
        return {
            "id": fields["id"],
            "complete": fields["id"] == "3f2a",
            "needed": 2,
            "given": ["ann"],
        }

    def ask(self, op: str, told: tuple[Any, Any, Any], fields: dict[str, Any]) -> dict[str, Any]:
        return self.request(op, on_event=told[2], **fields)

    def sign(self, domain: str, message: Any) -> str:
        return f"{domain} {message('me').decode()}"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(question(PENDING), question({**PENDING, "id": "77aa", "text": "end", "needed": 2}))

    def link(args: Namespace) -> Host:
        return made

    monkeypatch.setattr(cli, "link", link)
    return made


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A person that gives these answers, and the questions that were put."""
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
        and out.startswith("3f2a  rm")
        and "sure?" in out
        and "0 of 2 approved" in out
        and "work" in out
        and out.isascii()
    )
    assert (
        run("approvals", "--json") == 0
        and json.loads(capsys.readouterr().out)[0]["binding"] == BINDING
    )
    assert run("approvals", "work", "--follow") == 0 and capsys.readouterr().out.count("3f2a") == 1
    assert host.asked[-1] == ("approvals", {"session": "work", "follow": True})
    host.pending.clear()
    assert run("approvals") == 0 and capsys.readouterr().out == ""


def test_the_list_names_the_authors_of_used_state_and_why_an_approval_would_not_count(
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
        and "your approval would not count: code in it could read your key; lock it" in out
    )


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_a_decision_signs_the_shown_act(
    answer: str, host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = at_a_terminal(monkeypatch, "y", "n")
    assert run(answer, "3f") == 0
    op, fields = host.asked[-1]
    signed = (
        "approval "
        f'{{"answer":"{answer}","approver":"me","binding":"{BINDING}","expires":900,"id":"3f2a","v":1}}'
    )
    assert op == answer and fields == {"id": "3f2a", "binding": BINDING, "signature": signed}
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


def test_p4_that_a_text_can_be_exchanged_is_said_first(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "n")
    host.pending[0]["caution"] = "programs can replace it"
    assert run("approve", "3f") == 1
    assert capsys.readouterr().out.startswith("programs can replace it\n\nbot asks to run")
    assert run("approvals") == 0
    assert capsys.readouterr().out.splitlines()[1] == "    programs can replace it"


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_p4_a_long_question_has_pages_and_only_the_last_one_decides(
    answer: str, host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.pending[0] = question({**PENDING, "text": "rm -r /a; " + "; ".join(["ls"] * 1500)})
    monkeypatch.setattr(cli, "_terminal_size", lambda: (80, 24))
    for early in ("y", "yes", "q", " x"):
        asked = at_a_terminal(monkeypatch, early)
        assert run(answer, "3f") == 1 and host.asked[-1][0] == "approvals", "nothing is decided"
        assert asked == ["Enter shows more; q leaves it waiting "]
        out = capsys.readouterr().out
        assert "rm -r /a" in out and len(out.splitlines()) < 24
    asked = at_a_terminal(monkeypatch, *[""] * 3, "y")
    assert run(answer, "3f") == 0 and host.asked[-1][0] == answer
    assert len(asked) == 4 and answer in asked[-1]
    out = capsys.readouterr().out
    assert out.count("ls") >= 1500 and max(map(len, out.splitlines()[:80])) < 80


def test_p4_blanks_do_not_push_the_act_out_of_sight(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.pending[0] = question(
        {**PENDING, "text": "rm -r /a" + " " * 3000 + "; ls" + " " * 8 + "x"}
    )
    asked = at_a_terminal(monkeypatch, "n")
    assert run("approve", "3f") == 1 and len(asked) == 1
    assert f"  rm -r /a\\u{{20*3000}}; ls{' ' * 8}x\n" in capsys.readouterr().out
    host.pending[0] = question({**PENDING, "text": " " * 300 + "rm \\u{5c}u{20*9}"})
    at_a_terminal(monkeypatch, "n")
    assert run("approve", "3f") == 1
    assert "  \\u{20*300}rm \\u{5c}u{20*9}\n" in capsys.readouterr().out, "no two acts look alike"


def test_p4_a_terminal_that_is_too_small_shows_no_question(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_terminal_size", lambda: (80, 3))
    asked = at_a_terminal(monkeypatch, "y")
    with pytest.raises(Usage, match="too small"):
        run("approve", "3f")
    assert not asked


def forged(**changes: object) -> dict[str, Any]:
    """A question that does not belong to its binding."""
    return {**question(PENDING), **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "rm -r scratch"},
        {"operator": "eve"},
        {"act": "line"},
        {"cwd": "/q"},
        {"session": "s2"},
        {"binding": "00" * 32},
        {"bound": {}},
        {"bound": {**question(PENDING)["bound"], "content": "zz"}},
        {"bound": {**question(PENDING)["bound"], "policy": "v2"}},
        {"bound": {**question(PENDING)["bound"], "state_facts": ["other"]}},
    ],
    ids=str,
)
def test_p4_a_question_that_is_not_what_its_digest_covers_is_not_approved(
    changes: dict[str, Any],
    host: Host,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = at_a_terminal(monkeypatch, "y")
    host.pending[0] = lie = forged(**changes)
    with pytest.raises(PeerFault, match="another act than the one to be signed"):
        run("approve", "3f")
    with pytest.raises(PeerFault):
        run("approve", "3f", "--yes", "--binding", lie["binding"])
    assert not asked and not capsys.readouterr().out, "it is not even shown"
    assert {op for op, _ in host.asked} == {"approvals"}
    assert run("deny", "3f") == 0 and not asked, "a denial is possible all the same"
    said = capsys.readouterr()
    assert "other facts" in said.err and str(lie["text"]) not in said.out


def test_p4_without_the_facts_of_the_digest_nothing_is_approved(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "y")
    host.pending[0] = forged(bound=None)
    with pytest.raises(GateRefused, match="does not send the facts"):
        run("approve", "3f")
    with pytest.raises(GateRefused, match="does not send the facts"):
        run("approve", "3f", "--yes", "--binding", BINDING)
    assert run("deny", "3f") == 0 and host.asked[-1][0] == "deny", "a denial needs no facts"


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_scripts_name_the_binding_they_have_seen_to_approve(
    answer: str, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    for odd in ((), ("--yes",), ("--json",)):
        if answer == "deny":
            assert run(answer, "3f", *odd) == 0
            continue
        with pytest.raises(Usage, match=r"binding|terminal"):
            run(answer, "3f", *odd)
    capsys.readouterr()
    with pytest.raises(Refused, match="not the one that you have seen"):
        run(answer, "3f", "--yes", "--binding", "d2")
    assert run(answer, "77aa", "--yes", "--binding", host.pending[1]["binding"]) == 0
    assert ("1 more must approve it" in capsys.readouterr().out) is (answer == "approve")
    assert (
        run(answer, "77aa", "--yes", "--binding", host.pending[1]["binding"], "--json") == 0
        and json.loads(capsys.readouterr().out)["id"] == "77aa"
    )


def test_terminal_sequences_are_escaped_here_too(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "n")
    host.pending[:] = [
        {**PENDING, "text": "rm \x1b[2J\u202e \u0430", "cwd": None, "given": ["x\ny"]}
    ]
    assert run("deny", "3f") == 1
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
            run("approve", id, "--yes", "--binding", BINDING)
    assert [op for op, _ in host.asked] == ["approvals", "approvals"]
