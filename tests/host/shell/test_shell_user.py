"""The user's own shell: its files are read, not changed; hooks, history and options still work."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shell_session import ARGV, NONCE, ShellSession

Start = Callable[..., ShellSession]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    def begin(argv: list[str], files: dict[str, str] | None = None, **more: object) -> ShellSession:
        home = tmp_path / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        for name, content in (files or {}).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(content)
        session = ShellSession(argv, tmp_path / "session", home, **more)  # type: ignore[arg-type]
        request.addfinalizer(session.close)
        return session

    return begin


def unchanged(home: Path, files: dict[str, str]) -> bool:
    return all((home / name).read_text() == content for name, content in files.items())


def test_bash_files_and_prompt_command(start: Start, tmp_path: Path) -> None:
    files = {
        ".bashrc": "FROM_RC=yes; PROMPT_COMMAND='echo status=$?'; PS1='mine> '; PS0='zero\\n'\n"
        "alias printf='echo aliased' eval='echo no' .='echo no'; alias local=false\n",
        ".bash_profile": "FROM_PROFILE=yes\n",
    }
    shell = start(["bash"], files)
    assert shell.run('echo "$FROM_RC/$FROM_PROFILE"').output == b"yes/\n"
    assert b"status=4" in shell.line("(exit 4)")
    assert b"zero" in shell.line("true")
    shell.wait(lambda: shell.stream.count(b"mine> ") >= 3, "the user's prompt")
    assert shell.run("(exit 5)").exit == 5
    assert unchanged(tmp_path / "home", files)


def test_bash_array_prompt_command_and_later_changes(start: Start) -> None:
    shell = start(["bash"], {".bashrc": "PROMPT_COMMAND=('echo one=$?' 'echo two=$?')\n"})
    line = shell.line("(exit 4)")
    assert b"one=4" in line
    assert b"two=4" in line
    shell.line("PROMPT_COMMAND+=('echo three=$?')")
    assert b"three=6" in shell.line("(exit 6)")
    assert b"new=7" in shell.line("PROMPT_COMMAND='echo new=$?'; (exit 7)")
    assert shell.run("echo still").output == b"still\n"
    assert shell.run('echo "${#PROMPT_COMMAND[@]}"').output == b"4\n"


def test_bash_theme_that_sets_the_prompt_each_time(start: Start) -> None:
    theme = "theme() { local s=$?; PS1=\"[$s] \"; PS0='about to run\\n'; }\nPROMPT_COMMAND=theme\n"
    shell = start(["bash"], {".bashrc": theme})
    shell.line("(exit 3)")
    shell.line("true")
    shell.wait(lambda: b"[3] \x1b]133;B\x07" in shell.stream, "the theme's prompt")
    assert "".join(mark.kind for mark in shell.marks) == "PCPCP"


def test_bash_before_5_1(start: Start) -> None:
    """The way for shells that run PROMPT_COMMAND as one string, in this bash."""

    def old(directory: Path) -> None:
        path = directory / "bash.rc"
        path.write_text(path.read_text().replace("[array]='1'", "[array]=''"))

    shell = start(["bash"], {".bashrc": "PROMPT_COMMAND='echo status=$?;'\n"}, edit=old)
    assert b"status=4" in shell.line("(exit 4)")
    assert shell.shell.last_exit == 4
    shell.run("unset PROMPT_COMMAND")
    assert shell.run("(exit 5)").exit == 5
    shell.run("PROMPT_COMMAND='echo other=$?'")
    assert b"other=6" in shell.line("(exit 6)")
    shell.line("false | true | (exit 2)")
    assert shell.shell.last_exit == 2
    shell.run("set -ex")
    assert b"_hf" not in shell.line("! true")
    assert shell.run("true").exit == 0


def test_bash_pipestatus_and_last_argument_survive_the_hook(start: Start) -> None:
    shell = start(["bash"])
    shell.line("false | true | (exit 4)")
    assert b"1 0 4" in shell.line('echo "${PIPESTATUS[@]}"')
    shell.line("true some argument")
    assert b"<argument>" in shell.line('echo "<$_>"')
    shell.line("true other word")
    assert shell.run('echo "<$_>"').output == b"<word>\n"


def test_bash_traps_and_options_of_the_user(start: Start) -> None:
    shell = start(["bash"])
    shell.run("trap 'echo debug' DEBUG; set -o vi; shopt -s nullglob failglob nocasematch extglob")
    result = shell.run("echo one")
    assert result.output.endswith(b"one\n")
    assert b"debug" in shell.line("true")
    shell.line("trap - DEBUG")  # inside a run, bash's `.` would put the old trap back
    shell.run("set -o posix")
    assert shell.run("echo two; false").exit == 1
    shell.run("shopt -u promptvars expand_aliases; set +o history; set -T -E")
    assert shell.run("echo three").output == b"three\n"


@pytest.mark.parametrize("control", ["", "ignorespace", "ignoreboth:erasedups"])
def test_bash_history(start: Start, tmp_path: Path, control: str) -> None:
    rc = f"HISTCONTROL={control}; HISTTIMEFORMAT='%F '; HISTFILE={tmp_path}/history\n"
    shell = start(["bash"], {".bashrc": rc + "PROMPT_COMMAND='history -a'\n"})
    shell.line("echo typed")
    shell.run("echo one 'quoted  text'")
    shell.run("echo first line\necho second line")
    shell.run(": " + "too long to be typed " * 400)
    shell.line("echo again")
    shell.run("echo -n two")
    shell.line("true")
    saved = [
        line for line in (tmp_path / "history").read_text().splitlines() if not line.startswith("#")
    ]
    assert saved == ["echo typed", "echo one 'quoted  text'", "echo again", "echo -n two", "true"]


def test_bash_login(start: Start, tmp_path: Path) -> None:
    files = {
        ".bash_profile": "FROM=bash_profile\n",
        ".profile": "FROM=profile\n",
        ".bashrc": "RC=yes\n",
    }
    shell = start(["bash", "-l"], files)
    assert shell.run('echo "$FROM/$RC/$PATH"').output.startswith(b"bash_profile//")
    (tmp_path / "home" / ".bash_profile").unlink()
    shell = start(["bash"], login=True)
    assert shell.run('echo "$FROM"').output == b"profile\n"


def test_bash_as_sh(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "sh"
    link.symlink_to(shutil.which("bash") or "/bin/bash")
    shell = start([str(link)], {"env file": "FROM_ENV=yes\n"}, env={"ENV": "$HOME/env file"})
    assert shell.launch.kind == "bash"
    assert shell.run('echo "$FROM_ENV $ENV"; shopt -qo posix').exit == 0
    assert shell.run('echo "$FROM_ENV/$ENV"').output == b"yes/$HOME/env file\n"
    assert shell.run("return 5").exit == 5
    assert NONCE.encode() not in shell.run("env").output


def test_zsh_files_and_hooks(start: Start, tmp_path: Path) -> None:
    files = {
        ".zshenv": "FROM_ENV=yes\n",
        ".zshrc": "FROM_RC=yes; precmd() { echo status=$?; }; PS1='mine> '\n"
        "preexec() { echo about to run; }; alias print='echo no' builtin='echo no' .='echo no'\n",
        ".zprofile": "FROM_PROFILE=yes\n",
        ".zlogin": "FROM_LOGIN=yes\n",
    }
    shell = start(["zsh"], files)
    read = 'echo "$FROM_ENV/$FROM_RC/$FROM_PROFILE/$FROM_LOGIN"'
    assert shell.run(f'{read} "${{ZDOTDIR-none}}"').output == b"yes/yes// none\n"
    line = shell.line("(exit 4)")
    assert b"status=4" in line
    assert b"about to run" in line
    assert shell.run("(exit 5)").exit == 5
    login = start(["zsh", "-l"])
    assert login.run(read).output == b"yes/yes/yes/yes\n"
    assert unchanged(tmp_path / "home", files)
    assert not [path for path in (tmp_path / "home").iterdir() if path.name not in files]


def test_zsh_own_zdotdir(start: Start, tmp_path: Path) -> None:
    dots = tmp_path / "home" / "dots"
    files = {"dots/.zshenv": "FROM_ENV=dots\n", "dots/.zshrc": "FROM_RC=dots\n"}
    shell = start(["zsh"], files, env={"ZDOTDIR": str(dots)})
    assert shell.run('echo "$FROM_ENV/$FROM_RC/$ZDOTDIR"').output == f"dots/dots/{dots}\n".encode()
    moved = start(["zsh"], {".zshenv": "export ZDOTDIR=$HOME/dots\n"})
    assert moved.run('echo "$FROM_RC/$ZDOTDIR"').output == f"dots/{dots}\n".encode()


def test_zsh_hooks_dropped_by_zshrc_come_back(start: Start) -> None:
    shell = start(["zsh"], {".zshrc": "precmd_functions=(); preexec_functions=(); PS1='mine> '\n"})
    shell.wait(lambda: b"mine> " in shell.stream, "prompt")
    shell.send(b"true\r")
    assert shell.run("echo works").output == b"works\n"


@pytest.mark.parametrize(
    "options",
    [
        "emulate sh",
        "emulate ksh",
        "setopt ksharrays shwordsplit nounset",
        "setopt rcquotes",
        "setopt correctall",
        "setopt noprompt_percent nomultios noclobber",
        "setopt errreturn",
        "setopt warncreateglobal",
        "setopt nobanghist interactivecomments",
    ],
)
def test_zsh_options(start: Start, options: str) -> None:
    shell = start(["zsh"])
    shell.run(options)
    assert shell.run("echo 'it''s' \"fine\"").output in (b"its fine\n", b"it's fine\n")
    shell.line("true")
    assert shell.run("echo one\n# comment\necho two; (exit 3)").exit in (3, 0)
    assert shell.run("echo 'a'\\''b'").output == b"a'b\n"


def test_zsh_history(start: Start, tmp_path: Path) -> None:
    rc = f"HISTFILE={tmp_path}/history; HISTSIZE=99; SAVEHIST=99; setopt incappendhistory\n"
    shell = start(["zsh"], {".zshrc": rc})
    shell.line("echo typed")
    shell.run("echo one 'quoted  text'")
    shell.run("echo first line\necho second line")
    shell.line("echo again")
    saved = (tmp_path / "history").read_text().splitlines()
    assert saved == ["echo typed", "echo one 'quoted  text'", "echo again"]


def test_posix_files(start: Start, tmp_path: Path) -> None:
    files = {"my env": "FROM_ENV=yes; PS1='mine> '\n", ".profile": "FROM_PROFILE=yes\n"}
    shell = start(["dash"], files, env={"ENV": "$HOME/my env"})
    assert shell.run('echo "$FROM_ENV/${FROM_PROFILE-no}/$ENV"').output == b"yes/no/$HOME/my env\n"
    shell.wait(lambda: b"mine> " in shell.stream, "the user's prompt")
    login = start(["dash", "-l"], env={"ENV": "$HOME/my env"})
    assert login.run('echo "$FROM_ENV/$FROM_PROFILE"').output == b"yes/yes\n"
    assert unchanged(tmp_path / "home", files)


@pytest.mark.parametrize("name", ["bash", "zsh", "dash"])
def test_nested_shells_make_no_marks(start: Start, name: str) -> None:
    shell = start(ARGV[name])
    shell.run("export PS1")
    run = shell.start(" ".join(ARGV[name]))
    shell.in_foreground(name)
    shell.send(b"echo in$((40 + 2))side; exit 3\r")
    result = shell.finish(run)
    assert b"in42side" in result.output
    assert (result.exit, result.cut_short) == (3, False)
    assert shell.run("echo outside").output == b"outside\n"


@pytest.mark.parametrize("name", ["bash", "zsh", "dash"])
def test_odd_directory(tmp_path: Path, name: str) -> None:
    odd = tmp_path / 'it\'s $HOME `x` "q" \\ \u00e9'
    session = ShellSession(ARGV[name], odd, tmp_path / "home")
    try:
        assert session.run("echo works\necho twice").output == b"works\ntwice\n"
    finally:
        session.close()


def test_syntax_of_the_files() -> None:
    directory = Path(__file__).parents[3] / "src" / "holdfast" / "host" / "shell"
    for command in (["bash", "-n", "bash.rc"], ["zsh", "-n", "zsh.rc"], ["dash", "-n", "posix.sh"]):
        subprocess.run(command, cwd=directory, check=True)
