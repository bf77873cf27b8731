"""Starts a shell with Holdfast's hooks, without touching an rc file.

How each shell is made to read Holdfast's file first, and then the user's files as usual:

    bash     --rcfile DIR/bash.rc, which reads ~/.bashrc. A login shell ignores --rcfile, so a login
             bash is started as a plain one and bash.rc reads the profile files. The differences:
             `shopt login_shell` is off, `logout` is `exit`, ~/.bash_logout is not read. If bash was
             built with a system-wide bashrc, bash reads that first; profiles usually do as well.
    bash as sh, or under POSIXLY_CORRECT     ENV=DIR/bash.rc
    zsh      ZDOTDIR=DIR/zsh for .zshenv alone, which resets ZDOTDIR: zsh then reads all the rest
    dash, busybox sh     ENV=DIR/posix.sh, which reads login profiles: a profile may set ENV

The key that authenticates marks (`core/session/mark_tags.py`) is in a file of its own. The shell
reads and empties that file before it reads any file of the user, so before other code of the
session runs. From then on the key is only in the shell's memory, in a variable that is not
exported and that the shell's snapshots leave out. It is not in the environment: /proc/PID/environ
would keep it even after `unset`, and every child would have it. Nor is it behind an inherited
descriptor: children would have that too, and a checkpoint would trip over it. So neither an
observer of the output nor a program of the session can make a mark, with these exceptions: code
that runs in the shell itself, a program with a debugger's rights over the shell, and in a plain
session a program outside that read the file in time.

Hooks are in files rather than behind a descriptor that the rc reads once: the hooks must survive
their removal by a command, and a file costs nothing per prompt. Tried and rejected: PROMPT_COMMAND
in the environment (profiles overwrite it, and children inherit it); a wrapper .zshrc as well as
.zshenv (/etc/zsh/zshrc then keeps history and completion dumps in Holdfast's directory); a random
value of each mark for the next (the output has it before the host).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.session.mark_tags import MarkKey
from holdfast.core.session.shell_marks import NONCE
from holdfast.host.shell.directories import SessionDirectories
from holdfast.host.shell.files import check_private, encoded, quoted, write_private
from holdfast.host.shell.run import BASH_LAST, RUN, TRIGGER, ShellKind
from holdfast.model.errors import Usage

# In the writable directory, followed by a number: snapshots of the shell's state. Each mark has the
# next file.
SLOT = "shape."
SLOTS = 8  # also in bash.rc, zsh.rc and posix.sh
# In the readable directory: while this file exists, snapshots list functions too.
BODIES = "bodies"
# In the writable directory: the start of the marks' tags. The shell first reads this file and
# empties it.
KEY = "key"
LOGIN_FLAGS = frozenset({"-l", "--login", "-il", "-li"})
INTERACTIVE_FLAGS = frozenset({"-i", "-il", "-li"})
_PROGRAM = re.compile(r"(bash|zsh|dash|ash|busybox)(?:[-.]?[0-9][0-9.]*|-static)?")
_TRIGGER_LINE = TRIGGER.decode().rstrip("\r")


@dataclass(frozen=True, slots=True)
class Launch:
    """The program to execute. `kind` is None for any program but a known shell."""

    argv: list[str]
    env: dict[str, str]
    kind: ShellKind | None
    nonce: str


@dataclass(frozen=True, slots=True)
class _Shell:
    kind: ShellKind
    posix_mode: bool = False  # bash that reads ENV instead of --rcfile


def prepare(
    argv: list[str],
    directories: SessionDirectories,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
) -> Launch:
    """Adds the hooks to `argv` if it is a known interactive shell; else returns it unchanged."""
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
    check_private(directories.readable)
    check_private(directories.writable)
    write_private(directories.readable / BODIES, b"")
    for n in range(SLOTS):
        # This sets the mode, independent of the shell's umask.
        write_private(directories.writable / f"{SLOT}{n}", b"")
    write_private(directories.writable / KEY, f"{MarkKey(nonce).start}\n".encode())
    if shell.kind == "zsh":
        return _zsh(program, interactive, directories, nonce, env, login)
    if shell.kind == "posix":
        return _posix(program, interactive, directories, nonce, env, login)
    return _bash(program, interactive, directories, nonce, env, login, shell.posix_mode)


def is_shell(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether `argv` is an interactive shell, known or not, that runs no command by itself."""
    if not argv or any(flag not in LOGIN_FLAGS | INTERACTIVE_FLAGS for flag in argv[1:]):
        return False
    program = argv[0].removeprefix("-")
    if _recognise(program, env) is not None:
        return True
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    try:
        return found is not None and found in Path("/etc/shells").read_text().split()
    except OSError:
        return False


def _recognise(program: str, env: Mapping[str, str]) -> _Shell | None:
    """The kind of shell, by the resolved file and by the name under which it is called."""
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
    directories: SessionDirectories,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
    posix_mode: bool,
) -> Launch:
    files = ("posix-login" if login else "posix") if posix_mode else "login" if login else "rc"
    state = {
        "seq": "0",
        "array": "1",
        "execfail": "",
        "prefix": "",
        "status": "0",
        "files": files,
        "trigger": _TRIGGER_LINE,
        "last": str(directories.writable_inside / BASH_LAST),
        "dir": str(directories.writable_inside),
    }
    header = [
        "unset -v _hf _hfs",
        f"_hf={quoted(str(directories.readable_inside / RUN))}",
        f"declare -A _hfs=({' '.join(f'[{key}]={quoted(value)}' for key, value in state.items())})",
    ]
    path, inside = directories.readable / "bash.rc", directories.readable_inside / "bash.rc"
    if not posix_mode:
        _install(path, header, "bash.rc")
        return Launch([program, "--rcfile", str(inside), *interactive], dict(env), "bash", nonce)
    _install(path, [*header, _restored("ENV", env)], "bash.rc")
    return Launch([program, *interactive], {**env, "ENV": _unexpanded(inside)}, "bash", nonce)


def _zsh(
    program: str,
    interactive: list[str],
    directories: SessionDirectories,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
) -> Launch:
    state = {
        "seq": "0",
        "status": "0",
        "xtrace": "",
        "prefix": "",
        "trigger": _TRIGGER_LINE,
        "dir": str(directories.writable_inside),
    }
    header = [
        "unset _hf _hfs",
        f"_hf={quoted(str(directories.readable_inside / RUN))}",
        "typeset -gAH _hfs",
        f"_hfs=({' '.join(f'{key} {quoted(value)}' for key, value in state.items())})",
        _restored("ZDOTDIR", env),
    ]
    home = directories.readable / "zsh"
    home.mkdir(mode=0o700, exist_ok=True)
    _install(home / ".zshenv", header, "zsh.rc")
    flags = ["-l", *interactive] if login else interactive
    inside = directories.readable_inside / "zsh"
    return Launch([program, *flags], {**env, "ZDOTDIR": str(inside)}, "zsh", nonce)


def _posix(
    program: str,
    interactive: list[str],
    directories: SessionDirectories,
    nonce: str,
    env: Mapping[str, str],
    login: bool,
) -> Launch:
    header = [
        "unset _hf _hf_own _hf_seq _hf_prefix",
        f"_hf={quoted(str(directories.readable_inside / RUN))}",
        "_hf_esc='\033' _hf_bel='\007'",
        f"_hf_files={'login' if login else 'rc'}",
        _restored("ENV", env),
    ]
    if directories.writable_inside != directories.readable_inside:
        header.append(f"_hf_own={quoted(str(directories.writable_inside))}")
    _install(directories.readable / "posix.sh", header, "posix.sh")
    inside = directories.readable_inside / "posix.sh"
    return Launch([program, *interactive], {**env, "ENV": _unexpanded(inside)}, "posix", nonce)


def _install(path: Path, header: list[str], name: str) -> None:
    body = Path(__file__).with_name(name).read_bytes()
    write_private(path, encoded("\n".join(header) + "\n") + body)


def _restored(name: str, env: Mapping[str, str]) -> str:
    """Shell text that restores a variable which Holdfast had to use."""
    return f"export {name}={quoted(env[name])}" if name in env else f"unset {name}"


def _unexpanded(path: Path) -> str:
    """A path as a value of ENV, which shells expand like a double-quoted word."""
    return re.sub(r"([\\$`])", r"\\\1", str(path))
