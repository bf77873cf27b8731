"""Knowledge about programs, loaded once from `programs.toml`.

The file lists the written files, the inner commands and the implied files of programs. Other
modules of this room interpret the table: `effects`, `wrappers`, `interpreters`, `implied` and
`simple_command`. Only the host uses the table, so no start of the command line pays for the
parsing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

T = TypeVar("T")
Names = tuple[str, ...]


class NameSets(NamedTuple):
    """Sets of names. The comments in `programs.toml` explain each set."""

    quiet: frozenset[str]
    network: frozenset[str]
    elsewhere: frozenset[str]
    elsewhere_subcommands: frozenset[str]
    editors: frozenset[str]
    editor_code: Names
    database_files: frozenset[str]
    database_values: Names
    awk_files: Names
    awk_values: Names
    pagers: frozenset[str]
    consoles: frozenset[str]
    system_directories: frozenset[str]
    wide_directories: frozenset[str]
    writers: frozenset[str]
    bounded_builtins: frozenset[str]
    local_databases: frozenset[str]
    inside_session: frozenset[str]
    linker_values: frozenset[str]
    harmless_files: frozenset[str]
    shaping_variables: frozenset[str]
    shaping_prefixes: Names
    hook_functions: frozenset[str]
    hook_prefixes: Names
    written_variables: frozenset[str]
    written_prefixes: Names
    program_variables: frozenset[str]
    harmless_values: frozenset[str]
    integer_variables: frozenset[str]
    counting_builtins: frozenset[str]
    plain_options: frozenset[str]
    git_runs: frozenset[str]
    git_harmless_settings: Names
    git_shaping_settings: Names
    git_commands: frozenset[str]
    git_directories: frozenset[str]
    git_ref_updates: frozenset[str]


class Builtin(NamedTuple):
    """A builtin of a shell, and whether it changes later words.

    `why` is given for a word that `plain` does not match; without `plain`, for any word. So a word
    that is not listed is a reason, also if only a later release of the shell understands it.
    """

    only: str = ""  # the shell that has it, if the others do not
    why: str = ""  # reason code
    plain: str = ""  # regular expression of the words that change nothing
    alone: bool = False  # the reason holds also without words
    judge: str = ""  # the words need code: options, trap, declares
    sets: Names = ()  # options that name a variable to set; `*`: every word may name one


class Effect(NamedTuple):
    """The files that a program writes."""

    writes: str  # which operands: all, last, rest (all but the first), none
    valued: Names = ()  # options that take the next word
    targets: Names = ()  # options that name a written file
    destroys: str = ""  # old content is lost or spoilt: always, or recursive (only with -R)
    all_with: Names = ()  # with any of these options, the program writes every operand
    here: bool = False  # without a target, the program writes to the working directory
    here_with: Names = ()  # with any of these options, the working directory is written too


class Wrapper(NamedTuple):
    """A program that runs the command in the arguments."""

    valued: Names = ()  # options that take the next word
    bare: Names = ()  # options without a value
    operands: int = 0  # the wrapper's own words before the command
    assigns: bool = False  # NAME=value words may precede the command
    query: Names = ()  # with any of these options, no command runs
    moves: Names = ()  # options that change the directory or root of the command
    text: Names = ()  # options that take a text for a shell; `*`: all operands are the text
    targets: Names = ()  # options, among `valued`, that name a written file
    writes: bool = False  # the wrapper's own operands are written files
    more: bool = False  # the wrapper appends arguments that the text does not show
    alone: str = ""  # reason code if no command follows
    numbers: bool = False  # `-5` is an option


class Language(NamedTuple):
    """An interpreter of a language that is not analysed."""

    inline: str  # letters of options that are followed by code
    inline_long: Names = ()  # long options that are followed by code
    valued: Names = ()  # options that take the next word
    stops: str = ""  # letters of options after which all words belong to a module
    joined: str = ""  # letters of options that take the rest of the word


class Reads(NamedTuple):
    """The files that a program reads without being told, and acts on."""

    why: str
    here: Names = ()  # names in the working directory
    up: Names = ()  # names in the working directory and every directory above
    home: Names = ()  # names in the home directory
    named: Names = ()  # options that name a file which replaces `here` and `up`
    besides: Names = ()  # options that name a further file
    moves: Names = ()  # options that name the directory in which the search begins
    valued: Names = ()  # other options with a value
    script: bool = False  # the first operand is a file that the program runs
    all: bool = False  # each operand is a file that the program runs
    into: bool = False  # an operand may be a directory that is searched in the same way


class Accounted(NamedTuple):
    """All options of a command with which an exception of a rule may hold."""

    bare: Names = ()  # options without a value; `--prune=never` is that word alone
    valued: Names = ()  # options that take the next word
    leading: bool = False  # an option counts only before the first operand
    operand: str = ".*"  # regular expression of the operands


class Programs(NamedTuple):
    """The whole file."""

    names: NameSets
    builtins: Mapping[str, Builtin]
    effects: Mapping[str, Effect]
    network_subcommands: Mapping[str, Names]
    option_values: Mapping[str, Names]
    bare_options: Mapping[str, Names]
    accounted: Mapping[str, Accounted]
    wrappers: Mapping[str, Wrapper]
    shells: Mapping[str, str]
    languages: Mapping[str, Language]
    databases: Mapping[str, Names]
    reads: Mapping[str, Reads]
    python_modules: Mapping[str, str]
    git_hooks: Mapping[str, Names]


def text() -> str:
    return Path(__file__).with_name("programs.toml").read_text("utf-8")


@functools.cache
def programs() -> Programs:
    """Return the table; the first call reads and parses the file, which takes 7 ms."""
    import tomllib

    raw = tomllib.loads(text())
    return Programs(
        names=_record(NameSets, raw["names"]),
        builtins=_records(Builtin, _by_name(raw["builtins"])),
        effects=_records(Effect, _by_name(raw["effects"])),
        network_subcommands=_lists(raw["network_subcommands"]),
        option_values=_lists(raw["option_values"]),
        bare_options=_lists(raw["bare_options"]),
        accounted=_records(Accounted, _by_name(raw["accounted"])),
        wrappers=_records(Wrapper, _by_name(raw["wrappers"])),
        shells=_by_name(raw["shells"]),
        languages=_records(Language, raw["languages"]),
        databases=_lists(raw["databases"]),
        reads=_records(Reads, _by_name(raw["reads"])),
        python_modules=raw["python_modules"],
        git_hooks=_lists(raw["git_hooks"]),
    )


def _by_name(table: Mapping[str, T]) -> dict[str, T]:
    """Split keys that list several programs ("rm, rmdir") into one entry per program."""
    return {name: row for names, row in table.items() for name in names.split(", ")}


def _lists(table: Mapping[str, str | list[str]]) -> dict[str, Names]:
    return {name: _words(value) for name, value in _by_name(table).items()}


def _words(value: str | list[str]) -> Names:
    return tuple(value.split() if isinstance(value, str) else value)


def _records(kind: Callable[..., T], rows: Mapping[str, Mapping[str, object]]) -> dict[str, T]:
    found = dict[str, T]()
    for name, row in rows.items():
        base = rows[str(row["like"])] if "like" in row else {}
        found[name] = _record(kind, {**base, **row})
    return found


_hints = functools.cache(get_type_hints)


def _record(kind: Callable[..., T], row: Mapping[str, object]) -> T:
    """Make a record; a field for several words is given as a string or as an array."""
    hints = _hints(kind)
    given = dict[str, object]()
    for name, value in row.items():
        if name == "like":
            continue
        if hints[name] in (Names, frozenset[str]) and isinstance(value, str | list):
            words = _words(value)
            given[name] = words if hints[name] == Names else frozenset(words)
        else:
            given[name] = value
    return kind(**given)
