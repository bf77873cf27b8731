"""The frame around all commands, inside one process: parsing, explanations, refusals."""

from __future__ import annotations

import re

import pytest

from holdfast import __version__
from holdfast.faces.cli import main as cli
from holdfast.faces.cli import meant
from holdfast.faces.cli.main import COMMANDS
from holdfast.home import config
from holdfast.model.errors import ALL, HoldfastError, Usage


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        cli.run([name, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of(name, capsys)
    assert "example:" in shown and f"holdfast {name}" in shown.split("example:")[1]
    assert COMMANDS[name].example.startswith(f"holdfast {name}")
    with pytest.raises(SystemExit):
        cli.run(["help", name])
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_help_and_reading_commands_have_json(name: str) -> None:
    actions = cli.parser(name)._actions
    assert all(a.help for a in actions), [a.dest for a in actions if not a.help]
    if name not in ("completion", "man"):
        assert any("--json" in a.option_strings for a in actions)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_parses(name: str) -> None:
    import shlex

    words = shlex.split(COMMANDS[name].example.partition("|")[0])[2:]
    before, _ = cli._split(words)
    cli.parser(name).parse_args(before)


def test_overview_version_and_no_command_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", overview, re.M) for name in COMMANDS)
    assert cli.run([]) == 2
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"holdfast {__version__}\n")


@pytest.mark.parametrize(
    "args",
    [
        ["rename", "one"],
        ["wait", "s"],
        ["who"],
        ["read", "s", "--from", "x"],
        ["turn", "s", "grab"],
        ["ls", "extra"],
        ["ls", "--jso"],
        ["--as"],
        ["nosuch"],
        ["completion", "tcsh"],
        ["config"],
        ["new", "--size"],
    ],
)
def test_usage_errors_are_one_line_and_a_way_out(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(args) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (
        out == ""
        and len(lines) == 2
        and lines[0].startswith("holdfast: ")
        and lines[1].startswith("  ")
    )


def test_errors_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = HoldfastError("bad \x1b]0;evil\x07 \r\n name \x9b31m\u202e", "try\x1bc again")
    assert cli.complain(error, as_json=False, is_run=False) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 2 and all(c.isprintable() or c == "\n" for c in err)


@pytest.mark.parametrize("cls", ALL)
def test_run_keeps_255_for_every_error_but_usage(
    cls: type[HoldfastError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.complain(cls("x"), as_json=False, is_run=False) == cls.exit_code
    assert cli.complain(cls("x"), as_json=False, is_run=True) == (2 if cls is Usage else 255)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("args", "is_run"),
    [
        (["run", "x"], True),
        (["--as", "a", "run", "x"], True),
        (["--as=a", "run"], True),
        (["ls"], False),
        (["--as", "run", "ls"], False),
        (["send", "run"], False),
        ([], False),
        (["--as"], False),
    ],
)
def test_run_is_recognised_wherever_it_stands(args: list[str], is_run: bool) -> None:
    assert cli._is_run(args) is is_run


def test_words_after_the_dashes_are_not_parsed() -> None:
    assert cli._split(["a", "--", "--json", "--", "x"]) == (["a"], ["--json", "--", "x"])
    assert cli._split(["a"]) == (["a"], None)


def test_a_near_miss_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["atach"]) == 2
    assert "did you mean attach" in capsys.readouterr().err
    assert meant.close("zzzzzz", list(COMMANDS)) == ""


def test_every_option_of_the_configuration_has_a_description() -> None:
    for option in config.OPTIONS:
        assert option.help and re.fullmatch(r"[a-z]+\.[a-z_]+", option.key)
        if isinstance(option.default, int | float) and not isinstance(option.default, bool):
            assert (
                option.low is not None
                and option.high is not None
                and option.low <= option.default <= option.high
            )
