"""The `commands` limit of an envelope at exec depth (A5, P4): is this program on the list? Pure.

The text of an act shows only the programs that the shell starts. An allowed program can start
others (`git -c core.pager=...`, `tar --checkpoint-action`, `awk`). So the list is compared again
with every program that the operator's acts cause, at the moment of the exec.

1. The list allows; it does not forbid. A program that the list does not name is refused, also if a
   listed program needs it (`git fetch` needs `git-remote-https`, `make` needs all tools).
2. A program counts under a name of the list only if the machine gave it that name: the file, or the
   link to it, lies in a directory of the system. `/tmp/git` is not `git`.
3. The name by which the program is called (argv[0]) must be on the list too, because programs with
   many names (busybox) act on it.
4. A script counts as itself, or as its interpreter: `./x` with `#!/bin/sh` is what `sh ./x` is.
   With `#!/usr/bin/env NAME` it counts as NAME, which is an exec of its own a moment later.
5. A program whose file or words are not known has no name, and is refused. So is a program that a
   task with other mounts or another root directory starts: there, `/usr/bin/git` may be any file.
6. A variable can make a listed program load code without an exec (GCONV_PATH, OPENSSL_CONF). So a
   program gets only variables that the session had already, and variables from a short list of
   harmless names. This does not apply to a list with a program that runs any code by itself
   (python3, make, gcc): such a list allows any code already.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.model.words import names_of

RULE: Final = "the commands of the grant"  # named as the rule of a refusal
SOURCE: Final = "envelope"
NAMES_SHOWN: Final = 8
BINS: Final = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/", "/usr/local/bin/", "/usr/local/sbin/")
# Directories in which links belong to the machine.
SYSTEM: Final = (*BINS, "/usr/lib/", "/usr/lib64/", "/usr/libexec/", "/lib/", "/lib64/")
# Places of files that a link in SYSTEM may lead to.
_INSTALLED: Final = (*SYSTEM, "/usr/", "/opt/", "/snap/", "/nix/")

_ANY: Final = r"(?s:.*)"
# Patterns of names and of values. These variables change only what a program prints or records.
# The C library takes a slash or ".." in a locale for a path; zone files lie below a fixed directory
# unless the name begins with a slash or a colon.
HARMLESS: Final = {
    r"LANG|LANGUAGE|LC_[A-Z]+": r"(?!.*\.\.)[\w.@:+-]*",
    r"TZ": r"(?!.*\.\.)[A-Za-z<][\w+,.<>/:-]*|",
    r"TERM|COLORTERM": r"[\w+-][\w.+-]*|",
    r"COLUMNS|LINES|SOURCE_DATE_EPOCH": r"[0-9]*",
    r"NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|CI|DEBIAN_FRONTEND": r"\w*",
    r"GIT_TERMINAL_PROMPT|GIT_OPTIONAL_LOCKS": r"\w*",
    r"GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)": _ANY,
    r"PAGER|GIT_PAGER": r"cat|",  # git then starts no pager
}
# Further variables that shells and programs set for the programs that they start. At exec depth
# they are harmless: at most they choose a program to execute, and that exec is judged.
SET_BY_PROGRAMS: Final = {
    r"PATH|PWD|OLDPWD|SHLVL|_|USER|LOGNAME|MAIL|SHELL|EDITOR|VISUAL|PAGER": _ANY,
    r"SUDO_[A-Z]+|GIT_\w+|TAR_\w+|DPKG_\w+": _ANY,
    r"LESS|LV": r"-?\w*",
    r"HOME": r"/root",
}
# Programs that run any code by themselves: languages, compilers with plug-ins, builders.
CODE_RUNNERS: Final = names_of(
    """
    bash zsh ksh fish node nodejs deno bun npm npx yarn pnpm perl ruby irb php lua luajit tclsh wish
    expect java javac jshell kotlin scala groovy julia R Rscript ghc runghc erl elixir iex guile
    sbcl make gmake cmake ninja meson bazel gradle mvn ant cargo rustc go gcc g++ cc c++ clang
    clang++ ld pip pip3 pipx uv poetry vim nvim vi emacs gdb lldb ipython ipython3 jupyter docker
    podman
    """
)
_VERSIONED: Final = re.compile(
    r"(python|pypy)[0-9.]*|(perl|ruby|lua|php|node|gcc|g\+\+|clang)[0-9.-]+"
)
VARIABLES_SHOWN: Final = 4

Names = tuple[frozenset[str], ...]
"""Alternatives. The program is on a list that has all names of one alternative."""


class Limit(NamedTuple):
    """The programs that the acts of an operator may start."""

    operator: str
    commands: frozenset[str]

    def covers(self, names: Names) -> bool:
        return any(one <= self.commands for one in names)

    @property
    def limits_variables(self) -> bool:
        """Say whether no listed program runs any code by itself."""
        return not any(one in CODE_RUNNERS or _VERSIONED.fullmatch(one) for one in self.commands)


class Program(NamedTuple):
    """The facts about a program that is about to run, as far as they are certain."""

    path: str  # the file as the caller of exec named it
    literal: bool  # the caller gave exactly this path, so links below SYSTEM are the machine's
    argv0: str
    file: str | None  # behind links; None: not known
    by: tuple[str, ...] = ()  # of a script: the interpreter and its words
    by_file: str = ""  # the interpreter's file, behind links


def names(program: Program) -> Names:
    """Return the names under which the program is on a list."""
    if program.file is None:
        return ()
    called = _base(program.argv0).lstrip("-") or _base(program.path)
    # the kernel passes the path of a script to its interpreter, and drops argv[0]
    also = () if program.by else (called,)
    found = list[frozenset[str]]()
    if program.literal and program.file.startswith(_INSTALLED) and _of_system(program.path):
        found.append(frozenset((_base(program.path), *also)))
    if _of_system(program.file):
        found.append(frozenset((_base(program.file), *also)))
    if program.by:
        found += _interpreter(program.by, program.by_file)
    return tuple(dict.fromkeys(found))


def _interpreter(by: Sequence[str], file: str) -> list[frozenset[str]]:
    name = _base(by[0])
    if not _of_system(file) and not (_of_system(by[0]) and file.startswith(_INSTALLED)):
        return []
    found = [frozenset((name,) if _of_system(by[0]) else (name, _base(file)))]
    if name == "env" and len(by) == 2 and not by[1].startswith("-") and "=" not in by[1]:
        found.append(frozenset((_base(by[1]),)))
    return found


def _of_system(path: str) -> bool:
    return path.startswith(SYSTEM) and {"", ".", ".."}.isdisjoint(path.split("/")[1:])


def _base(path: str) -> str:
    return path.rpartition("/")[2]


# ---------------------------------------------------------------- variables


def is_harmless(name: str, value: str | None, more: bool = False) -> bool:
    """Say whether a variable cannot make a program load code. The value None is not known.

    `more`: also if programs set it themselves, at exec depth.
    """
    found = _value_pattern(name, more)
    return found is not None and (
        found.pattern == _ANY if value is None else found.fullmatch(value) is not None
    )


@functools.lru_cache(1024)
def _value_pattern(name: str, more: bool) -> re.Pattern[str] | None:
    tables = (HARMLESS, SET_BY_PROGRAMS) if more else (HARMLESS,)
    found = [
        pattern for table in tables for known, pattern in table.items() if re.fullmatch(known, name)
    ]
    if not found:
        return None
    return re.compile(_ANY if _ANY in found else "|".join(found), re.ASCII)


def foreign(
    variables: Iterable[tuple[str, bytes]], is_given: Callable[[str, bytes], bool]
) -> tuple[str, ...]:
    """Return the names of variables that are neither harmless nor given by the session."""
    return tuple(
        dict.fromkeys(
            name
            for name, value in variables
            if not is_harmless(name, value.decode("utf-8", "surrogateescape"), more=True)
            and not is_given(name, value)
        )
    )


# ---------------------------------------------------------------- refusals


def refusal(
    limits: Sequence[Limit],
    names: Names,
    shown: str,
    variables: Sequence[str] = (),
    other_files: bool = False,
) -> str:
    """Return why these limits refuse the program, with the way to widen them; "" if they do not.

    `variables`: the foreign variables that the program would get. `other_files`: its mounts or its
    root directory are not those of the session.
    """
    limit = next((one for one in limits if other_files or not one.covers(names)), None)
    if limit is None:
        limit = next((one for one in limits if variables and one.limits_variables), None)
        if limit is None:
            return ""
        return (
            f"{_only_for(limit)}, and {shown} would get the variable "
            f"{', '.join(variables[:VARIABLES_SHOWN])}, which the session did not have and which "
            "may make it load other code"
        )
    why = _only_for(limit)
    if other_files:
        return (
            f"{why}, and {shown} would start with other mounts, another root directory or another "
            "user namespace than the session has"
        )
    if not names:
        return f"{why}, and {shown} is no program of the system with a known name"
    missing = min((sorted(one - limit.commands) for one in names), key=len)
    return (
        f"{why}, not for {shown}; to add it: "
        f"`holdfast grant {limit.operator} --rights run --commands {','.join(missing)}`"
    )


def _only_for(limit: Limit) -> str:
    listed = sorted(limit.commands)
    more = ", ..." if len(listed) > NAMES_SHOWN else ""
    return f"the grant of {limit.operator} is only for {', '.join(listed[:NAMES_SHOWN])}{more}"
