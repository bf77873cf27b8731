"""The policy at exec depth (P4): the same rules, read with the words that the kernel has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.core import execution, policy
from holdfast.core.conditions import Actor, Request
from holdfast.core.execution import Index, Program
from holdfast.core.gate import facts_of, show
from holdfast.core.policy import Policy, Verdict
from holdfast.host.parse import Parser

PARSER = Parser()
AGENT, PERSON = Actor("bot", "", "agent"), Actor("ann", "", "human")


def judge(
    argv: list[str],
    actor: Actor = AGENT,
    path: str = "",
    found: Policy | None = None,
    passed: frozenset[str] = frozenset(),
    unread: str = "",
    **more: Any,
) -> policy.Decision:
    program = Program(path or f"/usr/bin/{argv[0]}", tuple(argv), unread)
    request = Request(
        execution.ACT,
        actor,
        "s",
        "s",
        1,
        program.content,
        "/srv/app",
        "/srv/app",
        "/home/u",
        details={**program.details, **more.pop("details", {})},
        **more,
    )
    facts = facts_of(request, PARSER)
    assert facts is not None
    return execution.decide(found or policy.default(), request, facts, passed)


@pytest.mark.parametrize(
    ("argv", "verdict", "rule"),
    [
        (["rm", "-rf", "/"], Verdict.REFUSE, "the system is not deleted"),
        (["rm", "-rf", "./logs"], Verdict.ALLOW, ""),
        (["rm", "-rf", "/srv/other"], Verdict.ASK, "deletes stay inside"),
        (["sudo", "ls"], Verdict.ASK, "other accounts are used with approval"),
        (["sh", "-c", "rm -rf /"], Verdict.REFUSE, "the system is not deleted"),
        (["sh", "-c", 'rm -rf "$x"'], Verdict.ALLOW, ""),  # its rm is an exec of its own
        (["bash", "./configure"], Verdict.ALLOW, ""),  # what it executes is shown
        (["python3", "-c", "print(1)"], Verdict.ALLOW, ""),
        (["xargs", "rm", "-rf"], Verdict.ALLOW, ""),
        (["cc1", "-O2", "x.c", "-o", "/tmp/x.s"], Verdict.ALLOW, ""),
        (["env", "A=1", "rm", "-rf", "/"], Verdict.REFUSE, "the system is not deleted"),
        (["ssh-add", "-l"], Verdict.ASK, "tools that give away credentials"),
        (["cat", "/home/u/.ssh/id_ed25519"], Verdict.ASK, "credentials are touched with approval"),
    ],
)
def test_p4_rules_of_commands_speak_of_execs(argv: list[str], verdict: Verdict, rule: str) -> None:
    found = judge(argv)
    assert (found.verdict, found.rule) == (verdict, rule)


def test_p4_people_are_as_free_as_when_they_type() -> None:
    assert judge(["rm", "-rf", "/srv/other"], PERSON).verdict is Verdict.ALLOW
    assert judge(["sudo", "ls"], PERSON).verdict is Verdict.ALLOW
    assert judge(["rm", "-rf", "/"], PERSON).verdict is Verdict.REFUSE


def test_p4_the_file_counts_and_what_it_is_called_too() -> None:
    assert judge(["ls", "-rf", "/"], path="/usr/bin/rm").verdict is Verdict.REFUSE
    assert judge(["rm", "-rf", "/"], path="/usr/bin/busybox").verdict is Verdict.REFUSE
    assert judge(["x", "-rf", "/"], path="/tmp/x").verdict is Verdict.ALLOW
    assert (
        judge(["x", "-rf", "/"], path="/tmp/x", details={execution.FILE: "/usr/bin/rm"}).verdict
        is Verdict.REFUSE
    )
    assert (
        judge(
            ["./rm", "-rf", "/"], path="/tmp/rm", details={execution.FILE: "/usr/bin/busybox"}
        ).verdict
        is Verdict.REFUSE
    )  # it goes by the name of the link
    assert (
        judge(["./rm", "-rf", "/"], path="/tmp/rm").verdict is Verdict.ALLOW
    )  # a program of its own
    assert (
        judge(
            ["./rm", "-rf", "/"],
            path="/tmp/rm",
            details={
                execution.FILE: "/srv/app/x.sh",
                execution.SCRIPT: "/bin/sh",
                execution.SCRIPT_FILE: "/usr/bin/dash",
            },
        ).verdict
        is Verdict.ALLOW
    )
    assert (
        judge(
            ["ld.so", "--library-path", "/lib", "/usr/bin/rm", "-rf", "/"],
            path="/lib64/ld-linux-x86-64.so.2",
        ).verdict
        is Verdict.REFUSE
    )
    assert judge(["-bash"], path="/usr/bin/bash").verdict is Verdict.ALLOW


def test_p4_a_word_that_is_no_text_hides_nothing() -> None:
    for odd in ("\udcff", "a\udcc3(", "\x01", "\x1b[31m", "a\nb", "\u202e"):
        assert judge(["rm", "-rf", "/", odd]).verdict is Verdict.REFUSE, ascii(odd)
        assert judge([odd, "-rf", "/"], path="/usr/bin/rm").verdict is Verdict.REFUSE, ascii(odd)
        assert judge(["ls", odd]).verdict is Verdict.ALLOW, ascii(odd)


def test_p4_what_runs_a_script_is_judged_with_it() -> None:
    for by in (
        {execution.SCRIPT: "/usr/bin/rm -rf"},
        {execution.SCRIPT: "/srv/app/link -rf", execution.SCRIPT_FILE: "/usr/bin/rm"},
    ):
        assert judge(["x", "/"], path="/srv/app/x", details=by).verdict is Verdict.REFUSE, by
        assert (
            judge(["x", "/"], path="/srv/app/x", details=by, unread="too many").verdict
            is Verdict.REFUSE
        ), by
    for fine in ("/bin/sh -e", "/usr/bin/env python3", "/usr/bin/python3 -I"):
        assert (
            judge(
                ["x", "/"],
                path="/srv/app/x",
                details={execution.SCRIPT: fine, execution.SCRIPT_FILE: fine.split()[0]},
            ).verdict
            is Verdict.ALLOW
        ), fine
    said = execution.show(b"/srv/app/x\0/", {execution.SCRIPT: "/usr/bin/rm -rf"})
    assert said == "/srv/app/x / (a script that /usr/bin/rm -rf runs)"


@pytest.mark.parametrize(
    ("by", "silent"),
    [
        (("/bin/sh",), True),
        (("/usr/bin/env", "python3"), True),
        (("/usr/bin/rm", "-rf"), False),
        (("/usr/bin/env", "rm"), False),
        (("/usr/bin/env", "-S", "rm -rf"), False),
        (("/srv/app/link",), False),
    ],
)
def test_p4_the_index_knows_what_runs_a_script(by: tuple[str, ...], silent: bool) -> None:
    found = policy.parse(
        'version = 1\n[[rule]]\nname = "no rm"\nverdict = "refuse"\nbecause = "x"\nwhen = { command = ["rm"] }\n',
        "test",
    )
    assert (
        Index(found).silent_on_script(
            PERSON, by, "/usr/bin/rm" if by[0].endswith("link") else by[0]
        )
        is silent
    )


def test_p4_a_rule_that_was_approved_for_the_act_does_not_ask_again() -> None:
    assert (
        judge(
            ["rm", "-rf", "/srv/other"],
            passed=frozenset(("deletes stay inside", "writes stay inside")),
        ).verdict
        is Verdict.ALLOW
    )
    assert (
        judge(["rm", "-rf", "/srv/other"], passed=frozenset(("deletes stay inside",))).verdict
        is Verdict.ASK
    )
    assert (
        judge(["rm", "-rf", "/"], passed=frozenset(("the system is not deleted",))).verdict
        is Verdict.REFUSE
    ), "what refuses cannot be approved"


def test_p4_words_that_were_not_read_are_asked_about_or_refused() -> None:
    assert judge(["ls"], unread="too many").verdict is Verdict.ASK
    assert judge(["rm"], PERSON, unread="too many").verdict is Verdict.REFUSE
    assert judge(["ls"], PERSON, unread="too many").verdict is Verdict.ALLOW
    assert (
        judge(["?"], PERSON, path="?", unread="its memory cannot be read").verdict is Verdict.REFUSE
    )


OWN = """version = 1
[[rule]]
name = "named"
verdict = "refuse"
because = "so"
when = { act = ["exec"], command = ["/memfd:*", "factor"] }
[[rule]]
name = "nobody's"
verdict = "ask"
because = "nobody is known to have caused it"
who = { operators = ["unknown"] }
when = { act = ["exec"] }
[[rule]]
name = "other acts"
verdict = "refuse"
because = "so"
when = { act = ["run"] }
"""


def test_p4_rules_that_name_the_act() -> None:
    own = policy.parse(OWN)
    assert judge(["factor"], found=own).rule == "named"
    assert judge(["x"], path="/memfd:x (deleted)", found=own).rule == "named"
    assert judge(["ls"], found=own).verdict is Verdict.ALLOW, (
        "what no rule speaks of is allowed at this depth"
    )
    assert judge(["ls"], Actor("unknown", "", "agent"), found=own).rule == "nobody's"
    assert judge(["ls"], found=policy.broken("why", "file")).verdict is Verdict.REFUSE


@pytest.mark.parametrize(
    ("when", "argv"),
    [
        ("{ background = false }", ["true"]),
        ('{ command = ["rm"], via = ["sh"] }', ["sh", "-c", "rm x"]),
        ('{ command = ["rm"], background = true }', ["sh", "-c", "rm x &"]),
        ('{ writes_under = ["/etc"], assigns = ["X"] }', ["sh", "-c", "X=1 cp a /etc/b"]),
    ],
)
def test_p4_the_index_is_not_silent_on_what_only_the_whole_text_tells(
    when: str, argv: list[str]
) -> None:
    found = policy.parse(
        f'version = 1\n[[rule]]\nname = "r"\nverdict = "refuse"\nbecause = "b"\nwhen = {when}\n'
    )
    assert judge(argv, found=found).rule == "r", "otherwise it proves nothing"
    assert not Index(found).silent(AGENT, f"/usr/bin/{argv[0]}", argv)


@pytest.mark.parametrize("actor", [AGENT, PERSON, Actor("unknown", "", "agent")])
@pytest.mark.parametrize(
    "argv",
    [
        ["rm", "-rf", "/"],
        ["sh", "-c", "echo x > /dev/sda"],
        ["dd", "of=/dev/sda"],
        ["true"],
        ["env", "rm", "-rf", "/"],
        ["find", "/", "-delete"],
        ["x", "-rf", "/"],
        ["sh", "-c", "kill -9 -1"],
        ["sudo", "x"],
        ["chmod", "-R", "0", "/"],
        ["ld-linux.so", "/usr/bin/rm", "-rf", "/"],
    ],
)
@pytest.mark.parametrize("text", ["", OWN])
def test_p4_what_the_index_lets_by_no_rule_speaks_of(
    actor: Actor, argv: list[str], text: str
) -> None:
    found = policy.parse(text) if text else policy.default()
    if Index(found).silent(actor, f"/usr/bin/{argv[0]}", argv):
        assert judge(argv, actor, found=found, mounted=("/dev/sda",)).verdict is Verdict.ALLOW


def test_p4_the_index_lets_by_what_people_mostly_start() -> None:
    index = Index(policy.default())
    for path, argv in (
        ("/usr/bin/gcc", ["gcc", "x.c"]),
        ("/usr/lib/gcc/cc1", ["cc1"]),
        ("/bin/sh", ["sh", "-c", "gcc x.c"]),
        ("/usr/bin/true", ["true"]),
    ):
        assert index.silent(PERSON, path, argv)
    assert not index.silent(PERSON, "/usr/bin/rm", ["rm"]) and not index.silent(
        PERSON, "/bin/sh", ["sh", "-c", "echo > x"]
    )
    assert not Index(policy.broken("why", "file")).silent(PERSON, "/usr/bin/true", ["true"])


def test_p4_it_is_shown_with_its_exact_words() -> None:
    program = Program("/usr/bin/rm", ("rm", "-rf", "a b", "\x1b[2J"))
    text = show(Request(execution.ACT, AGENT, content=program.content, details=program.details))
    assert text.startswith("/usr/bin/rm -rf 'a b' ") and "\x1b" not in text
    other: Mapping[str, str] = Program("/usr/bin/busybox", ("rm", "x")).details
    assert "called rm" in show(
        Request(execution.ACT, AGENT, content=b"/usr/bin/busybox\0x", details=other)
    )


def test_p4_new_with_a_command_is_judged_with_it() -> None:
    asked = Request("new", AGENT, content=b"rm\0-rf\0/", cwd="/srv", home="/home/u", contained=True)
    assert (
        policy.default().decide(asked, facts_of(asked, PARSER)).rule == "the system is not deleted"
    )
    plain = Request("new", AGENT, cwd="/srv", contained=False, details={"shell": "/bin/bash"})
    assert (
        facts_of(plain, PARSER) is None
        and policy.default().decide(plain, None).rule == "agents work in contained sessions"
    )
