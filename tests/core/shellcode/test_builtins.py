"""Builtins of the shells: each has a row, and none changes later words or a file unseen."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from holdfast.core.shellcode.facts import Facts, Surroundings, analyse
from holdfast.core.shellcode.one_program import OF_SHELLS
from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.reasons import CODES
from holdfast.host.policy.shfmt import Parser

PARSE = Parser(wait_s=60.0)
HOME, PROJECT = "/home/ann", "/home/ann/project"

# How each shell lists its builtins; zsh with those of all its modules.
LISTS = {
    "bash": "compgen -b",
    "zsh": """
        for module in $module_path/zsh/**/*.so(N); do
            zmodload ${${module#$module_path/}%.so} 2> /dev/null > /dev/null
        done
        print -l ${(ok)builtins}
    """,
}
# POSIX, and what dash adds: dash cannot list them.
DASH = """
. : [ alias bg break cd chdir command continue echo eval exec exit export false fc fg getopts hash
jobs kill local printf pwd read readonly return set shift test times trap true type ulimit umask
unalias unset wait
"""
# Builtins of zsh's modules that have the name of a program. `zmodload` is asked about.
_LIKE_PROGRAMS = """
cap chgrp chmod chown clone example getcap ln mkdir mv rm rmdir setcap stat sync
"""
LIKE_PROGRAMS = frozenset(_LIKE_PROGRAMS.split())


def facts(text: str, shell: str = "bash") -> Facts:
    return analyse(text, PARSE, Surroundings(PROJECT, HOME, shell))


def codes(text: str, shell: str = "bash") -> set[str]:
    return {reason.code for reason in facts(text, shell).unresolvable}


def writes(text: str, shell: str = "bash") -> set[str]:
    return {p.path for c in facts(text, shell).commands for item in c.writes for p in item}


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
def test_p4_every_builtin_of_the_installed_shells_has_a_row(shell: str) -> None:
    if shell == "dash":
        listed = DASH
    elif shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    else:
        bare = {"bash": ["--norc"], "zsh": ["-f"]}[shell]
        done = subprocess.run(
            [shell, *bare, "-c", LISTS[shell]], capture_output=True, text=True, timeout=60
        )
        listed = "\n".join(line for line in done.stdout.splitlines() if " " not in line)
    rows = programs().builtins
    assert len(listed.split()) > 30
    assert set(listed.split()) - LIKE_PROGRAMS - set(rows) == set()
    assert all(rows[name].only in ("", shell) for name in {*listed.split()} & set(rows))


def test_rows_of_builtins_are_well_formed() -> None:
    for name, row in programs().builtins.items():
        assert row.only in ("", "bash", "zsh"), name
        assert row.why == "" or row.why in CODES, name
        assert row.judge in ("", "options", "trap", "declares"), name
        assert not (row.plain or row.alone) or row.why, f"{name} has no reason to give"
        re.compile(row.plain)


def test_one_program_knows_the_builtins_that_need_no_module() -> None:
    assert {name for name, row in programs().builtins.items() if not row.only} <= OF_SHELLS


ZSH = [
    "hash ls=/bin/rm; ls -r x",
    "hash -- ls=/bin/rm",
    "hash -v ls=/bin/rm",
    "builtin hash ls=/bin/rm",
    "hash l\\s=/bin/rm",
    'hash "$x"',
    "hash -d foo=/etc",
    "hash -dL foo=/etc",
    "unhash ls",
    "alias -g X='; rm y'",
    "alias -s txt=rm",
    "enable ls",
    "disable cd",
    "autoload -U cd",
    "functions -c a b",
    "typeset -fu cd",
    "typeset -f -u cd",
    "builtin typeset -fU cd",
    "typeset -T A path",
    "zmodload zsh/files",
    "zle -N x y",
    "bindkey '^M' x",
    "compdef _x ls",
    "setopt aliases",
    "emulate sh",
    "cdpath=(/srv)",
    "STTY='sane; rm x' ls",
    "MAILPATH='x?$(rm y)'",
    "mailpath=('x?$(rm y)')",
    "TRAPCHLD() { :; }",
    "function TRAPDEBUG { :; }",
    "TRAPZERR() :",
    "function a TRAPEXIT b { : }",
    "precmd() { :; }",
    "chpwd() { :; }",
    "command_not_found_handler() { :; }",
    "zle-line-init() { :; }",
    "print -z x",
    "HISTCHARS='!^x'",
    "MODULE_PATH=/x",
]
BASH = [
    "hash -p /bin/rm ls",
    "hash -rp /bin/rm ls",
    "hash -d ls",
    "builtin hash -p /bin/rm ls",
    "enable -f ./x.so x",
    "enable -n cd",
    "complete -C x y",
    "complete -F x y",
    "bind -x '\"a\":x'",
    "shopt -s expand_aliases",
    "set -o history",
    "declare -n x=PATH; x=/srv",
    "local -n x=PATH",
    "typeset -gn x=PATH",
    "builtin declare -n x=PATH",
    "builtin export PATH=/x",
    "\\export PATH=/x",
    "command declare PATH=/x",
    "wait -p PATH",
    "wait -n -p PATH 1",
    "wait -npPATH",
    "MAILPATH='x?$(rm y)'",
    "auto_resume=exact",
    "cd() { builtin cd /etc; }",
    "rm() { :; }",
    "function git { :; }",
    "command_not_found_handle() { :; }",
    "trap 'x' CHLD",
    "trap x EXIT",
    "trap -- x DEBUG",
    "trap x ERR RETURN",
    'trap "$x" INT',
    "builtin trap x 0",
    "(trap x EXIT; y)",
    "bash -c 'trap x DEBUG'",
    "f() { trap x RETURN; }",
]


@pytest.mark.parametrize("text", ZSH)
def test_p4_zsh_text_that_changes_the_meaning_of_later_words(text: str) -> None:
    assert codes(text, "zsh") & {"shaping", "construct"}


@pytest.mark.parametrize("text", BASH)
def test_p4_bash_text_that_changes_the_meaning_of_later_words(text: str) -> None:
    assert "shaping" in codes(text)


def test_p4_a_text_with_a_trap_names_the_trap_and_judges_its_text() -> None:
    found = facts("trap 'rm /srv/x' EXIT")
    assert [reason.detail for reason in found.unresolvable] == ["trap"]
    assert writes("trap 'rm /srv/x' EXIT") == {"/srv/x"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    "text",
    [
        "hash",
        "hash -r",
        "hash ls cat",
        "trap - EXIT",
        "trap '' TERM HUP",
        "trap -- - INT",
        "trap -p EXIT",
        "trap -l",
        "trap",
        "typeset -u x",
        "typeset -f x",
        "wait 1 2",
        "wait $!",
        "builtin export A=b",
        'log() { echo "$1"; }; say() { log x; }; say',
        "HISTFILE=/dev/null; unset HISTFILE; HISTFILE=",
        "history 20",
        "jobs -l",
        "GIT_TRACE=1 git status",
        "dirs -v",
    ],
)
def test_p4_builtins_that_change_nothing_stay_resolvable(text: str, shell: str) -> None:
    if shell == "zsh" and "log()" in text:
        pytest.skip("log is a builtin of zsh")
    assert codes(text, shell) == set() and writes(text, shell) == set()


WRITES: list[tuple[str, str]] = [
    ("history -w /srv/x", "bash"),
    ("history -a /srv/x", "bash"),
    ("history -cw /srv/x", "bash"),
    ("history -w -- /srv/x", "bash"),
    ("builtin history -w /srv/x", "bash"),
    ("history -c; history -s 'evil'; history -w /srv/x", "bash"),
    ("HISTFILE=/srv/x", "bash"),
    ("export HISTFILE=/srv/x", "bash"),
    ("declare -g HISTFILE=/srv/x", "bash"),
    ("builtin export HISTFILE=/srv/x", "bash"),
    ("env HISTFILE=/srv/x bash -i", "bash"),
    ("HISTFILE=/srv/x bash -c 'exit'", "bash"),
    ("HISTFILE=/srv/x", "zsh"),
    ("TMPPREFIX=/srv/x", "zsh"),
    ("GIT_TRACE=/srv/x git status", "bash"),
    ("GIT_TRACE2_EVENT=/srv/x git status", "bash"),
    ("fc -W /srv/x", "zsh"),
    ("fc -A /srv/x", "zsh"),
    ("fc -p /srv/x", "zsh"),
    ("zcompile /srv/x", "zsh"),
    ("sysopen -w -u 3 /srv/x", "zsh"),
    ("zf_rm /srv/x", "zsh"),
    ("exec > /srv/x", "bash"),
    ("exec 3<> /srv/x", "zsh"),
    ("exec {fd}>> /srv/x", "bash"),
    ("echo x >! /srv/x", "zsh"),
    ("/usr/bin/time -o /srv/x ls", "bash"),
    ("/usr/bin/time --output=/srv/x ls", "bash"),
    ("strace -o /srv/x ls", "bash"),
    ("strace -fo /srv/x ls", "bash"),
    ("strace -o/srv/x ls", "bash"),
    ("script -c ls /srv/x", "bash"),
    ("script -O /srv/x -c ls", "bash"),
    ("script -qO/srv/x -c ls", "bash"),
]


@pytest.mark.parametrize(("text", "shell"), WRITES, ids=[f"{s}: {t}" for t, s in WRITES])
def test_p4_files_that_a_builtin_or_a_wrapper_writes_are_writes(text: str, shell: str) -> None:
    assert writes(text, shell) == {"/srv/x"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('history -w "$x"', "arguments"),
        ('HISTFILE="$x"', "redirect"),
        ("HISTFILE=name; cd /srv", "redirect"),
        ("read HISTFILE", "shaping"),
        ("printf -v HISTFILE %s /srv/x", "shaping"),
        (": ${HISTFILE:=/srv/x}", "shaping"),
        ("for HISTFILE in /srv/x; do :; done", "shaping"),
        ("HISTFILE+=x", "redirect"),
        ('strace -o "$x" ls', "redirect"),
        ("strace -o '|rm -r y' ls", "code"),
        ("strace -o '!rm -r y' ls", "code"),
        ("source <(curl x)", "source"),
        (". =(curl x)", "source"),
    ],
)
def test_p4_a_file_that_a_builtin_writes_is_known_or_a_reason(text: str, code: str) -> None:
    shell = "zsh" if "=(" in text else "bash"
    assert code in codes(text, shell)
