"""The shell state that a command uses (P3), and unknown state."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.originators.originators import UNKNOWN, Shaped, names
from holdfast.core.originators.shell_authors import Hand, View
from holdfast.core.originators.shell_state import CWD, Piece, Snapshot
from holdfast.core.originators.used_state import (
    World,
    kinds_of_others,
    used_by_line,
    used_by_program,
)
from holdfast.core.shellcode.facts import Facts, Surroundings, analyse
from holdfast.host.policy.shfmt import Parser

EVE = (Hand("eve", 3, True),)
PARSER = Parser()


def view(*pieces: Piece, blind: str = "", functions: bool = True, **state: Any) -> View:
    values = dict.fromkeys(pieces, b"1")
    made = Snapshot(
        9,
        values,
        state.pop("path", ("/evil", "/bin")),
        "/proj",
        frozenset(state.pop("exported", ())),
        state.pop("aliases", {}),
        state.pop("hashed", {}),
        True,
        True,
    )
    return View(dict.fromkeys(pieces, EVE), made._replace(**state), blind, functions)


def facts(text: str) -> Facts:
    return analyse(text, PARSER, Surroundings("/proj", "/root", "bash"))


def found(v: View, text: str, **how: Any) -> list[tuple[str, str, bool]]:
    return [
        (s.kind, s.name, s.sure)
        for s in used_by_line(v, facts(text), text, "bob", "/proj", **how)
        if s.actor == "eve"
    ]


WORLD = World(
    lambda path: path in ("/evil/make", "/evil/which", "/bin/ls", "/bin/make"),
    lambda paths: [
        Shaped("file", path, "eve", 4)
        for path in paths
        if path.startswith(("/evil", "/proj/run.sh", "/usr/local/bin/tool"))
    ],
)


@pytest.mark.parametrize(
    ("piece", "more", "text", "expected"),
    [
        (("alias", "ls"), {"aliases": {"ls": ("echo",)}}, "ls -l", [("alias", "ls", True)]),
        (
            ("alias", "ls"),
            {"aliases": {"ls": ("echo",), "l": ("ls",)}},
            "l",
            [("alias", "ls", True)],
        ),
        (("alias", "ls"), {}, "echo ls", []),
        (("alias", "ls"), {"aliases": {"ls": ("echo",)}}, "X=/tmp ls", [("alias", "ls", True)]),
        (("alias", "ls"), {"aliases": {"ls": ("echo",)}}, ">/dev/null ls", [("alias", "ls", True)]),
        (("alias", "ls"), {"aliases": {"ls": ("echo",)}}, "/bin/ls", []),
        (("function", "make"), {}, "DESTDIR=/x make", [("function", "make", True)]),
        (("function", "/bin/ls"), {}, "/bin/ls -l", [("function", "/bin/ls", True)]),
        (
            ("path", "/evil"),
            {},
            "X=/tmp/y make",
            [("path", "/evil", True), ("file", "/evil/make", True)],
        ),
        (
            ("path", "/evil"),
            {},
            "/usr/bin/env make",
            [("path", "/evil", True), ("file", "/evil/make", True)],
        ),
        (("path", "/evil"), {}, "/bin/make", []),
        (
            ("path", "/evil"),
            {},
            "which make",
            [("file", "/evil/which", True), ("path", "/evil", False)],
        ),
        (("path", "/evil"), {}, "shopt", []),
        (("alias", "G"), {"anywhere": frozenset("G")}, "echo a G", [("alias", "G", True)]),
        (("alias", ".txt"), {"anywhere": frozenset((".txt",))}, "a.txt", [("alias", ".txt", True)]),
        (("function", "ls"), {}, "true && ls", [("function", "ls", True)]),
        (("function", "ls"), {}, "sudo ls", [("function", "ls", True)]),
        (
            ("path", "/evil"),
            {},
            "make all",
            [("path", "/evil", True), ("file", "/evil/make", True)],
        ),
        (("path", "/evil"), {}, "ls", []),
        (("path", "/evil"), {}, "nowhere", [("path", "/evil", False)]),
        (("path", "/evil"), {}, "cd /tmp", []),
        (("alias", "tool"), {}, "/usr/local/bin/tool", [("file", "/usr/local/bin/tool", True)]),
        (
            ("hash", "ls"),
            {"hashed": {"ls": "/evil/ls"}},
            "ls",
            [("path", "/evil/ls", True), ("file", "/evil/ls", True)],
        ),
        (("hash", "ls"), {"hashed": {"ls": "/bin/ls"}}, "ls", []),
        (("variable", "x"), {}, "echo $x ${y}", [("variable", "x", True)]),
        (("variable", "x"), {}, "echo x", []),
        (("variable", "x"), {}, "echo ${(f)x}", [("variable", "x", True)]),
        (("variable", "x"), {}, "echo $=x", [("variable", "x", True)]),
        (("variable", "x"), {}, "echo ${^x} ${~y}", [("variable", "x", True)]),
        (("variable", "x"), {}, "echo ${HOME:x}", [("variable", "x", False)]),
        (("variable", "x"), {}, "typeset -i y=x", [("variable", "x", False)]),
        (("variable", "x"), {}, "echo $((x + 1))", [("variable", "x", False)]),
        (("variable", "TARGET"), {"exported": ["TARGET"]}, "ls", [("variable", "TARGET", True)]),
        (("variable", "TARGET"), {"exported": ["TARGET"]}, "cd /", []),
        (
            ("variable", "LD_PRELOAD"),
            {"exported": ["LD_PRELOAD"]},
            "ls",
            [("preload", "LD_PRELOAD", True)],
        ),
        (
            ("variable", "PYTHONPATH"),
            {"exported": ["PYTHONPATH"]},
            "ls",
            [("preload", "PYTHONPATH", True)],
        ),
        (("variable", "PROMPT_COMMAND"), {}, "cd /", [("hook", "PROMPT_COMMAND", True)]),
        (("variable", "PS1"), {"active": frozenset(("PS1",))}, "cd /", [("hook", "PS1", True)]),
        (("variable", "PS1"), {}, "cd /", []),
        (("variable", "IFS"), {}, "cd /", [("variable", "IFS", True)]),
        (("variable", "CDPATH"), {}, "cd x", [("variable", "CDPATH", True)]),
        (("variable", "CDPATH"), {}, "true", []),
        (("trap", "DEBUG"), {}, "true", [("trap", "DEBUG", True)]),
        (("option", "noglob"), {}, "true", [("option", "noglob", True)]),
        (CWD, {}, "true", [("cwd", "/proj", True)]),
        (("alias", "q"), {}, "/proj/run.sh", [("file", "/proj/run.sh", True)]),
        (("alias", "q"), {}, "sh run.sh", [("file", "/proj/run.sh", True)]),
        (("alias", "q"), {}, "./run.sh", [("file", "/proj/run.sh", True)]),
        (("alias", "q"), {}, "/proj/.//run.sh", [("file", "/proj/run.sh", True)]),
    ],
)
def test_p3_the_state_that_a_command_uses(
    piece: Piece, more: dict[str, Any], text: str, expected: list[tuple[str, str, bool]]
) -> None:
    assert found(view(piece, **more), text, world=WORLD) == expected


@pytest.mark.parametrize(
    ("v", "text", "how"),
    [
        (view(blind="not seen"), "true", {}),
        (view(), "$cmd x", {}),
        (view(), "echo 'open", {}),
        (view(functions=False), "ls", {}),
        (view(), "print(1)", {"reader": "python3"}),
    ],
)
def test_p3_state_that_cannot_be_followed_is_unknown(
    v: View, text: str, how: dict[str, Any]
) -> None:
    assert names(used_by_line(v, facts(text), text, "bob", "/proj", **how), "bob") == (UNKNOWN,)


def test_p3_an_unchanged_shell_lists_nothing() -> None:
    for text in ("ls -l $x", "make && cd /tmp", "f() { true; }; f"):
        assert (
            used_by_line(view(), facts(text), text, "bob", "/proj", world=World(lambda path: True))
            == ()
        )


def test_p3_every_typist_of_the_line_is_named() -> None:
    assert used_by_line(view(), facts("true"), "true", "bob", typists=("eve", "bob")) == (
        Shaped("line", "", "eve"),
    )


def test_p3_a_function_may_call_any_other() -> None:
    v = view(("function", "g"), ("function", "h"))
    assert found(v, "g") == [("function", "g", True), ("function", "h", False)]


def test_p3_removed_state_has_an_author_too() -> None:
    v = view()
    v = v._replace(authors={("alias", "ls"): EVE, ("variable", "PROXY"): EVE})
    assert found(v, "ls") == [("alias", "ls", True), ("variable", "PROXY", True)]


@pytest.mark.parametrize(("actor", "sure"), [("shell", True), ("bob", False)])
def test_p4_a_program_that_a_shell_starts_may_be_a_hooks_or_a_traps(actor: str, sure: bool) -> None:
    v = view(("trap", "DEBUG"), ("variable", "PROMPT_COMMAND"), ("option", "noglob"))
    assert [(s.kind, s.name, s.sure) for s in used_by_program(v, "/bin/ls", [], actor)] == [
        ("trap", "DEBUG", sure),
        ("hook", "PROMPT_COMMAND", sure),
    ]


def test_p4_a_bare_exec_uses_its_arguments_and_environment() -> None:
    v = view(
        ("alias", "make"),
        ("function", "make"),
        ("variable", "LD_PRELOAD"),
        ("variable", "own"),
        ("path", "/evil"),
        CWD,
        exported=["LD_PRELOAD"],
    )
    assert {
        (s.kind, s.name)
        for s in used_by_program(v, "/evil/make", ["/proj/run.sh"], "bob", ("carl",), WORLD)
    } == {
        ("line", ""),
        ("cwd", "/proj"),
        ("path", "/evil"),
        ("file", "/evil/make"),
        ("file", "/proj/run.sh"),
        ("preload", "LD_PRELOAD"),
    }


@pytest.mark.parametrize(
    ("piece", "more"),
    [
        (("variable", "PS1"), {"active": frozenset(("PS1",))}),
        (("variable", "PROMPT_COMMAND"), {}),
        (("trap", "DEBUG"), {}),
        (("variable", "LD_PRELOAD"), {"exported": ["LD_PRELOAD"]}),
        (("path", "/evil"), {}),
        (CWD, {}),
        (("variable", "x"), {"exported": ["x"]}),
    ],
)
def test_p3_only_kinds_with_foreign_state_are_found(piece: Piece, more: dict[str, Any]) -> None:
    """Kinds of state without foreign entries are not searched when a program starts."""
    v = view(piece, **more)
    assert {
        one.kind for one in used_by_program(v, "/evil/x", (), "bob") if one.actor == "eve"
    } <= kinds_of_others(v, "bob")
    assert not kinds_of_others(v, "eve")


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("rm $1", True),
        ('rm "$@"', True),
        ("rm ${2:-x}", True),
        ("test $# = 0", True),
        ("popd", True),
        ("pushd", True),
        ("cd ~1", True),
        ("pushd /srv", False),
        ("awk '{print $1}' x", False),
        ('awk "{print \\$1}" x', False),
        ("git diff HEAD~1", False),
        ("echo ${#x} $x", False),
    ],
)
def test_p3_the_author_of_state_that_no_shell_lists_is_unknown(text: str, uses: bool) -> None:
    shaped = used_by_line(view(), facts(text), text, "bob", "/proj")
    assert (names(shaped, "bob") == (UNKNOWN,)) is uses


@pytest.mark.parametrize("text", ["cd -", "cd -P - && ls", "ls ~-/x", "ls $OLDPWD"])
def test_p3_the_directory_before_has_an_author(text: str) -> None:
    eves = ("variable", "OLDPWD", True)
    assert eves in found(view(("variable", "OLDPWD")), text)
    assert eves not in found(view(("variable", "OLDPWD")), "cd -- x; ls -")
