"""The policy at exec depth (P4): the same rules, read with the words that the kernel has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.core.policy import execution, policy, policy_file
from holdfast.core.policy.act_facts import facts_of
from holdfast.core.policy.approvals import show
from holdfast.core.policy.approved_commands import NOTHING, Cleared, patterns
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.execution import Index, Program
from holdfast.core.policy.policy import Policy, Verdict
from holdfast.host.policy.shfmt import Parser

PARSER = Parser()
HERE = (1, 17)  # the identity of /srv/app
AGENT, PERSON = Actor("bot", "", "agent"), Actor("ann", "", "human")


def judge(
    argv: list[str],
    actor: Actor = AGENT,
    path: str = "",
    found: Policy | None = None,
    cleared: Cleared = NOTHING,
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
        more.pop("cwd", "/srv/app"),
        "/srv/app",
        "/home/u",
        details={**program.details, **more.pop("details", {})},
        **{"directory": HERE, "environment": (), **more},
    )
    facts = facts_of(request, PARSER)
    assert facts is not None
    return execution.decide(found or policy_file.default(), request, facts, cleared)


@pytest.mark.parametrize(
    ("argv", "verdict", "rule"),
    [
        (["rm", "-rf", "/"], Verdict.REFUSE, "the system is not deleted"),
        (["rm", "-rf", "./logs"], Verdict.ALLOW, ""),
        (["rm", "-rf", "/srv/other"], Verdict.ASK, "deletes stay inside"),
        (["sudo", "ls"], Verdict.ASK, "other accounts are used with approval"),
        (["sh", "-c", "rm -rf /"], Verdict.REFUSE, "the system is not deleted"),
        (["sh", "-c", 'rm -rf "$x"'], Verdict.ALLOW, ""),  # the rm is a separate exec
        (["bash", "./configure"], Verdict.ALLOW, ""),  # the executed file is shown
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


def test_p4_a_subcommand_of_git_is_a_program_too() -> None:
    path = "/usr/lib/git-core/git-clean"
    assert judge(["git-clean", "-f"], path=path).verdict is Verdict.ASK
    assert judge(["git-clean", "-n"], path=path).verdict is Verdict.ALLOW
    assert not Index(policy_file.default()).silent(AGENT, path, ["git-clean"])


def test_p4_people_are_as_free_at_exec_depth_as_at_input_depth() -> None:
    assert judge(["rm", "-rf", "/srv/other"], PERSON).verdict is Verdict.ALLOW
    assert judge(["sudo", "ls"], PERSON).verdict is Verdict.ALLOW
    assert judge(["rm", "-rf", "/"], PERSON).verdict is Verdict.REFUSE


def test_p4_both_the_file_and_its_name_count() -> None:
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
    )  # the program acts on the name of the link
    assert (
        judge(["./rm", "-rf", "/"], path="/tmp/rm").verdict is Verdict.ALLOW
    )  # a separate program
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


def test_p4_the_interpreter_is_judged_with_its_script() -> None:
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
def test_p4_the_index_knows_the_interpreter_of_a_script(by: tuple[str, ...], silent: bool) -> None:
    found = policy_file.parse(
        'version = 1\n[[rule]]\nname = "no rm"\nverdict = "refuse"\nbecause = "x"\n'
        'when = { command = ["rm"] }\n',
        "test",
    )
    assert (
        Index(found).silent_on_script(
            PERSON, by, "/usr/bin/rm" if by[0].endswith("link") else by[0]
        )
        is silent
    )


def cleared(text: str, *rules: str) -> Cleared:
    """The answer to a text that was approved."""
    request = Request("run", AGENT, content=text.encode(), cwd="/srv/app", home="/home/u")
    return Cleared(frozenset(rules), patterns(facts_of(request, PARSER), "/srv/app", HERE))


ASKING = [one.name for one in policy_file.default().rules if one.verdict is Verdict.ASK]
INSIDE = ("deletes stay inside", "writes stay inside")


def test_p4_a_rule_that_was_approved_for_the_act_does_not_ask_again() -> None:
    text = "rm -rf /srv/other; rm -rf /"
    allowed = judge(["rm", "-rf", "/srv/other"], cleared=cleared(text, *INSIDE))
    assert allowed.verdict is Verdict.ALLOW and allowed.covered
    assert (
        judge(["rm", "-rf", "/srv/other"], cleared=cleared(text, INSIDE[0])).verdict is Verdict.ASK
    )
    assert (
        judge(["rm", "-rf", "/"], cleared=cleared(text, "the system is not deleted")).verdict
        is Verdict.REFUSE
    ), "a refusal cannot be approved"


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("rm -rf /srv/other", ["rm", "-rf", "/srv/other"]),
        ("sudo rm -rf /srv/other", ["rm", "-rf", "/srv/other"]),
        ("sudo rm -rf /srv/other", ["sudo", "rm", "-rf", "/srv/other"]),
        ("rm -rf ~/a", ["rm", "-rf", "/home/u/a"]),
        ("rm -rf $x /srv/other", ["rm", "-rf", "/srv/a", "/srv/b", "/srv/other"]),
        ("rm -rf /srv/o*", ["rm", "-rf", "/srv/o1", "/srv/other"]),
        ("ls | xargs rm -rf", ["rm", "-rf", "/srv/other"]),
        ("sh -c 'rm -rf /srv/other'", ["sh", "-c", "rm -rf /srv/other"]),
    ],
)
def test_p4_a_program_of_the_approved_text_is_not_asked_about(text: str, argv: list[str]) -> None:
    assert judge(argv).verdict is Verdict.ASK
    found = judge(argv, cleared=cleared(text, *ASKING))
    assert found.verdict is Verdict.ALLOW and found.covered


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("rm -rf /srv/other", ["rm", "-rf", "/srv/victim"]),
        ("rm -rf /srv/other", ["rm", "-rf", "/srv/other", "/srv/victim"]),
        ("rm -rf /srv/other /srv/b", ["rm", "-rf", "/srv/other"]),
        ("rm -rf /srv/other", ["sudo", "rm", "-rf", "/srv/other"]),
        ("rm -rf /srv/o*", ["rm", "-rf", "/srv/other", "/srv/victim"]),
        ("rm -rf /srv/o*", ["rm", "-rf", "/srv/o/../victim"]),
        ("rm -rf *.log", ["rm", "-rf", "/srv/victim"]),
        ('rm -rf "/srv/o/$x"', ["rm", "-rf", "/srv/o/../victim"]),
        ("rm -rf /srv/other", ["sh", "-c", "rm -rf /srv/other; rm -rf /srv/victim"]),
        ("find /srv/a -delete", ["find", "/srv/b", "-delete"]),
        ("ls", ["rm", "-rf", "/srv/other"]),
    ],
)
def test_p4_another_program_of_an_approved_act_is_asked_about(text: str, argv: list[str]) -> None:
    found = judge(argv, cleared=cleared(text, *ASKING))
    assert found.verdict is Verdict.ASK and not found.covered
    below = cleared(text, *ASKING)._replace(below=True)
    assert judge(argv, cleared=below).verdict is Verdict.ALLOW, "a covered program started it"


@pytest.mark.parametrize(
    ("text", "cwd", "argv", "allowed"),
    [
        ("rm -rf ../b", "/srv/app", ["rm", "-rf", "../b"], True),
        ("rm -rf ../b", "/srv/elsewhere", ["rm", "-rf", "../b"], False),
        ("cd /srv/x && rm -rf ../b", "/srv/x", ["rm", "-rf", "../b"], True),
        ("cd /srv/x && rm -rf ../b", "/srv/app", ["rm", "-rf", "../b"], False),
        ("cd /srv/x; rm -rf ../b", "/srv/app", ["rm", "-rf", "../b"], True),
        ("cd sub && rm -rf ../../b", "/srv/app/sub", ["rm", "-rf", "../../b"], True),
        ('cd "$d" && rm -rf ../b', "/srv/elsewhere", ["rm", "-rf", "../b"], False),
        ("cd - && rm -rf ../b", "/srv/elsewhere", ["rm", "-rf", "../b"], False),
        (". ./env && rm -rf ../b", "/srv/app", ["rm", "-rf", "../b"], True),
        ("f() { rm -rf ../b; }; f", "/srv/app", ["rm", "-rf", "../b"], True),
        ("f() { rm -rf ../b; }; f", "/srv/elsewhere", ["rm", "-rf", "../b"], False),
        ("sh -c 'cd /srv/x && rm -rf ../b'", "/srv/x", ["rm", "-rf", "../b"], True),
        ("sh -c 'cd x && rm -rf ../../b'", "/srv/y", ["sh", "-c", "cd x && rm -rf ../../b"], False),
    ],
)
def test_p4_an_approval_is_for_the_directories_that_the_approver_saw(
    text: str, cwd: str, argv: list[str], allowed: bool
) -> None:
    here = HERE if cwd == "/srv/app" else (1, 18)
    found = judge(argv, cleared=cleared(text, *ASKING), cwd=cwd, directory=here)
    assert judge(argv, cwd=cwd).verdict is Verdict.ASK, "otherwise it proves nothing"
    assert found.verdict is (Verdict.ALLOW if allowed else Verdict.ASK)


@pytest.mark.parametrize(
    ("text", "argv", "changes", "allowed"),
    [
        ("git clean -fdx", ["git", "clean", "-fdx"], (("GIT_DIR", "/srv/b/.git"),), False),
        ("git clean -fdx", ["git", "clean", "-fdx"], (("TERM", "dumb"), ("LC_ALL", "C")), True),
        ("git clean -fdx", ["git", "clean", "-fdx"], (("HOME", None),), False),
        ("git clean -fdx", ["git", "clean", "-fdx"], None, False),
        ("GIT_DIR=b git clean -fdx", ["git", "clean", "-fdx"], (("GIT_DIR", "b"),), True),
        ("GIT_DIR=b git clean -fdx", ["git", "clean", "-fdx"], (("GIT_DIR", "c"),), False),
        ("GIT_DIR= git clean -fdx", ["git", "clean", "-fdx"], (("GIT_DIR", ""),), True),
        ("GIT_DIR=$b git clean -fdx", ["git", "clean", "-fdx"], (("GIT_DIR", "c"),), True),
        ("export A=b; git clean -fdx", ["git", "clean", "-fdx"], (("A", "b"),), True),
        ("export A; git clean -fdx", ["git", "clean", "-fdx"], (("A", "b"),), False),
        ("unset HOME; git clean -fdx", ["git", "clean", "-fdx"], (("HOME", None),), True),
        ("env -i A=b git clean -fdx", ["git", "clean", "-fdx"], (("A", "b"), ("HOME", None)), True),
        ("rm -rf /srv/b", ["rm", "-rf", "/srv/b"], (("A", "b"), ("HOME", None)), True),
        ("rm -rf /srv/b", ["rm", "-rf", "/srv/b"], (("LD_PRELOAD", "/tmp/x.so"),), False),
        ("sudo rm -rf /srv/b", ["sudo", "rm", "-rf", "/srv/b"], (("SUDO_ASKPASS", "/x"),), False),
    ],
)
def test_p4_an_approval_is_for_the_variables_that_the_approver_saw(
    text: str, argv: list[str], changes: Any, allowed: bool
) -> None:
    ask = policy_file.parse(
        """
version = 1
[[rule]]
name = "asked"
verdict = "ask"
because = "it deletes"
when = { command = ["rm", "git clean"] }
""",
        "test",
    )
    found = judge(argv, cleared=cleared(text, "asked"), found=ask, environment=changes)
    assert found.verdict is (Verdict.ALLOW if allowed else Verdict.ASK)


def test_p4_another_directory_of_the_same_name_is_not_the_approved_one() -> None:
    answer = cleared("rm -rf ../b", *ASKING)
    argv = ["rm", "-rf", "../b"]
    assert judge(argv, cleared=answer).verdict is Verdict.ALLOW
    assert judge(argv, cleared=answer, directory=(1, 99)).verdict is Verdict.ASK
    assert judge(argv, cleared=answer, directory=None).verdict is Verdict.ASK, "not known"


def test_p4_a_program_counts_by_its_path_outside_of_the_system() -> None:
    ask = policy_file.parse(
        """
version = 1
[[rule]]
name = "asked"
verdict = "ask"
because = "it may"
when = { act = ["run", "exec"] }
""",
        "test",
    )
    for text, path, verdict in (
        ("rm x", "/usr/bin/rm", Verdict.ALLOW),
        ("rm x", "/tmp/rm", Verdict.ASK),
        ("./rm x", "/srv/app/rm", Verdict.ALLOW),
        ("./rm x", "/srv/rm", Verdict.ASK),
        ("/tmp/rm x", "/tmp/rm", Verdict.ALLOW),
    ):
        argv = [path if "/" in text else "rm", "x"]
        found = judge(argv, path=path, found=ask, cleared=cleared(text, "asked"))
        assert found.verdict is verdict, (text, path)
    script = {execution.SCRIPT: "/bin/bash -e"}
    found = judge(
        ["./rm", "x"],
        path="/srv/app/rm",
        found=ask,
        cleared=cleared("./rm x", "asked"),
        details=script,
    )
    assert found.verdict is Verdict.ALLOW, "its interpreter is the same program"


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
    own = policy_file.parse(OWN)
    assert judge(["factor"], found=own).rule == "named"
    assert judge(["x"], path="/memfd:x (deleted)", found=own).rule == "named"
    assert judge(["ls"], found=own).verdict is Verdict.ALLOW, (
        "without a matching rule an exec is allowed at this depth"
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
def test_p4_the_index_does_not_skip_rules_that_need_the_whole_text(
    when: str, argv: list[str]
) -> None:
    found = policy_file.parse(
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
        ["sh", "-c", "history -w /dev/sda"],
        ["bash", "-c", "h\\isto'ry' -w /dev/sda"],
        ["bash", "-c", "HISTFILE=/dev/sda"],
        ["zsh", "-c", "fc -W /dev/sda"],
        ["time", "-o", "/dev/sda", "true"],
        ["ld-linux.so", "/usr/bin/rm", "-rf", "/"],
    ],
)
@pytest.mark.parametrize("text", ["", OWN])
def test_p4_no_rule_matches_an_exec_that_the_index_skips(
    actor: Actor, argv: list[str], text: str
) -> None:
    found = policy_file.parse(text) if text else policy_file.default()
    if Index(found).silent(actor, f"/usr/bin/{argv[0]}", argv):
        assert judge(argv, actor, found=found, mounted=("/dev/sda",)).verdict is Verdict.ALLOW


def test_p4_the_index_skips_common_programs() -> None:
    index = Index(policy_file.default())
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


def test_p4_an_exec_is_shown_with_its_exact_words() -> None:
    program = Program("/usr/bin/rm", ("rm", "-rf", "a b", "\x1b[2J"))
    text = show(execution.ACT, program.content, program.details)
    assert text.startswith("/usr/bin/rm -rf 'a b' ") and "\x1b" not in text
    other: Mapping[str, str] = Program("/usr/bin/busybox", ("rm", "x")).details
    assert "called rm" in show(execution.ACT, b"/usr/bin/busybox\0x", other)
    misleads = Program("/usr/bin/rm", ("ls; which is /usr/bin/ls", "x"))
    text = show(execution.ACT, misleads.content, misleads.details)
    assert text == "/usr/bin/rm x (called 'ls; which is /usr/bin/ls')"


def test_p4_new_with_a_command_is_judged_with_it() -> None:
    asked = Request("new", AGENT, content=b"rm\0-rf\0/", cwd="/srv", home="/home/u", contained=True)
    assert (
        policy_file.default().decide(asked, facts_of(asked, PARSER)).rule
        == "the system is not deleted"
    )
    plain = Request("new", AGENT, cwd="/srv", contained=False, details={"shell": "/bin/bash"})
    assert (
        facts_of(plain, PARSER) is None
        and policy_file.default().decide(plain, None).rule == "agents work in contained sessions"
    )


def test_the_strictest_decision_of_all_operators_behind_an_exec_counts() -> None:
    program = Program("/usr/bin/rm", ("rm", "-rf", "/srv/other"))
    request = Request(execution.ACT, PERSON, "s", content=program.content, cwd="/srv/app")

    def decide(each: Request) -> policy.Decision:
        facts = facts_of(each, PARSER)
        assert facts is not None
        return execution.decide(policy_file.default(), each, facts)

    judged, decision = execution.for_each(request, [PERSON], decide)
    assert (judged.actor, decision.verdict) == (PERSON, Verdict.ALLOW)
    for actors in ([PERSON, AGENT], [AGENT, PERSON]):
        judged, decision = execution.for_each(request, actors, decide)
        assert (judged.actor, decision.verdict) == (AGENT, Verdict.ASK)
