"""What a rule may ask of an act, and how sure the answer is.

A condition has three answers at once, because the three verdicts need different ones:

    sure    something of the act definitely meets it       refuse needs this: nobody is refused on a guess
    maybe   ... or may, for all that is known              ask needs this: a guess is a reason to ask
    all     everything it touches definitely meets it      allow needs this: one path outside is one too many

So `paths_under = ["/etc"]` reads as people mean it in each: refuse if one of the paths is there, ask if one may be, allow only
if all are. `unless` is the mirror: an exception from ask or refuse must hold for all, an exception from allow already if it may
hold.

An argument that is not known (`cat "$f"`) may be any path. In a command that writes or destroys that is a reason to ask; in one
that only reads it is not, or every loop would be asked about. It is never certain, so nothing is allowed for its paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from holdfast.core.effects import subcommands
from holdfast.core.facts import Command
from holdfast.core.originators import UNKNOWN, Shaped, foreign
from holdfast.core.places import Place, under
from holdfast.core.reasons import Reason


class Degree(NamedTuple):
    sure: bool
    maybe: bool
    all: bool

    def and_(self, other: Degree) -> Degree:
        return Degree(self.sure and other.sure, self.maybe and other.maybe, self.all and other.all)


YES: Final = Degree(True, True, True)
NO: Final = Degree(False, False, False)
MAYBE: Final = Degree(False, True, False)
NOTHING: Final = Degree(
    False, False, True
)  # there is nothing that could meet it: true of all, and of none
_WIDE: Final = frozenset(
    (
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/lib64",
        "/media",
        "/mnt",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/srv",
        "/sys",
        "/tmp",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local",
        "/usr/local/bin",
        "/usr/share",
        "/var",
        "/var/lib",
        "/var/log",
        "/Users",
        "/private",
    )
)


def _is(value: bool) -> Degree:
    return YES if value else NO


@dataclass(frozen=True, slots=True)
class Actor:
    operator: str
    key: str = ""
    kind: str = "human"  # human, agent, service
    attached: bool = False  # a terminal of this operator is attached to the session


@dataclass(frozen=True, slots=True)
class Request:
    """One act, as the gate is asked about it."""

    act: str  # run, line, paste, keys, signal, end, grant ...
    actor: Actor
    session: str = ""
    name: str = ""  # of the session
    epoch: int = 0
    content: bytes = b""  # the exact bytes
    cwd: str | None = None  # of the shell, now; None: not known
    project: str | None = None  # where the session was made
    home: str | None = None
    shell: str = "bash"
    foreground: str = ""  # the program that would read typed input; empty: the shell at its prompt; "?": not known
    contained: bool = False
    state: bytes = b""  # fingerprint of whatever else the judgement relied on
    shadowed: frozenset[str] = frozenset()
    mounted: tuple[str, ...] = ()  # devices with a file system in use
    details: Mapping[str, str] = field(default_factory=dict)  # signal, rights, holder ...
    beneath: bool = (
        False  # what is in the foreground was started by a shell, which reads what it leaves
    )
    private: tuple[str, ...] = ()  # where this installation keeps its keys
    shaped: tuple[
        Shaped, ...
    ] = ()  # what it would touch of the session's state, and who made that what it is


@dataclass(frozen=True, slots=True)
class Unit:
    """What is judged at once: one command of a text, or the act itself if it has none."""

    shown: str
    command: Command | None = None
    reasons: tuple[Reason, ...] = ()
    unread: bool = False  # there is a text, and no command of it is known


def _narrow(path: str | None, home: str | None) -> str | None:
    """A directory that one may work in freely: not the root, not a home, not a directory of the system."""
    if path is None or path in _WIDE or (home is not None and under(home, path)):
        return None
    return path


def places(patterns: Sequence[str], request: Request) -> tuple[list[str], bool]:
    """Directories that a rule's patterns mean in this request; whether one of them cannot be known."""
    values: dict[str, Sequence[str] | None] = {
        "{home}": None if request.home is None else (request.home,),
        "{tmp}": ("/tmp", "/var/tmp", "/dev/shm"),
        "{mounted}": request.mounted,
        "{holdfast}": request.private,
        "{cwd}": () if (cwd := _narrow(request.cwd, request.home)) is None else (cwd,),
        "{project}": ()
        if (project := _narrow(request.project, request.home)) is None
        else (project,),
    }
    found, unknown = list[str](), False
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
        else:
            found += [v.rstrip("/") + tail if tail else v for v in value]
    return found, unknown


def _base(place: Place) -> str:
    """The directory below which a pattern's matches are."""
    if not place.glob:
        return place.path
    at = min((n for c in "*?[" if (n := place.path.find(c)) >= 0), default=len(place.path))
    return place.path[:at].rpartition("/")[0] or "/"


def _in(place: Place, directories: list[str]) -> tuple[bool, bool]:
    """Definitely in one of them; possibly."""
    base = _base(place)
    if place.glob:
        inside = any(under(base, d.rstrip("/") or "/") for d in directories)
        return inside and place.sure, inside or not place.sure or any(
            _reaches(place.path, d) for d in directories
        )
    inside = any(under(base, d) for d in directories)
    return inside and place.sure, inside or not place.sure


def _reaches(pattern: str, directory: str) -> bool:
    """Whether a pattern may match the directory, or something above it."""
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


def _outside(place: Place, directories: list[str]) -> tuple[bool, bool]:
    sure, maybe = _in(place, directories)
    return not maybe, not sure


class Look(NamedTuple):
    request: Request
    unit: Unit


def _touched(look: Look, kind: str) -> tuple[Sequence[tuple[Place, ...]], bool, bool]:
    """What it touches; whether there is more that is not known; whether that is a reason to ask."""
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
    return (
        (*command.writes, (Place(look.request.cwd),)),
        False,
        False,
    )  # a command without paths works where it stands


def _place_condition(kind: str, how: str) -> Callable[[Look, Any], Degree]:
    def check(look: Look, patterns: Any) -> Degree:
        if look.unit.command is None and not look.unit.unread:
            return NO  # an act that is no command touches no paths
        directories, unknown = places(patterns, look.request)
        items, is_open, asks = _touched(look, kind)
        if how == "under":
            answer = _paths(items, is_open, asks, lambda p: _in(p, directories))
        elif how == "outside":
            answer = _paths(items, is_open, asks, lambda p: _outside(p, directories))
        else:
            exact = {d.rstrip("/") or "/" for d in directories}
            answer = _paths(
                items,
                is_open,
                asks,
                lambda p: (p.path in exact and p.sure, p.path in exact or not p.sure),
            )
        if not unknown:
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
    subs: list[str | None] | None = None
    maybe = False
    for entry in wanted:
        name, *rest = entry.split()
        if not (command.name.startswith(name[:-1]) if name.endswith("*") else command.name == name):
            continue
        if subs is None:
            subs = [w.text for w in subcommands(command.name, command.words)]
        given = subs[: len(rest)]
        if given == rest:
            return YES
        if any(g is None for g in given) and all(
            g is None or g == r for g, r in zip(given, rest, strict=False)
        ):
            maybe = True
    return MAYBE if maybe else NO


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
    return YES if _has_flag(command, wanted) else MAYBE if command.open_words else NO


def _without_flags(look: Look, wanted: Sequence[str]) -> Degree:
    command = look.unit.command
    if command is None:
        return MAYBE if look.unit.unread else NO
    has = _has_flag(command, wanted)
    return NO if has else MAYBE if command.open_words else YES


def _of_command(
    pick: Callable[[Command, Sequence[str]], bool], uncertain: bool = False
) -> Callable[[Look, Any], Degree]:
    def check(look: Look, wanted: Any) -> Degree:
        command = look.unit.command
        if command is None:
            return MAYBE if look.unit.unread else NO
        if pick(command, wanted):
            return YES
        return MAYBE if uncertain and command.open_words else NO

    return check


def _truth(pick: Callable[[Command], bool], needs_name: bool) -> Callable[[Look, Any], Degree]:
    def check(look: Look, wanted: Any) -> Degree:
        command = look.unit.command
        if command is None or (needs_name and not command.name):
            return MAYBE if look.unit.unread or command is not None else NO
        return _is(pick(command) is wanted)

    return check


def _cwd(how: str) -> Callable[[Look, Any], Degree]:
    def check(look: Look, patterns: Any) -> Degree:
        if look.request.cwd is None:
            return MAYBE
        directories, unknown = places(patterns, look.request)
        inside = any(under(look.request.cwd, d) for d in directories)
        return MAYBE if unknown and not inside else _is(inside is (how == "under"))

    return check


def _unresolvable(look: Look, wanted: Any) -> Degree:
    codes = {r.code for r in look.unit.reasons}
    if wanted == "any":
        return YES
    if isinstance(wanted, bool):
        return _is(bool(codes) is wanted)
    return Degree(
        bool(codes & set(wanted)), bool(codes & set(wanted)), bool(codes) and codes <= set(wanted)
    )


def _shaped(pick: Callable[[Shaped, Sequence[str]], bool]) -> Callable[[Look, Any], Degree]:
    """Of what others shaped, never of one's own. What nobody knows the author of may be theirs."""

    def check(look: Look, wanted: Any) -> Degree:
        others = foreign(look.request.shaped, look.request.actor.operator)
        meant = [one for one in others if one.actor == UNKNOWN or pick(one, wanted)]
        sure = [one for one in meant if one.sure and one.actor != UNKNOWN]
        return Degree(bool(sure), bool(meant), bool(others) and len(sure) == len(others))

    return check


def _shaped_known(look: Look, wanted: Sequence[str]) -> Degree:
    """The same of those that are known by name: who is asked about everything that nobody knows would be asked about every line of a shell that says nothing of itself."""
    others = [
        one
        for one in foreign(look.request.shaped, look.request.actor.operator)
        if one.actor != UNKNOWN and one.kind in wanted and (one.sure or one.kind != "file")
    ]
    sure = any(one.sure for one in others)
    return Degree(sure, bool(others), bool(others) and all(one.sure for one in others))


def _any(given: Iterable[str], wanted: Sequence[str]) -> bool:
    return not set(given).isdisjoint(wanted)


CONDITIONS: Final[dict[str, tuple[str, Callable[[Look, Any], Degree]]]] = {
    # name: (type of its value, check)
    "act": ("acts", lambda look, wanted: _is(look.request.act in wanted)),
    "command": ("words", _command),
    "flags": ("flags", _flags),
    "without_flags": ("flags", _without_flags),
    "words": ("words", _of_command(lambda c, wanted: any(w.text in wanted for w in c.words), True)),
    "words_begin": (
        "words",
        _of_command(
            lambda c, wanted: any((w.text or "").startswith(tuple(wanted)) for w in c.words), True
        ),
    ),
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


def meets(conditions: Mapping[str, Any], look: Look) -> Degree:
    """All conditions together. Without a word about it, only what can be known is met for certain."""
    answer = YES
    for key, value in conditions.items():
        answer = answer.and_(CONDITIONS[key][1](look, value))
        if not (answer.maybe or answer.all):
            return NO
    if "unresolvable" not in conditions and look.unit.reasons:
        answer = answer._replace(all=False)
    return answer
