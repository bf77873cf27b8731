"""Texts that only call programs (A5)."""

from __future__ import annotations

import pytest

from holdfast.core.policy.act_facts import programs
from holdfast.core.shellcode.facts import Facts, Surroundings, analyse
from holdfast.host.policy.shfmt import Parser

PARSER = Parser()


def facts(text: str, shell: str = "bash") -> Facts:
    return analyse(text, PARSER, Surroundings(cwd="/w", home="/h", shell=shell))


COMPUTES = [
    "echo $(( $(cat notes) ))",
    "echo $[ $(cat notes) ]",
    "(( $(cat notes) )); ls",
    "(( $(git log -1 --format='a%x5b%x24(rm -rf v)%x5d') )); ls",
    'let "$(cat notes)"',
    "let x=$(cat notes)",
    "for ((;$(cat notes);)); do ls; done",
    '[[ 1 -eq "$(cat notes)" ]] || ls',
    "[[ `cat notes` -lt 1 ]]",
    '[[ -v "$(cat notes)" ]]; ls',
    "echo ${x[$(cat notes)]}",
    "echo ${x:$(cat notes)}",
    "echo ${x[@]:0:$(cat notes)}",
    "x[$(cat notes)]=1",
    "x=([$(cat notes)]=1)",
    "case $(( $(<notes) )) in 1) ls;; esac",
    "(( $(wc -l notes) ))",
    "(( $(wc -l < a; cat notes) ))",
    "(( $(date +%Z) ))",
    "bash -c 'echo $(( $(cat notes) ))'",
]


@pytest.mark.parametrize(
    "text",
    [
        *COMPUTES,
        "git log $((x + 1))",
        "git log ${x:-$y}",
        "git log ${!x}",
        "[[ x -eq 1 ]] || git log",
        "git log | while git log; do git log; done",
        'test -v "$x"; git log',
        'printf -v "$x" git',
    ],
)
def test_a5_a_grant_for_certain_commands_covers_no_arithmetic(text: str) -> None:
    assert programs(facts(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        'git log -1 "$x" $(git rev-parse HEAD) | sort > /dev/null 2>&1; (git status) & true',
        "if git diff --quiet; then git status; else { git log; }; fi # done",
        "cat <<E\nhello\nE",
        "LC_ALL=C git log *.txt ~/x \\\n --stat && ! git diff",
        'echo "$x" && time git log',
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a5_a_grant_for_certain_commands_covers_calls(text: str, shell: str) -> None:
    assert programs(facts(text, shell)) is not None
