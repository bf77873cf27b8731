"""Which command lines are shells that can carry the hooks, and which files are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.shell import SessionDirectories, clear_run, prepare, write_run
from holdfast.host.shell.launch import KEY
from holdfast.host.shell.run import SHOWN_CHARS, SHOWN_LINES, shown
from holdfast.model.errors import Impossible, Usage

NONCE = "0123456789abcdef"
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def directories(directory: Path) -> SessionDirectories:
    return SessionDirectories.as_outside(directory, directory)


def _size(path: Path) -> int:
    return path.stat().st_size


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
def test_known_shells(
    directory: Path, directories: SessionDirectories, argv: list[str], kind: str
) -> None:
    launch = prepare(argv, directories, NONCE, ENV, login=False)
    assert launch.kind == kind
    assert ("-i" in launch.argv) == any("i" in flag for flag in argv[1:])
    assert NONCE not in " ".join([*launch.argv, *launch.env.values()])
    written = [path for path in directory.rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in written)
    # The other files are for the shell's snapshots.
    key, hooks = sorted((path for path in written if path.stat().st_size), key=_size)
    assert key.name == KEY
    assert [word for word in key.read_text().split() if word in hooks.read_text()] == []
    assert NONCE not in key.read_text() + hooks.read_text()


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
def test_everything_else_is_left_alone(
    directory: Path, directories: SessionDirectories, argv: list[str]
) -> None:
    launch = prepare(argv, directories, NONCE, ENV, login=False)
    assert (launch.argv, launch.env, launch.kind) == (argv, ENV, None)
    assert not list(directory.iterdir())


def test_a_name_decides_how_a_program_behaves(
    directory: Path, directories: SessionDirectories
) -> None:
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
            prepare([str(links / name)], directories, NONCE, ENV, login=False).kind
            == expected[name]
        )


def test_bash_in_posix_mode_reads_env_instead(
    directory: Path, directories: SessionDirectories
) -> None:
    launch = prepare(["bash"], directories, NONCE, {**ENV, "POSIXLY_CORRECT": "1"}, login=False)
    assert launch.argv == ["bash"]
    assert launch.env["ENV"] == str(directory / "bash.rc")


def test_the_caller_s_values_are_not_changed(directories: SessionDirectories) -> None:
    argv, env = ["zsh"], dict(ENV)
    prepare(argv, directories, NONCE, env, login=True)
    assert (argv, env) == (["zsh"], ENV)


def test_an_open_directory_is_refused(directory: Path, directories: SessionDirectories) -> None:
    directory.chmod(0o755)
    with pytest.raises(Impossible):
        prepare(["bash"], directories, NONCE, ENV, login=False)


@pytest.mark.parametrize("nonce", ["", "short", "0123456789abcde;", "a" * 65, "é" * 20])
def test_bad_nonce(directories: SessionDirectories, nonce: str) -> None:
    with pytest.raises(Usage):
        prepare(["bash"], directories, nonce, ENV, login=False)


@pytest.mark.parametrize("kind", ["bash", "zsh", "posix"])
def test_run_file_is_replaced_and_removed(
    directory: Path, directories: SessionDirectories, kind: str
) -> None:
    previous = os.umask(0)
    try:
        for text in ("echo first", "echo second\necho line"):
            trigger = write_run(directories, kind, "r1", text)  # type: ignore[arg-type]
            assert trigger.startswith(b" ")
            assert trigger.endswith(b"\r")
            assert all(path.stat().st_mode & 0o777 == 0o600 for path in directory.iterdir())
    finally:
        os.umask(previous)
    assert not any("first" in path.read_text() for path in directory.iterdir())
    clear_run(directories)
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
def test_invalid_runs_are_refused(
    directory: Path, directories: SessionDirectories, kind: str, run: str, text: str
) -> None:
    with pytest.raises(Usage):
        write_run(directories, kind, run, text)  # type: ignore[arg-type]
    assert not list(directory.iterdir())


def test_shown_text_is_bounded_and_inert() -> None:
    lines = shown("\n".join(["\x1b]0;title\x07\x9b31m\u202e\udcff\ttab" + "x" * 500] * 100))
    assert len(lines) == SHOWN_LINES + 1
    assert lines[0].startswith("run> \\x1b]0;title\\x07\\x9b31m\\u202e\\xff    tab")
    assert all(len(line) < SHOWN_CHARS * 6 for line in lines)
    assert lines[-1] == "   > ... 96 more lines"
    assert "".join(lines).isprintable()
    assert shown("") == ["run> "]


@pytest.mark.parametrize("program", ["bash", "zsh", "dash"])
def test_a_shell_gets_the_names_inside_and_the_host_writes_outside(
    directory: Path, program: str
) -> None:
    readable, writable = directory / "r", directory / "s"
    for one in (readable, writable):
        one.mkdir(mode=0o700)
    made = SessionDirectories(readable, writable, Path("/inside"), Path("/inside/own"))
    launch = prepare([program], made, NONCE, ENV, login=False)
    assert launch.kind is not None
    write_run(made, launch.kind, "r1", "echo one\necho two")
    written = [path for path in readable.rglob("*") if path.is_file()]
    texts = b"".join(path.read_bytes() for path in written)
    assert str(directory).encode() not in texts
    assert str(directory) not in repr((launch.argv, launch.env))
    assert b"_hf='/inside/run'" in texts and b"/inside/own'" in texts
    assert {path.name.partition(".")[0] for path in writable.iterdir()} == {"shape", KEY}
    assert "/inside/" in repr((launch.argv, launch.env))
