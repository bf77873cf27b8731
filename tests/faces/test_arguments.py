"""faces/cli/arguments.py reads a command line as `argparse` does, or passes it on to argparse."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.faces.cli import arguments
from holdfast.faces.cli.main import COMMANDS, declare, parser
from holdfast.model.errors import Usage

WORDS = ("work", "build", "7", "2.5", "human", "ls", "show", "", "-", "--", "-7", "a=b", "exec")


def quick(name: str, words: list[str]) -> dict[str, object] | None:
    found = arguments.parsed(lambda made: declare(name, made), words)
    return None if found is None else vars(found)


def flags(name: str) -> list[str]:
    return [flag for action in parser(name)._actions for flag in action.option_strings]


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    given = [flag for flag in flags(name) if flag not in ("-h", "--help")]
    word = st.sampled_from((*WORDS, *(w for w in given), *(f"{f}=x" for f in given)))
    return name, draw(st.lists(word, max_size=6))


@given(command_lines())
@example(("new", ["--contained", "--plain"]))
@example(("ls", ["-ae"]))
@example(("rename", ["a", "--json", "b"]))
@example(("new", ["--env", "A=1", "--env=B=2", "n", "c", "d"]))
def test_it_agrees_with_argparse_on_every_command(line: tuple[str, list[str]]) -> None:
    name, words = line
    found = quick(name, words)
    if found is None:
        return
    try:
        assert found == vars(parser(name).parse_args(words))
    except Usage as e:
        raise AssertionError(f"argparse refuses this: {e.message}") from e


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", []),
        ("ls", ["-a", "--json"]),
        ("ls", ["box/"]),
        ("attach", ["work", "--observe"]),
        ("attach", ["--scrollback", "100", "work"]),
        ("run", ["work", "--json"]),
        ("send", ["work", "make test", "--enter"]),
        ("send", ["work", "--key", "C-c"]),
        ("view", ["work"]),
        ("end", ["a", "b", "--hold=5"]),
        ("new", ["work", "--no-attach", "--env=A=1"]),
    ],
)
def test_it_reads_the_everyday_command_lines_itself(name: str, words: list[str]) -> None:
    assert quick(name, words) == vars(parser(name).parse_args(words))


@pytest.mark.parametrize(
    "words", [["--help"], ["--nonsense"], ["-ae"], ["a/", "b/"], ["--json=1"], ["--", "x"]]
)
def test_help_and_errors_are_left_to_argparse(words: list[str]) -> None:
    assert quick("ls", words) is None
