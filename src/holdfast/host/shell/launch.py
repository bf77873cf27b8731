"""Starts a shell so that it carries Holdfast's hooks, without touching an rc file.

How each shell is made to read ours first, and the user's own files after that, as it would have:

    bash     --rcfile DIR/bash.rc, which reads ~/.bashrc; a login shell ignores --rcfile, so a login bash is
             started as a plain one and our file reads the profile files. (What differs then: `shopt
             login_shell` is off, `logout` is `exit`, ~/.bash_logout is not read; and where bash was built
             with a system-wide bashrc it is read first, which profiles usually do as well.)
    bash as sh, or under POSIXLY_CORRECT     ENV=DIR/bash.rc
    zsh      ZDOTDIR=DIR/zsh for .zshenv alone, which sets it back: zsh reads all the rest by itself
    dash, busybox sh     ENV=DIR/posix.sh; login profiles are read by our file, because a profile may set ENV

The nonce that authenticates marks is in those files (mode 0600, in a directory only the owner may enter)
and from there in a shell variable that is not exported. It is not in the environment, where
/proc/PID/environ would keep it even after `unset` and every child would have it, and not behind an
inherited descriptor, which children would have too and a checkpoint would trip over. What this stops:
bytes that a program prints (`cat evil.txt`, a remote host's output, a build log) are never taken for a
mark. What it does not stop: code that runs as the same user. That may read this directory or the shell's
memory, or be run in the shell itself.

Files rather than a descriptor that the rc reads once: the hooks must survive being removed by a command,
and a file costs nothing per prompt. Tried and rejected: PROMPT_COMMAND in the environment (profiles
overwrite it, and children inherit it); a wrapper .zshrc as well as .zshenv (/etc/zsh/zshrc then keeps
history and completion dumps in our directory).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from holdfast.core.commands import NONCE
from holdfast.host.shell.files import check_private, encoded, quoted, write_private
from holdfast.host.shell.run import BASH_LAST, RUN, TRIGGER, ShellKind
from holdfast.model.errors import Usage

SLOT = (
    "shape."  # and a number: where the shell writes what it is made of, each mark in the next file
)
SLOTS = 8  # also in bash.rc, zsh.rc and posix.sh
BODIES = "bodies"  # while it is there, functions are listed too
LOGIN_FLAGS = frozenset({"-l", "--login", "-il", "-li"})
INTERACTIVE_FLAGS = frozenset({"-i", "-il", "-li"})
_PROGRAM = re.compile(r"(bash|zsh|dash|ash|busybox)(?:[-.]?[0-9][0-9.]*|-static)?")
_TRIGGER_LINE = TRIGGER.decode().rstrip("\r")


@dataclass(frozen=True, slots=True)
class Launch:
    """What to execute. `kind` is None for what is not a plain interactive shell: nothing was changed."""

    argv: list[str]
    env: dict[str, str]
    kind: ShellKind | None
    nonce: str


@dataclass(frozen=True, slots=True)
class _Shell:
    kind: ShellKind
    posix_mode: bool = False  # bash that reads ENV instead of --rcfile


def prepare(
    argv: list[str], directory: Path, nonce: str, env: Mapping[str, str], login: bool
) -> Launch:
    """Makes `argv` carry the hooks if it is exactly a known interactive shell; otherwise hands it back."""
    if not NONCE.fullmatch(nonce):
        raise Usage("a nonce is 16 to 64 letters and digits")
    plain = Launch(list(argv), dict(env), None, nonce)
    if not argv or any(flag not in LOGIN_FLAGS | INTERACTIVE_FLAGS for flag in argv[1:]):
        return plain
    program = argv[0].removeprefix("-")
    shell = _recognise(program, env)
    if shell is None:
        return plain
    login = login or program != argv[0] or not LOGIN_FLAGS.isdisjoint(argv[1:])
    interactive = ["-i"] if INTERACTIVE_FLAGS.intersection(argv[1:]) else []
    check_private(directory)
    for name in (BODIES, *(f"{SLOT}{n}" for n in range(SLOTS))):
        write_private(directory / name, b"")  # the mode is ours, whatever the shell's umask is
    if shell.kind == "zsh":
        return _zsh(program, interactive, directory, nonce, env, login)
    if shell.kind == "posix":
        return _posix(program, interactive, directory, nonce, env, login)
    return _bash(program, interactive, directory, nonce, env, login, shell.posix_mode)


def _recognise(program: str, env: Mapping[str, str]) -> _Shell | None:
    """Which shell this is: by the file it resolves to, and by the name that tells it how to behave."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return None
    match = _PROGRAM.fullmatch(os.path.basename(os.path.realpath(found)))
    if match is None:
        return None
    called = os.path.basename(program)
    family = match[1]
    if family in ("dash", "ash"):
        return _Shell("posix")
    if family == "busybox":
        return _Shell("posix") if called in ("sh", "ash") else None
    if family == "bash" and called == "sh":
        return _Shell("bash", posix_mode=True)
    as_itself = _PROGRAM.fullmatch(called)  # not rbash or rzsh, which restrict themselves
    if as_itself is None or as_itself[1] != family:
        return None
    return _Shell("zsh") if family == "zsh" else _Shell("bash", posix_mode="POSIXLY_CORRECT" in env)


def _bash(
    program: str,
    interactive: list[str],
    directory: Path,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
    posix_mode: bool,
) -> Launch:
    files = ("posix-login" if login else "posix") if posix_mode else "login" if login else "rc"
    state = {
        "nonce": nonce,
        "seq": "0",
        "array": "1",
        "execfail": "",
        "prefix": "",
        "status": "0",
        "files": files,
        "trigger": _TRIGGER_LINE,
        "last": str(directory / BASH_LAST),
        "dir": str(directory),
    }
    header = [
        "unset -v _hf _hfs",
        f"_hf={quoted(str(directory / RUN))}",
        f"declare -A _hfs=({' '.join(f'[{key}]={quoted(value)}' for key, value in state.items())})",
    ]
    path = directory / "bash.rc"
    if not posix_mode:
        _install(path, header, "bash.rc")
        return Launch([program, "--rcfile", str(path), *interactive], dict(env), "bash", nonce)
    _install(path, [*header, _restored("ENV", env)], "bash.rc")
    return Launch([program, *interactive], {**env, "ENV": _unexpanded(path)}, "bash", nonce)


def _zsh(
    program: str,
    interactive: list[str],
    directory: Path,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
) -> Launch:
    state = {
        "nonce": nonce,
        "seq": "0",
        "status": "0",
        "xtrace": "",
        "prefix": "",
        "trigger": _TRIGGER_LINE,
        "dir": str(directory),
    }
    header = [
        "unset _hf _hfs",
        f"_hf={quoted(str(directory / RUN))}",
        "typeset -gAH _hfs",
        f"_hfs=({' '.join(f'{key} {quoted(value)}' for key, value in state.items())})",
        _restored("ZDOTDIR", env),
    ]
    home = directory / "zsh"
    home.mkdir(mode=0o700, exist_ok=True)
    _install(home / ".zshenv", header, "zsh.rc")
    flags = ["-l", *interactive] if login else interactive
    return Launch([program, *flags], {**env, "ZDOTDIR": str(home)}, "zsh", nonce)


def _posix(
    program: str,
    interactive: list[str],
    directory: Path,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
) -> Launch:
    header = [
        "unset _hf _hf_nonce _hf_seq _hf_prefix",
        f"_hf={quoted(str(directory / RUN))}",
        f"_hf_nonce={quoted(nonce)}",
        "_hf_esc='\033' _hf_bel='\007'",
        f"_hf_files={'login' if login else 'rc'}",
        _restored("ENV", env),
    ]
    path = directory / "posix.sh"
    _install(path, header, "posix.sh")
    return Launch([program, *interactive], {**env, "ENV": _unexpanded(path)}, "posix", nonce)


def _install(path: Path, header: list[str], name: str) -> None:
    body = resources.files("holdfast.host.shell").joinpath(name).read_bytes()
    write_private(path, encoded("\n".join(header) + "\n") + body)


def _restored(name: str, env: Mapping[str, str]) -> str:
    """Shell text that gives a variable we had to use back to the user as it was."""
    return f"export {name}={quoted(env[name])}" if name in env else f"unset {name}"


def _unexpanded(path: Path) -> str:
    """A path as a value of ENV, which shells expand like a double-quoted word."""
    return re.sub(r"([\\$`])", r"\\\1", str(path))
