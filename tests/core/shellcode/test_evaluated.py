"""Values that a shell evaluates: unknown text there is unknown code, numbers are not."""

from __future__ import annotations

import pytest

from holdfast.core.shellcode.facts import Surroundings, analyse
from holdfast.host.policy.shfmt import Parser

PARSE = Parser(wait_s=60.0)


def codes(text: str, shell: str = "bash") -> set[str]:
    found = analyse(text, PARSE, Surroundings("/srv/project", "/home/ann", shell))
    return {r.code for r in found.unresolvable}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    "text",
    [
        "(( $(cat n) ))",
        "(( x ))",
        "(( x++ ))",
        "(( x += 1 ))",
        "(( a[x] = 1 ))",
        "echo $((x))",
        "echo $((1 + $x))",
        'echo "$(( $(cat n) ))"',
        "cat <<E\n$((x))\nE",
        "echo ${a[x]}",
        "echo ${a[$x]}",
        'echo "${#a[$x]}"',
        "a[$x]=1",
        "a=([$x]=1)",
        "echo ${x:$y}",
        "echo ${x:1:$y}",
        "[[ $x -eq 1 ]]",
        "[[ 1 -lt x ]]",
        "[[ -v $x ]]",
        "[[ a = b && -v a[x] ]]",
        "for ((i=0; i<n; i++)); do :; done",
        "let x=y",
        'let "$x"',
        "builtin let $x",
        "typeset -i x=$y",
        "command typeset -i x",
        'printf -v "$x" 1',
        'printf -v "a[$x]" 1',
        'printf "$x" 1',
        'test -v "$x"',
        'test "$x" "$y"',
        "[ $x ]",
        "RANDOM=$(cat n)",
        "RANDOM=x",
        "for RANDOM in $x; do :; done",
        "SECONDS=$x ls",
        "read RANDOM",
        "unset 'a[x]'",
        "read 'a[x]'",
        "if [ -n x ]; then ls $((_)); fi",
    ],
)
def test_p4_a_value_that_a_shell_evaluates_is_unknown(text: str, shell: str) -> None:
    assert codes(text, shell) == {"arithmetic"}


@pytest.mark.parametrize(
    ("shell", "text"),
    [
        ("bash", "echo ${!x}"),
        ("bash", 'declare -a x="$y"'),
        ("bash", "declare -a x='($(rm y))'"),
        ("bash", 'wait "$x"'),
        ("sh", "((x))"),
        ("sh", "[[ $x -eq 1 ]]"),
        ("bash", "echo $[x]"),
        ("bash", "echo ${x:y}"),
        ("sh", "let x"),
        ("zsh", "echo $1[x]"),
        ("zsh", "shift $x"),
        ("zsh", "exit x"),
        ("zsh", '[ "$x" -eq 1 ]'),
        ("zsh", "[[ -t $x ]]"),
        ("zsh", 'printf %d "$x"'),
        ("zsh", "integer x=3"),
        ("zsh", "HISTSIZE=$x"),
    ],
)
def test_p4_a_value_that_only_one_shell_evaluates_is_unknown(shell: str, text: str) -> None:
    assert codes(text, shell) == {"arithmetic"}


@pytest.mark.parametrize(
    ("shell", "text"),
    [
        ("zsh", "echo $[x]"),
        ("sh", "echo $[x]"),
        ("zsh", "echo ${~x}"),
        ("zsh", "echo $~x"),
        ("zsh", 'echo ${~"$(cat n)"}'),
        ("zsh", "echo ${(e)x}"),
        ("zsh", "echo ${(P)x}"),
        ("bash", 'echo $"text"'),
        ("bash", "echo >&'$(rm y)'"),
        ("bash", "echo 1>&\\`x\\`"),
    ],
)
def test_p4_text_that_a_shell_expands_again_is_eval(shell: str, text: str) -> None:
    assert "eval" in codes(text, shell)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    "text",
    [
        "echo $((40+2)) $((0x1f & 3)) $(( (1 + 2) * 3 ))",
        "(( x = 3 ))",
        "echo ${a[0]} ${a[-1]} ${a[@]} ${#a[@]} ${x:1:2} ${#x}",
        "a[1]=x; a=(1 $x); a+=($y)",
        "[[ $# -gt 0 && ${#x} -eq 2 && $? -ne 0 && $x = y ]]",
        "[ $# -gt 0 ]",
        '[ -n "$x" ] && [ "$x" = y ] && [ ! -e "$x" ] && [ "$x" ]',
        '[ "$x" = 1 -a -f "$y" ]',
        'printf "%s\\n" "$x"; printf "[%s]" "$y"; printf -v x %s "$y"',
        "unset x 'a[0]'; read -r line; export A=$x B=2; local x=1",
        "read -p 'sure? [y/n] ' x",
        "RANDOM=42; COLUMNS=80 ls",
        "exit 1; shift 2; return $?",
        "[[ -v x && -v a[0] ]]; test -v x",
        'for f in *.txt; do wc -l "$f"; done',
    ],
)
def test_p4_numbers_and_ordinary_words_are_known(text: str, shell: str) -> None:
    assert "arithmetic" not in codes(text, shell)
