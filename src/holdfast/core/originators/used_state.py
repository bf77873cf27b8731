"""The shell state that a command would use, with the authors (P3).

The gate asks before the command is passed on. The search follows the command as the shell would.
The name is an alias, a function, a builtin, or a program that an entry of PATH leads to. The
program is given the exported variables, the shell itself reads some variables, and the text names
others. Hooks, traps and options act on every line. The command runs in a directory and reads files.
Only state that an operator changed is listed (core/originators/originators.py). State that
cannot be followed is listed as unknown:

- a text without facts, a command with an unknown name, a line that a foreground program reads;
- a shell that has not reported its state, or not since the last command.

The calls inside of a function are not followed: a function may use every other changed function.
Nor are the actions of a program: the exec gate sees these. Pure: the existence and the writers of a
file, and the implied files of a program, come from functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.core.originators.lineage import SHELL
from holdfast.core.originators.originators import UNKNOWN, Shaped, bounded
from holdfast.core.originators.shell_authors import HOOKS, Author, View
from holdfast.core.originators.shell_state import CWD, Piece
from holdfast.core.shellcode.facts import Command, Facts
from holdfast.model.words import names_of

ALIASES_MAX: Final = 16  # names to which one name is followed, through aliases of aliases
NAME_CHARS: Final = 256
# Variables that make programs load or run code.
PRELOADS: Final = names_of(
    """
    PYTHONSTARTUP PYTHONPATH PYTHONHOME PYTHONBREAKPOINT PYTHONWARNINGS NODE_OPTIONS NODE_PATH
    PERL5OPT PERL5LIB PERL5DB PERLLIB RUBYOPT RUBYLIB BASH_ENV ENV ZDOTDIR SHELLOPTS BASHOPTS
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS GCONV_PATH GIT_SSH GIT_SSH_COMMAND
    GIT_ASKPASS GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_EXTERNAL_DIFF GIT_EXEC_PATH
    GIT_TEMPLATE_DIR GIT_PROXY_COMMAND GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM
    GIT_CONFIG_PARAMETERS SSH_ASKPASS SUDO_ASKPASS LESSOPEN LESSCLOSE MAKEFLAGS MAKEFILES
    CARGO_HOME RUSTC_WRAPPER PROMPT_COMMAND FPATH MODULE_PATH BASH_LOADABLES_PATH
    OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES LOCPATH NLSPATH P11_KIT_MODULE SASL_PATH
    GSS_MECH_CONFIG KRB5_CONFIG GIO_MODULE_DIR GTK_PATH QT_PLUGIN_PATH SSH_SK_PROVIDER AWKLIBPATH
    AWKPATH TAR_OPTIONS VIMINIT EXINIT XDG_CONFIG_HOME XDG_CONFIG_DIRS GCC_EXEC_PREFIX
    COMPILER_PATH CLASSPATH LUA_INIT LUA_PATH LUA_CPATH PHPRC PHP_INI_SCAN_DIR R_PROFILE
    JULIA_LOAD_PATH GUILE_LOAD_PATH
    """
)
_PRELOAD_BEGINS: Final = ("LD_", "DYLD_", "BASH_FUNC_", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")
# Variables that the shell reads for every line.
_ALWAYS: Final = frozenset(
    ("IFS", "BASH_COMPAT", "POSIXLY_CORRECT", "GLOBIGNORE", "NULLCMD", "READNULLCMD")
)
_BUILTINS: Final = names_of(
    """
    . : [ alias autoload bg bind break builtin bye caller case cd chdir command compgen complete
    compopt continue declare dirs disable disown echo emulate enable eval exec exit export false
    fc fg float functions getopts hash help history integer jobs kill let limit local logout
    mapfile noglob popd print printf pushd pushln pwd read readarray readonly rehash return set
    setopt shift shopt source suspend test time times trap true type typeset ulimit umask
    unalias unfunction unhash unlimit unset unsetopt vared wait whence where which zmodload zle
    zstyle
    """
)
# Builtins that only bash has, or only zsh.
_SOMEWHERE: Final = names_of(
    """
    autoload bind bye caller chdir compgen complete compopt disable emulate float functions help
    integer limit mapfile noglob print pushln readarray rehash setopt shopt unfunction unhash
    unlimit unsetopt vared whence where which zle zmodload zstyle
    """
)
_NAMED: Final = re.compile(r"\$\{?(?:\([^()]*\))?[#!=^~+]*([A-Za-z_]\w*)|~")
# State that no shell lists: the positional parameters, and the directory stack.
_UNLISTED: Final = (
    ("positional parameters", re.compile(r"(?<!\\)\$(?:[1-9@*#]|\{#?[1-9@*]|\{#\})")),
    ("directory stack", re.compile(r"\bpopd\b|\bpushd\s*(?:$|[;&|+-])|(?<![^\s:=])~[+-]?\d")),
)
_BACK: Final = re.compile(r"\bcd\s+(?:-[A-Za-z]+\s+)*-(?:[\s;&|)]|$)|(?<![^\s:=])~-")
_SINGLE_QUOTED: Final = re.compile(r"'[^']*'")
_WORDS: Final = re.compile(r"[A-Za-z_]\w*")
_PLAIN: Final = re.compile(r"[^\s;|&()<>'\"]+")
_ARITHMETIC: Final = re.compile(
    r"\(\(|\[|\$\{[^}]*:|\b(?:let|declare|typeset|integer|float|local|readonly|export|test|read|for"
    r"|printf|exit|return|shift)\b"
)

Writers = Callable[[Sequence[str]], Iterable[Shaped]]
Implied = Callable[[Command, str | None], tuple[str, ...]]


class World(NamedTuple):
    """The questions that are answered outside of the shell's state."""

    exists: Callable[[str], bool] = lambda path: False  # is there a program that may be run?
    writers: Writers = lambda paths: ()  # the authors of these files
    implied: Implied = lambda command, cwd: ()


NO_WORLD: Final = World()


def used_by_line(
    view: View,
    facts: Facts | None,
    text: str,
    actor: str,
    cwd: str | None = None,
    typists: Iterable[str] = (),
    reader: str = "",
    world: World = NO_WORLD,
) -> tuple[Shaped, ...]:
    """Return the state that a text of `actor` would use.

    `typists` are other operators who typed on the line. `reader` is the program that reads the
    line, if that is not the shell.
    """
    found = [Shaped("line", "", who) for who in typists if who != actor]
    if view.blind:
        found.append(Shaped("shell", view.blind, UNKNOWN))
    if reader:
        found.append(Shaped("shell", f"{reader} reads it", UNKNOWN))
    found += _always(view)
    if facts is None:
        return bounded(found, actor)
    if facts.reasons or not facts.commands:
        found += [Shaped("shell", reason.code, UNKNOWN) for reason in facts.reasons[:1]]
    found += _read(view, text)
    programs, files = False, list[str]()
    for command in facts.commands:
        for name in (*command.via, command.name):
            pieces, program = _named(view, name, command, cwd, world, files)
            found += pieces
            programs = programs or program
        files += (place.path for item in command.paths for place in item if not place.glob)
        files += world.implied(command, cwd)
    if programs:
        found += _handed(view)
    return bounded([*found, *world.writers([*dict.fromkeys(files)])], actor)


def used_by_program(
    view: View,
    path: str,
    files: Sequence[str],
    actor: str,
    typists: Iterable[str] = (),
    world: World = NO_WORLD,
) -> tuple[Shaped, ...]:
    """Return the state that a program about to be executed would use.

    `files` are given to the program or read by it unasked. No alias or function is involved, only
    the environment and the directory. The shell starts programs by itself for a hook or a trap. A
    program that it starts during a command may belong to a trap.
    """
    found = [Shaped("line", "", who) for who in typists if who != actor]
    if view.blind:
        found.append(Shaped("shell", view.blind, UNKNOWN))
    found += _of(view, CWD, "cwd", view.state.cwd if view.state is not None else "")
    found += [
        one if actor == SHELL.actor else one._replace(sure=False)
        for one in _always(view)
        if one.kind in ("hook", "trap")
    ]
    found += _of(view, ("path", path.rpartition("/")[0]), "path")
    return bounded([*found, *_handed(view), *world.writers([path, *files])], actor)


def kinds_of_others(view: View, actor: str) -> frozenset[str]:
    """Return the kinds of state of which some belongs to another or an unknown operator."""
    others = [
        piece
        for piece, author in view.authors.items()
        if any(hand.actor != actor for hand in author)
    ]
    active = view.state.active if view.state is not None else frozenset[str]()
    found = {kind_of(piece) for piece in others} | {
        "hook" for kind, name in others if kind == "variable" and name in active
    }
    return frozenset(found | {"shell"} if view.blind else found)


# ---------------------------------------------------------------- parts


def _of(
    view: View, piece: Piece, kind: str, name: str | None = None, sure: bool = True
) -> list[Shaped]:
    return shaped(piece, view.authors.get(piece, ()), kind, name, sure)


def shaped(
    piece: Piece,
    author: Author,
    kind: str | None = None,
    name: str | None = None,
    sure: bool = True,
) -> list[Shaped]:
    """Return a piece of the shell's state, once for each author."""
    return [
        Shaped(
            kind or kind_of(piece),
            (piece[1] if name is None else name)[:NAME_CHARS],
            hand.actor,
            hand.act,
            sure and hand.sure,
        )
        for hand in author
    ]


def kind_of(piece: Piece) -> str:
    kind, name = piece
    if kind == "variable":
        return (
            "hook"
            if name in HOOKS
            else "preload"
            if name in PRELOADS or name.startswith(_PRELOAD_BEGINS)
            else "variable"
        )
    return "hook" if kind == "function" and name in HOOKS else "path" if kind == "hash" else kind


def _always(view: View) -> Iterator[Shaped]:
    """Yield the state that acts on every line."""
    for piece, author in view.authors.items():
        kind, name = piece
        if kind in ("trap", "option") or name in HOOKS or (kind == "variable" and name in _ALWAYS):
            yield from shaped(piece, author)
        elif kind == "variable" and view.state is not None and name in view.state.active:
            yield from shaped(piece, author, "hook")
        elif piece == CWD:
            yield from shaped(piece, author, name=view.state.cwd if view.state is not None else "")


def _read(view: View, text: str) -> Iterator[Shaped]:
    """Yield the variables that the text names, state that is not listed, and aliases."""
    named = {found[1] or "HOME" for found in _NAMED.finditer(text)}
    bare = _SINGLE_QUOTED.sub("''", text)
    for what, pattern in _UNLISTED:
        if pattern.search(bare):
            yield Shaped("shell", what, UNKNOWN)
    if _BACK.search(bare):
        named.add("OLDPWD")
    maybe = {*_WORDS.findall(text)} - named if _ARITHMETIC.search(text) else set[str]()
    for name in sorted(named | maybe):
        yield from _of(view, ("variable", name), kind_of(("variable", name)), sure=name in named)
    anywhere = view.state.anywhere if view.state is not None else frozenset[str]()
    for word in dict.fromkeys(_PLAIN.findall(text)) if anywhere else ():
        for alias in (word, f".{word.rpartition('.')[2]}"):
            if alias in anywhere:
                yield from _of(view, ("alias", alias), "alias")


def _handed(view: View) -> Iterator[Shaped]:
    """Yield the variables that every program is given."""
    exported = view.state.exported if view.state is not None else frozenset[str]()
    for piece, author in view.authors.items():
        if (
            piece[0] == "variable"
            and piece[1] not in HOOKS
            and (
                piece[1] in exported
                or ("variable", piece[1])
                not in (view.state.values if view.state is not None else {})
            )
        ):
            yield from shaped(piece, author)


def _named(
    view: View, name: str, command: Command, cwd: str | None, world: World, files: list[str]
) -> tuple[list[Shaped], bool]:
    """Return the state behind a command's name, and whether it is a program.

    The file of the program is added to `files`.
    """
    if not name:
        return [Shaped("shell", "a command whose name is not known", UNKNOWN)], True
    if name == ":":
        return [], False
    state, found, names = view.state, list[Shaped](), [name]
    written = next(
        (path for one, path in command.called if one == name), name if "/" in name else ""
    )
    if not written and state is not None:
        for one in names:  # grows while aliases are followed
            found += _of(view, ("alias", one), "alias")
            names += [word for word in state.aliases.get(one, ()) if word not in names][
                : ALIASES_MAX - len(names)
            ]
        # an alias without plain text may run any program
        program = any(not state.aliases.get(one, (one,)) for one in names)
        for one in names:
            if one not in state.aliases or one in state.aliases[one]:
                pieces, runs = _resolved(view, one, cwd, world, files)
                found += pieces
                program = program or runs
        return found, program
    files += _file(written, cwd) if written else ()
    return [
        *_of(view, ("alias", written), "alias"),
        *_of(view, ("function", written), "function"),
    ] if written else [], True  # shells accept names with a slash for aliases and functions too


def _resolved(
    view: View, name: str, cwd: str | None, world: World, files: list[str]
) -> tuple[list[Shaped], bool]:
    """Return the state behind a name that is not an alias."""
    state, found = view.state, list[Shaped]()
    if "/" in name:  # in the text of an alias
        files += _file(name, cwd)
        return found, True
    if ("function", name) in view.authors or (
        state is not None and ("function", name) in state.values
    ):
        found += _of(view, ("function", name), "function")
        for piece, author in view.authors.items():
            if piece[0] == "function" and piece[1] != name and piece[1] not in HOOKS:
                found += shaped(piece, author, sure=False)
        if state is not None and ("function", name) in state.values:
            return found + _unlisted(view), True
    found += _unlisted(view)
    if name in _BUILTINS:
        if name in ("cd", "pushd", "chdir"):
            found += _of(view, ("variable", "CDPATH"), "variable")
        if (
            name in _SOMEWHERE
            and state is not None
            and (
                name in state.hashed
                or any(world.exists(f"{_absolute(entry, cwd)}/{name}") for entry in state.path)
            )
        ):
            return found + [
                one._replace(sure=False) for one in _program(view, name, cwd, world, files)
            ], True
        return found, name in (
            "exec",
            "command",
            "builtin",
            "eval",
            "source",
            ".",
            "noglob",
            "time",
        )
    return found + _program(view, name, cwd, world, files), True


def _unlisted(view: View) -> list[Shaped]:
    return (
        []
        if view.functions or view.blind
        else [
            Shaped(
                "function", "functions were not listed since the last change", UNKNOWN, sure=False
            )
        ]
    )


def _program(
    view: View, name: str, cwd: str | None, world: World, files: list[str]
) -> list[Shaped]:
    state = view.state
    if state is None:
        return []
    found = list[Shaped]()
    first = next(
        (entry for entry in state.path if world.exists(f"{_absolute(entry, cwd)}/{name}")), None
    )
    place = f"{_absolute(first, cwd)}/{name}" if first is not None else None
    if (remembered := state.hashed.get(name)) is not None and remembered != place:
        found += _of(view, ("hash", name), "path", remembered)
        place = remembered
    elif first is not None:
        found += _of(view, ("path", first), "path")
        for entry in state.path[: state.path.index(first)]:
            if not entry.startswith("/"):
                found += _of(view, ("path", entry), "path", sure=False)
    else:
        found += [
            one for entry in state.path for one in _of(view, ("path", entry), "path", sure=False)
        ]
    files += [place] if place is not None else []
    return found


def _absolute(entry: str, cwd: str | None) -> str:
    return entry.rstrip("/") if entry.startswith("/") else f"{cwd or '.'}/{entry}".rstrip("/")


def _file(name: str, cwd: str | None) -> list[str]:
    """Return the path without `./`, as all other modules name it; `..` needs the file system."""
    path = name if name.startswith("/") else f"{cwd}/{name}" if cwd else ""
    return (
        ["/" + "/".join(part for part in path.split("/") if part not in ("", "."))] if path else []
    )
