"""The `commands` limit of an envelope at exec depth (A5): the names of a program."""

from __future__ import annotations

import pytest

from holdfast.core.policy import command_limit, execution, policy_file
from holdfast.core.policy.approved_commands import Cleared
from holdfast.core.policy.command_limit import Limit, Program, names
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import Verdict
from holdfast.core.shellcode.facts import Facts


def covered(listed: str, program: Program) -> bool:
    return Limit("bot", frozenset(listed.split())).covers(names(program))


def real(path: str, argv0: str = "", **more: object) -> Program:
    return Program(path, True, argv0 or path, path)._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listed", "program"),
    [
        ("git", real("/usr/bin/git", "git")),
        ("git", real("/usr/lib/git-core/git", "git")),
        ("awk", real("/usr/bin/awk", "awk", file="/usr/bin/mawk")),
        ("tar", real("/bin/tar", "tar", file="/bin/busybox")),
        ("npm", real("/usr/bin/npm", file="/usr/share/npm/cli.js", by=("/usr/bin/env", "node"))),
        ("node", real("/usr/local/bin/node", "node", file="/opt/node/bin/node")),
        ("bash", real("/usr/bin/bash", "-bash")),
        ("git link", Program("/tmp/link", True, "link", "/usr/bin/git")),
        ("sh", real("/tmp/x", by=("/bin/sh", "-e"), by_file="/usr/bin/dash")),
        ("node", real("/tmp/x.js", by=("/usr/bin/env", "node"), by_file="/usr/bin/env")),
    ],
)
def test_a5_listed(listed: str, program: Program) -> None:
    assert covered(listed, program)
    assert not covered("other", program)


@pytest.mark.parametrize(
    ("listed", "program"),
    [
        ("git", real("/tmp/git", "git")),  # a copy
        ("git", real("/home/u/usr/bin/git", "git")),
        ("git", Program("/usr/bin/git", False, "git", "/home/u/usr/bin/git")),  # behind `..`
        ("git", real("/usr/bin/git", "git", file="/tmp/jail/usr/bin/git")),  # another root
        ("git", real("/usr/bin/git", "git", file=None)),  # not known
        ("git", Program("/tmp/git", True, "git", "/usr/bin/bash")),  # a link
        ("tar", real("/bin/tar", "sh", file="/bin/busybox")),  # argv[0] decides there
        ("tar", real("/bin/tar", "sh")),  # ... also for hard links
        ("tar", Program("/tmp/sh", True, "sh", "/bin/tar")),
        ("git", real("/memfd:git", "git")),
        ("git", real("/usr/bin/git (deleted)", "git")),
        ("git", real("/lib64/ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2")),
        ("git", real("/usr/bin/x/../git", "git")),
        ("sh", real("/tmp/x", by=("/tmp/sh",), by_file="/tmp/sh")),
        ("sh", real("/tmp/x", by=("/tmp/sh",), by_file="/usr/bin/python3")),
        ("node", real("/tmp/x", by=("/usr/bin/env", "-S node"), by_file="/usr/bin/env")),
        ("node", real("/tmp/x", by=("/tmp/env", "node"), by_file="/tmp/env")),
        ("x", real("/tmp/x", by=("/bin/sh",), by_file="/usr/bin/dash")),
    ],
)
def test_a5_not_listed(listed: str, program: Program) -> None:
    assert not covered(listed, program)


def test_a5_every_list_must_have_the_program_and_no_approval_widens_it() -> None:
    request = Request(
        execution.ACT,
        Actor("bot", "", "agent"),
        content=b"/usr/bin/ssh\0host",
        limits=(Limit("bot", frozenset(("git", "ssh"))), Limit("lead", frozenset(("git",)))),
        names=names(real("/usr/bin/ssh", "ssh")),
    )
    rules = policy_file.default()
    decision = execution.decide(
        rules, request, Facts(), Cleared(frozenset(r.name for r in rules.rules), below=True)
    )
    assert (decision.verdict, decision.rule) == (Verdict.REFUSE, command_limit.RULE)
    assert decision.because == (
        "the grant of lead is only for git, not for ssh; to add it: "
        "`holdfast grant lead --rights run --commands ssh`"
    )


def test_a5_a_program_that_was_not_looked_up_is_refused() -> None:
    limits = (Limit("bot", frozenset(("git",))),)
    request = Request(execution.ACT, Actor("bot"), content=b"/usr/bin/git", limits=limits)
    assert execution.decide(policy_file.default(), request, Facts()).verdict is Verdict.REFUSE


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize(
    ("name", "value", "harmless"),
    [
        ("LANG", "C.UTF-8", True),
        ("LC_ALL", "de_DE@euro", True),
        ("LANG", "/tmp/evil", False),
        ("LC_ALL", "../../tmp/evil", False),
        ("LC_ALL", "..", False),
        ("LANG", None, False),
        ("TZ", "Europe/Berlin", True),
        ("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", True),
        ("TZ", ":/tmp/x", False),
        ("TZ", "/tmp/x", False),
        ("TZ", "a/../../x", False),
        ("TERM", "xterm-256color", True),
        ("TERM", "../x", False),
        ("GIT_AUTHOR_NAME", None, True),
        ("GIT_COMMITTER_DATE", "1 day ago\n", True),
        ("GIT_PAGER", "cat", True),
        ("GIT_PAGER", "cat; evil", False),
        ("COLUMNS", "80", True),
        ("COLUMNS", "80\n", False),
        ("GCONV_PATH", "", False),
        ("LANG\n", "C", False),
        ("PATH", "/usr/bin", False),
    ],
)
def test_only_known_variables_are_harmless(name: str, value: str | None, harmless: bool) -> None:
    assert command_limit.is_harmless(name, value) is harmless


def test_a_program_gets_variables_of_the_session_and_harmless_ones() -> None:
    entries = [("PATH", b"/x"), ("HOME", b"/h"), ("GIT_DIR", b".git"), ("A", b"1"), ("A", b"2")]
    given = {("HOME", b"/h"), ("A", b"1")}
    found = command_limit.foreign(entries, lambda name, value: (name, value) in given)
    assert found == ("A",), "the second value of the same name is another variable"
    one = (frozenset({"git"}),)
    strict, loose = Limit("bot", frozenset({"git"})), Limit("ann", frozenset({"git", "python3.12"}))
    assert "variable A" in command_limit.refusal([strict], one, "git", found)
    assert command_limit.refusal([loose], one, "git", found) == ""
    assert "variable A" in command_limit.refusal([loose, strict], one, "git", found)
    assert command_limit.refusal([strict], one, "git") == ""
