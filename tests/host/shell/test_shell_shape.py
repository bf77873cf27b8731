"""What a live shell says of itself, whatever its user has set (P3): it is there before the mark, it is right, and the shell goes on as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.host.shell_session import ShellSession

from holdfast.core.commands import MarkKind
from holdfast.core.shellstate import Snapshot, read
from holdfast.host.shell.launch import BODIES, SLOT, SLOTS


def said(shell: ShellSession) -> Snapshot | None:
    """Beside the last prompt."""
    seq = next(mark.seq for mark in reversed(shell.marks) if mark.kind is MarkKind.PROMPT)
    found = read((shell.directory / f"{SLOT}{seq % SLOTS}").read_bytes())
    return found if found is not None and found.seq == seq else None


ODD = [
    "set -e",
    "set -u",
    "set -a",
    "set -x",
    "set -o noclobber",
    "IFS=:",
    "readonly x1=1",
    "umask 777",
    "cd /; cd -",
    "exec 4</dev/null",
    "export LC_ALL=C",
    "unset PROMPT_COMMAND",
    "trap 'true' DEBUG",
    "trap 'true' ERR",
    "x='a\nb'",
]
BASH = [
    "set -o posix",
    "declare -A m=([a]=b)",
    "printf() { :; }",
    "declare() { :; }",
    "alias builtin=false",
    "alias printf=false",
    "shopt -s extdebug",
    "set -T; trap 'true' DEBUG",
    "shopt -s failglob",
    "declare -n r=x",
    "set -o functrace",
    "unset BASH_ALIASES",
    "PROMPT_COMMAND='true; true'",
    "PROMPT_COMMAND=(true true)",
]
ZSH = [
    "setopt ksh_arrays",
    "setopt sh_word_split",
    "setopt no_unset",
    "setopt err_exit",
    "print() { :; }",
    "typeset() { :; }",
    "alias print=false",
    "setopt extended_glob null_glob",
    "setopt ksh_option_print",
    "emulate sh",
    "setopt warn_create_global",
    "typeset -H h=1",
    "setopt local_options xtrace",
    "precmd() { true; }",
    "setopt clobber",
]


@pytest.mark.parametrize(
    ("name", "text"), [*(("bash", t) for t in (*ODD, *BASH)), *(("zsh", t) for t in (*ODD, *ZSH))]
)
def test_p3_a_shell_says_what_it_is_made_of_whatever_is_set(
    tmp_path: Path, name: str, text: str
) -> None:
    shell = ShellSession([name], tmp_path / "dir", tmp_path / "home")
    try:
        shell.prompt()
        first = said(shell)
        assert first is not None and first.functions
        shell.run(text)
        shell.prompt()
        shell.run("export marker=1; alias hello=goodbye; fun() { true; }; cd /usr")
        shell.prompt()
        found = said(shell)
        assert found is not None, text
        assert (
            {("variable", "marker"), ("alias", "hello"), ("function", "fun")} <= set(found.values)
            and found.cwd == "/usr"
            and "marker" in found.exported
        )
        (shell.directory / BODIES).unlink()
        shell.run("echo on")
        shell.prompt()
        later = said(shell)
        assert later is not None and not later.functions
        same = {
            piece: value
            for piece, value in found.values.items()
            if piece[0] not in ("function", "hash")
        }
        assert {
            piece for piece in {*same, *later.values} if same.get(piece) != later.values.get(piece)
        } <= {("trap", "*")}, "nothing changed, so nothing is said to have"
    finally:
        shell.close()


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_p3_where_it_cannot_write_the_marks_come_all_the_same(tmp_path: Path, name: str) -> None:
    shell = ShellSession([name], tmp_path / "dir", tmp_path / "home")
    try:
        shell.prompt()
        for slot in shell.directory.glob(f"{SLOT}*"):
            slot.unlink()
            slot.mkdir()
        done = shell.run("echo fine; (exit 3)")
        assert done.output == b"fine\n" and done.exit == 3
        shell.line("(exit 4)")
        shell.prompt()
        assert shell.marks[-1].exit == 4
        assert b"shape" not in bytes(shell.stream)
    finally:
        shell.close()
