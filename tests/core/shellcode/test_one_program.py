"""Texts whose exit code is the exit code of one program."""

from __future__ import annotations

import pytest

from holdfast.core.shellcode.one_program import one_program


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("make test", "make"),
        ("  ./run.sh -x --to=/tmp/a,b 'it is; $x' \"a | b\"\n", "./run.sh"),
        ("A=1 B='x y' env", "env"),
        ("/usr/bin/true", "/usr/bin/true"),
        ("7z x", "7z"),
    ],
)
def test_a_call_of_one_program(text: str, name: str) -> None:
    assert one_program(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "A=1",
            "a; b",
            "a && b",
            "a | b",
            "a &",
            "! a",
            "a\nb",
            "a\\\nb",
            "(a)",
            "{ a; }",
        ),
        *("{ a; }", "é", "a\0b"),
        *("a $x", "a $(b)", "a `b`", 'a "$x"', 'a "`b`"', "a <f", "a >f", "a *", "a ?", "a [b]"),
        *("a # b", "a ~", "a {b,c}", "'a' b", '"a" b', "a 'b", "~/a", "a^b", "a!b", 'a "b!c"'),
        *("cd x", "echo a", "time a", "eval a", ". a", "source a", "exec a", "command a", "[ a ]"),
        *(
            "if a",
            "noglob a",
            "- a",
            "builtin a",
            "coproc a",
            "A=1 eval b",
            "a\tb\x0bc",
            "a\0b",
            "é",
        ),
    ],
)
def test_any_other_text(text: str) -> None:
    assert one_program(text) is None
