"""Conditions of a rule, and how certain the answer to a condition is.

A condition has three answers at once, because the three verdicts need different ones:

    sure    some part of the act definitely meets it    needed to refuse: no refusal on a guess
    maybe   some part may meet it                       needed to ask: a guess is a reason to ask
    all     every part definitely meets it              needed to allow: no path may be outside

So `paths_under = ["/etc"]` has the expected meaning in each case: refuse if a path is there, ask if
a path may be there, allow only if all are there. `unless` is the mirror: an exception from ask or
refuse must hold for all parts, an exception from allow suffices if it may hold.

An unknown argument (`cat "$f"`) may be any path. In a command that writes or destroys, that is a
reason to ask. In a command that only reads it is not, or every loop would need an approval. An
unknown argument is never certain, so it never helps to allow a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from holdfast.core.originators.originators import UNKNOWN, Shaped, foreign
from holdfast.core.policy.command_limit import Limit, Names
from holdfast.core.policy.environment import Changes
from holdfast.core.policy.exec_judgement import judged_at_exec
from holdfast.core.shellcode.effects import account, begins_with, effect, operands
from holdfast.core.shellcode.facts import Command
from holdfast.core.shellcode.places import Place, base, under
from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.words import Word

EXEC: Final = "exec"  # the act of a program that starts
Identity = tuple[int, int]  # of a directory: device and inode


class Degree(NamedTuple):
    sure: bool
    maybe: bool
    all: bool

    def and_(self, other: Degree) -> Degree:
        return Degree(self.sure and other.sure, self.maybe and other.maybe, self.all and other.all)


YES: Final = Degree(True, True, True)
NO: Final = Degree(False, False, False)
MAYBE: Final = Degree(False, True, False)
NOTHING: Final = Degree(False, False, True)  # no part can meet the condition: true for all and none


def _is(value: bool) -> Degree:
    return YES if value else NO


@dataclass(frozen=True, slots=True)
class Actor:
    operator: str
    key: str = ""
    kind: str = "human"  # human, agent, service
    attached: bool = False  # a terminal of this operator is attached to the session


class Walls(NamedTuple):
    """The bounds of a contained session.

    `own`: directories of this session alone. `given`: places of the machine that are shown inside,
    some of them below an own directory. `tools`: those behind PATH, all read-only. `shares`: those
    that can be written, besides the workspace; None: not known.
    """

    own: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    workspace: str = ""
    net: str = "host"
    tools: tuple[str, ...] = ()
    shares: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """An act before the gate."""

    act: str  # run, line, paste, keys, signal, end, grant ...
    actor: Actor
    session: str = ""
    name: str = ""  # of the session
    epoch: int = 0
    content: bytes = b""  # the exact bytes
    # The current directory of the shell, or of the process that starts a program; None: not known.
    cwd: str | None = None
    project: str | None = None  # the directory in which the session was made
    home: str | None = None
    shell: str = "bash"
    # The program that would read typed input; empty: the shell at its prompt; "?": not known.
    foreground: str = ""
    contained: bool = False
    state: bytes = b""  # fingerprint of all other state that the judgement uses
    state_facts: tuple[str, ...] = ()  # the text behind each fingerprint of which `state` consists
    shadowed: frozenset[str] = frozenset()
    mounted: tuple[str, ...] = ()  # devices with a file system in use
    details: Mapping[str, str] = field(default_factory=dict)  # signal, rights, holder ...
    beneath: bool = False  # a shell started the foreground program and reads the rest of the input
    private: tuple[str, ...] = ()  # directories with the keys of this installation
    shaped: tuple[Shaped, ...] = ()  # session state that the act would use, with its authors
    # Of an exec: the lists of programs that the program must be on, and its names.
    limits: tuple[Limit, ...] = ()
    names: Names = ()
    other_files: bool = False  # the task has other mounts, another root or user namespace
    walls: Walls | None = None  # None: a plain session, or bounds that are not known
    gate: str = "input"  # "exec": every program of the session is judged when it starts
    directory: Identity | None = None  # of `cwd`; None: not known, or not looked up
    variables: tuple[str, ...] = ()  # of its environment: foreign ones that may load code
    # Of an exec: variables that differ from the shell's first prompt; None: not looked up.
    environment: Changes | None = None
    # Of an exec: the shell's directory, which {cwd} means. A program chooses its own at will.
    shell_cwd: str | None = None
    # Of a contained session: its first process (pid and start time), whose root holds its files.
    first: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """The part of an act that is judged at once: a command of a text, or the whole act."""

    shown: str
    command: Command | None = None
    reasons: tuple[Reason, ...] = ()
    unread: bool = False  # there is a text, but no command is known


def _narrow(path: str | None, home: str | None) -> str | None:
    """Return the directory unless it is a root, home or system directory."""
    if (
        path is None
        or path in programs().names.wide_directories
        or (home is not None and under(home, path))
    ):
        return None
    return path


class Meant(NamedTuple):
    """The directories that the patterns of a rule mean.

    `bounded`: the same directories, where a place counts only if it neither lies in, nor contains,
    one of `given`. `unknown`: one of the directories cannot be known.
    """

    directories: list[str]
    bounded: list[str]
    given: Sequence[str]
    unknown: bool

    def all(self) -> list[str]:
        return [*self.directories, *self.bounded]

    def contain(self, path: str, pattern: bool) -> bool:
        """Say whether the path is in a directory; of a pattern, all matches are below the path."""

        def within(directories: Iterable[str]) -> bool:
            return any(under(path, (d.rstrip("/") or "/") if pattern else d) for d in directories)

        return within(self.directories) or (
            bool(self.bounded) and not _overlap(path, self.given) and within(self.bounded)
        )


def _overlap(path: str, others: Iterable[str]) -> bool:
    return any(under(path, other) or under(other, path) for other in others)


def places(patterns: Sequence[str], request: Request) -> Meant:
    """Return the directories that a rule's patterns mean.

    {tmp} does not contain the project, and {own} contains nothing that the session shares with the
    machine: to delete these is not to delete temporary files. {account} is the home of the account.
    A contained session has a home of its own at that path, so only shared places of it count.
    """
    walls = request.walls
    project = _narrow(request.project, request.home)
    given = (*(walls.given if walls else ()), *(() if project is None else (project,)))
    values: dict[str, Sequence[str] | None] = {
        "{home}": None if request.home is None else (request.home,),
        "{account}": None if request.home is None else (request.home,),
        "{own}": walls.own if walls else (),
        "{workspace}": (walls.workspace,) if walls and walls.workspace else (),
        "{tmp}": ("/tmp", "/var/tmp", "/dev/shm"),
        "{mounted}": request.mounted,
        "{holdfast}": request.private,
        "{cwd}": _working(request),
        "{project}": () if project is None else (project,),
    }
    found, bounded, unknown = list[str](), list[str](), False
    for pattern in patterns:
        head, brace, tail = pattern.partition("}")
        if pattern == "~" or pattern.startswith("~/"):
            head, brace, tail = "{home", "}", pattern[1:]
        if not brace or not head.startswith("{"):
            found.append(pattern)
            continue
        value = values[head + brace]
        if value is None:
            unknown = True
            continue
        ways = [v.rstrip("/") + tail if tail else v for v in value]
        if head + brace == "{account}" and walls:
            ways = [way for way in ways if _overlap(way, walls.given)]
        (bounded if head + brace in ("{tmp}", "{own}") else found).extend(ways)
    return Meant(found, bounded, given, unknown)


def _working(request: Request) -> list[str]:
    """Return the directories that {cwd} means.

    Of an exec it is the shell's, because a program chooses its own at will. In a contained
    session's own home that choice is harmless, so the program's directory counts as well.
    """
    if request.act != EXEC:
        found = [request.cwd]
    else:
        own, given = (request.walls.own, request.walls.given) if request.walls else ((), ())
        place = request.cwd or ""
        inside = any(under(place, one) for one in own) and not _overlap(place, given)
        found = [request.shell_cwd, place if inside else None]
    return [one for path in found if (one := _narrow(path, request.home)) is not None]


def _in(place: Place, meant: Meant) -> tuple[bool, bool]:
    """Say whether the place is definitely, and whether it is possibly, in a directory."""
    inside = meant.contain(base(place), place.glob)
    maybe = inside or not place.sure
    if place.glob and not maybe:
        maybe = any(_reaches(place.path, d) for d in meant.all())
    return inside and place.sure, maybe


def _reaches(pattern: str, directory: str) -> bool:
    """Say whether a pattern may match the directory, or a directory above it."""
    for part, name in zip(pattern.split("/"), directory.rstrip("/").split("/"), strict=False):
        if "[" in part:
            return True
        if not fnmatchcase(name, part) or (name.startswith(".") and part[:1] in ("*", "?")):
            return False
    return True


def _paths(
    items: Sequence[tuple[Place, ...]],
    is_open: bool,
    asks: bool,
    test: Callable[[Place], tuple[bool, bool]],
) -> Degree:
    if not items and not is_open:
        return NOTHING
    answers = [[test(p) for p in item] for item in items]
    return Degree(
        any(sure for item in answers for sure, _ in item),
        asks or any(maybe for item in answers for _, maybe in item),
        not is_open and all(sure for item in answers for sure, _ in item),
    )


def _outside(place: Place, meant: Meant) -> tuple[bool, bool]:
    sure, maybe = _in(place, meant)
    return not maybe, not sure


class Look(NamedTuple):
    """The arguments of a condition: the request and the part of it that is judged."""

    request: Request
    unit: Unit

    @property
    def judged_at_exec(self) -> bool:
        return judged_at_exec(self.request, self.unit.command, self.unit.reasons)


Check = Callable[[Look, Any], Degree]  # the value has the type that CONDITIONS names
Conditions = Mapping[str, Any]  # values by condition, validated by policy_file.py


def _used_paths(look: Look, kind: str) -> tuple[Sequence[tuple[Place, ...]], bool, bool]:
    """Return the paths that a command uses, whether there are unknown ones, and whether to ask."""
    command = look.unit.command
    if command is None:
        return (), look.unit.unread, look.unit.unread
    changes = any(r.code in ("arguments", "redirect", "place") for r in command.reasons)
    if kind == "writes":
        return command.writes, changes, changes
    if command.paths or command.open_paths or command.name == ":":
        return (*command.paths, *command.writes), command.open_paths, changes
    if look.request.cwd is None:
        return (), True, changes
    # a command without paths works in the current directory
    return (*command.writes, (Place(look.request.cwd),)), False, False


def _place_condition(kind: str, how: str) -> Check:
    def check(look: Look, patterns: Sequence[str]) -> Degree:
        if look.unit.command is None and not look.unit.unread:
            return NO  # an act without a command uses no paths
        meant = places(patterns, look.request)
        items, is_open, asks = _used_paths(look, kind)
        if how == "under":
            answer = _paths(items, is_open, asks, lambda p: _in(p, meant))
        elif how == "outside":
            answer = _paths(items, is_open, asks, lambda p: _outside(p, meant))
        else:
            exact = {d.rstrip("/") or "/" for d in meant.all()}
            answer = _paths(
                items,
                is_open,
                asks,
                lambda p: (p.path in exact and p.sure, p.path in exact or not p.sure),
            )
        if not meant.unknown:
            return answer
        return Degree(
            answer.sure and how != "outside",
            answer.maybe or bool(items),
            answer.all and how == "under",
        )

    return check


def _command(look: Look, wanted: Sequence[str]) -> Degree:
    command = look.unit.command
    if command is None:
        return MAYBE if look.unit.unread else NO
    if not command.name:
        return MAYBE
    found = NO
    for entry in wanted:
        name, *rest = entry.split()
        if not (command.name.startswith(name[:-1]) if name.endswith("*") else command.name == name):
            continue
        maybe, some, each = begins_with(command.name, command.words, rest)
        if each:
            return YES
        found = Degree(found.sure or some, found.maybe or some or maybe, False)
    return found


def _has_flag(command: Command, wanted: Sequence[str]) -> bool:
    return any(
        flag in wanted
        or (flag.startswith("--") and len(flag) > 2 and any(w.startswith(flag) for w in wanted))
        for flag in command.flags
    )


def _flags(look: Look, wanted: Sequence[str]) -> Degree:
    command = look.unit.command
    if command is None:
        return MAYBE if look.unit.unread else NO
    if not _has_flag(command, wanted):
        return MAYBE if command.open_words else NO
    known = account(command.name, command.words)
    return Degree(True, True, known is None or (known.known and _any(known.options, wanted)))


def _without_flags(look: Look, wanted: Sequence[str]) -> Degree:
    command = look.unit.command
    if command is None:
        return MAYBE if look.unit.unread else NO
    has = _has_flag(command, wanted)
    return NO if has else MAYBE if command.open_words else YES


def _option_values(command: Command) -> Iterator[Word]:
    """Yield the values of options, also those behind other letters: `-sXDELETE`."""
    row = effect(command.name)
    if row is not None:
        yield from (value for _, value in operands(command.words, row.valued).values)


def _words(look: Look, wanted: Sequence[str]) -> Degree:
    command = look.unit.command
    if command is None:
        return MAYBE if look.unit.unread else NO
    if not any(w.text in wanted for w in (*command.words, *_option_values(command))):
        return MAYBE if command.open_words else NO
    known = account(command.name, command.words)
    given = () if known is None else (*known.options, *known.operands)
    return Degree(True, True, known is None or (known.known and _any(given, wanted)))


def _words_begin(look: Look, wanted: Sequence[str]) -> Degree:
    command, begins = look.unit.command, tuple(wanted)
    if command is None:
        return MAYBE if look.unit.unread else NO
    if not any((w.text or "").startswith(begins) for w in command.words):
        return MAYBE if command.open_words else NO
    known = account(command.name, command.words)
    if known is None:
        return YES
    each = bool(known.operands) and all(text.startswith(begins) for text in known.operands)
    option = any(text.startswith(begins) for text in known.options)
    return Degree(True, True, known.known and (option or each))


def _of_command(pick: Callable[[Command, Sequence[str]], bool], uncertain: bool = False) -> Check:
    def check(look: Look, wanted: Sequence[str]) -> Degree:
        command = look.unit.command
        if command is None:
            return MAYBE if look.unit.unread else NO
        if pick(command, wanted):
            return YES
        return MAYBE if uncertain and command.open_words else NO

    return check


def _truth(pick: Callable[[Command], bool], needs_name: bool) -> Check:
    def check(look: Look, wanted: bool) -> Degree:
        command = look.unit.command
        if command is None or (needs_name and not command.name):
            return MAYBE if look.unit.unread or command is not None else NO
        return _is(pick(command) is wanted)

    return check


def _cwd(how: str) -> Check:
    def check(look: Look, patterns: Sequence[str]) -> Degree:
        if look.request.cwd is None:
            return MAYBE
        meant = places(patterns, look.request)
        inside = meant.contain(look.request.cwd, False)
        return MAYBE if meant.unknown and not inside else _is(inside is (how == "under"))

    return check


def _unresolvable(look: Look, wanted: bool | str | Sequence[str]) -> Degree:
    codes = {r.code for r in look.unit.reasons}
    if wanted == "any":
        return YES
    if isinstance(wanted, bool):
        return _is(bool(codes) is wanted)
    return Degree(
        bool(codes & set(wanted)), bool(codes & set(wanted)), bool(codes) and codes <= set(wanted)
    )


def _shaped(pick: Callable[[Shaped, Sequence[str]], bool]) -> Check:
    """Test state that other operators shaped; state with an unknown author may be theirs."""

    def check(look: Look, wanted: Sequence[str]) -> Degree:
        others = foreign(look.request.shaped, look.request.actor.operator)
        meant = [one for one in others if one.actor == UNKNOWN or pick(one, wanted)]
        sure = [one for one in meant if one.sure and one.actor != UNKNOWN]
        return Degree(bool(sure), bool(meant), bool(others) and len(sure) == len(others))

    return check


def _shaped_known(look: Look, wanted: Sequence[str]) -> Degree:
    """Test state that other operators shaped, if the author is known.

    Rules about unknown authors would ask about every line of a shell that reports no state.
    """
    others = [
        one
        for one in foreign(look.request.shaped, look.request.actor.operator)
        if one.actor != UNKNOWN and one.kind in wanted and (one.sure or one.kind != "file")
    ]
    sure = any(one.sure for one in others)
    return Degree(sure, bool(others), bool(others) and all(one.sure for one in others))


def _net(request: Request) -> str:
    return request.walls.net if request.walls else "host"


def _any(given: Iterable[str], wanted: Sequence[str]) -> bool:
    return not set(given).isdisjoint(wanted)


CONDITIONS: Final[dict[str, tuple[str, Check]]] = {
    # name: (type of its value, check)
    "act": ("acts", lambda look, wanted: _is(look.request.act in wanted)),
    "command": ("words", _command),
    "flags": ("flags", _flags),
    "without_flags": ("flags", _without_flags),
    "words": ("words", _words),
    "words_begin": ("words", _words_begin),
    "paths": ("places", _place_condition("paths", "exact")),
    "paths_under": ("places", _place_condition("paths", "under")),
    "paths_outside": ("places", _place_condition("paths", "outside")),
    "writes": ("places", _place_condition("writes", "exact")),
    "writes_under": ("places", _place_condition("writes", "under")),
    "writes_outside": ("places", _place_condition("writes", "outside")),
    "network": ("bool", _truth(lambda c: c.network, True)),
    "background": ("bool", _truth(lambda c: c.background, False)),
    "via": ("words", _of_command(lambda c, wanted: _any(c.via, wanted))),
    "fed_by": ("words", _of_command(lambda c, wanted: _any(c.fed_by, wanted))),
    "assigns": ("words", _of_command(lambda c, wanted: _any(c.assigns, wanted))),
    "session": (
        "words",
        lambda look, wanted: _is(look.request.name in wanted or look.request.session in wanted),
    ),
    "cwd_under": ("places", _cwd("under")),
    "cwd_outside": ("places", _cwd("outside")),
    "contained": ("bool", lambda look, wanted: _is(look.request.contained is wanted)),
    "gate": ("words", lambda look, wanted: _is(look.request.gate in wanted)),
    "net": ("words", lambda look, wanted: _is(_net(look.request) in wanted)),
    "judged_at_exec": ("bool", lambda look, wanted: _is(look.judged_at_exec is wanted)),
    "foreground": (
        "words",
        lambda look, wanted: _is((look.request.foreground or "shell") in wanted),
    ),
    "signal": ("words", lambda look, wanted: _is(look.request.details.get("signal", "") in wanted)),
    "rights": (
        "words",
        lambda look, wanted: _is(_any(look.request.details.get("rights", "").split(","), wanted)),
    ),
    "shaped": ("shaped", _shaped(lambda one, wanted: one.kind in wanted)),
    "shaped_by": ("words", _shaped(lambda one, wanted: one.actor in wanted or "others" in wanted)),
    "shaped_known": ("shaped", _shaped_known),
    "unresolvable": ("unresolvable", _unresolvable),
}


def meets(conditions: Conditions, look: Look) -> Degree:
    """Test all conditions together.

    Unless a condition is about `unresolvable` or `judged_at_exec`, only resolvable commands meet
    all of them for certain.
    """
    answer = YES
    for key, value in conditions.items():
        answer = answer.and_(CONDITIONS[key][1](look, value))
        if not (answer.maybe or answer.all):
            return NO
    if look.unit.reasons and conditions.keys().isdisjoint(("unresolvable", "judged_at_exec")):
        answer = answer._replace(all=False)
    return answer
