"""Which command lines are shells that can carry the hooks, and what is written for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.shell import clear_run, prepare, write_run
from holdfast.host.shell.run import SHOWN_CHARS, SHOWN_LINES, shown
from holdfast.model.errors import Impossible, Usage

NONCE = "0123456789abcdef"
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["bash"], "bash"),
        (["/bin/bash"], "bash"),
        (["bash", "-i"], "bash"),
        (["bash", "-l"], "bash"),
        (["bash", "-il"], "bash"),
        (["-bash"], "bash"),
        (["zsh"], "zsh"),
        (["zsh", "-l", "-i"], "zsh"),
        (["dash"], "posix"),
        (["-dash"], "posix"),
    ],
)
def test_known_shells(directory: Path, argv: list[str], kind: str) -> None:
    launch = prepare(argv, directory, NONCE, ENV, login=False)
    assert launch.kind == kind
    assert ("-i" in launch.argv) == any("i" in flag for flag in argv[1:])
    assert NONCE not in " ".join([*launch.argv, *launch.env.values()])
    written = [path for path in directory.rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in written)
    (told,) = [
        path for path in written if path.stat().st_size
    ]  # the others are for what the shell will say of itself
    assert NONCE in told.read_text()


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["bash", "--norc"],
        ["bash", "-c", "ls"],
        ["bash", "script"],
        ["bash", "--posix"],
        ["zsh", "-f"],
        ["bash", "-x"],
        ["python3"],
        ["vim"],
        ["no-such-program"],
        ["/no/such/bash"],
        ["env", "bash"],
        ["sh", "-c", "ls"],
        ["bash", ""],
    ],
)
def test_everything_else_is_left_alone(directory: Path, argv: list[str]) -> None:
    launch = prepare(argv, directory, NONCE, ENV, login=False)
    assert (launch.argv, launch.env, launch.kind) == (argv, ENV, None)
    assert not list(directory.iterdir())


def test_a_name_decides_how_a_program_behaves(directory: Path) -> None:
    links = directory / "bin"
    links.mkdir()
    expected = {
        "sh": "bash",
        "rbash": None,
        "rzsh": None,
        "ksh": None,
        "ash": "posix",
        "bash-9.9": "bash",
    }
    for name, target in zip(expected, ("bash", "bash", "zsh", "zsh", "dash", "bash"), strict=True):
        (links / name).symlink_to(f"/usr/bin/{target}")
        assert (
            prepare([str(links / name)], directory, NONCE, ENV, login=False).kind == expected[name]
        )


def test_bash_in_posix_mode_reads_env_instead(directory: Path) -> None:
    launch = prepare(["bash"], directory, NONCE, {**ENV, "POSIXLY_CORRECT": "1"}, login=False)
    assert launch.argv == ["bash"]
    assert launch.env["ENV"] == str(directory / "bash.rc")


def test_the_caller_s_values_are_not_changed(directory: Path) -> None:
    argv, env = ["zsh"], dict(ENV)
    prepare(argv, directory, NONCE, env, login=True)
    assert (argv, env) == (["zsh"], ENV)


def test_an_open_directory_is_refused(directory: Path) -> None:
    directory.chmod(0o755)
    with pytest.raises(Impossible):
        prepare(["bash"], directory, NONCE, ENV, login=False)


@pytest.mark.parametrize("nonce", ["", "short", "0123456789abcde;", "a" * 65, "é" * 20])
def test_bad_nonce(directory: Path, nonce: str) -> None:
    with pytest.raises(Usage):
        prepare(["bash"], directory, nonce, ENV, login=False)


@pytest.mark.parametrize("kind", ["bash", "zsh", "posix"])
def test_run_file_is_replaced_and_removed(directory: Path, kind: str) -> None:
    previous = os.umask(0)
    try:
        for text in ("echo first", "echo second\necho line"):
            trigger = write_run(directory, kind, "r1", text)  # type: ignore[arg-type]
            assert trigger.startswith(b" ")
            assert trigger.endswith(b"\r")
            assert all(path.stat().st_mode & 0o777 == 0o600 for path in directory.iterdir())
    finally:
        os.umask(previous)
    assert not any("first" in path.read_text() for path in directory.iterdir())
    clear_run(directory)
    assert not list(directory.iterdir())


@pytest.mark.parametrize("kind", ["bash", "zsh", "posix"])
@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("r1", "a\0b"),
        ("r1", "a\n\0b"),
        ("", "a"),
        ("r 1", "a"),
        ("r;1", "a"),
        ("r" * 65, "a"),
        ("$(x)", "a"),
    ],
)
def test_what_cannot_be_run_is_refused(directory: Path, kind: str, run: str, text: str) -> None:
    with pytest.raises(Usage):
        write_run(directory, kind, run, text)  # type: ignore[arg-type]
    assert not list(directory.iterdir())


def test_what_is_shown_is_bounded_and_inert() -> None:
    lines = shown("\n".join(["\x1b]0;title\x07\x9b31m\u202e\udcff\ttab" + "x" * 500] * 100))
    assert len(lines) == SHOWN_LINES + 1
    assert lines[0].startswith("run> \\x1b]0;title\\x07\\x9b31m\\u202e\\xff    tab")
    assert all(len(line) < SHOWN_CHARS * 6 for line in lines)
    assert lines[-1] == "   > ... 96 more lines"
    assert "".join(lines).isprintable()
    assert shown("") == ["run> "]
