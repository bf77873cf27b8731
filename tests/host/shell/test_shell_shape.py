"""Snapshots that a live shell writes of its state, under any options of the user (P3).

A snapshot is there before the mark, it is right, and the shell goes on as before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.originators.shell_state import Snapshot, read
from holdfast.core.session.shell_marks import MarkKind
from holdfast.host.shell.launch import BODIES, SLOT, SLOTS
from tests.support.shell_session import ShellSession


def said(shell: ShellSession) -> Snapshot | None:
    """The snapshot of the last prompt."""
    seq = next(mark.seq for mark in reversed(shell.marks) if mark.kind is MarkKind.PROMPT)
    found = read((shell.directories.writable / f"{SLOT}{seq % SLOTS}").read_bytes())
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
def test_p3_a_shell_writes_its_state_under_any_options(
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
def test_p3_marks_come_even_if_the_state_cannot_be_written(tmp_path: Path, name: str) -> None:
    shell = ShellSession([name], tmp_path / "dir", tmp_path / "home")
    try:
        shell.prompt()
        for slot in shell.directories.writable.glob(f"{SLOT}*"):
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
