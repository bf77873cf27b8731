"""Facts of a command: what it names, what it writes to, and whether its text says what it will do at all.

The grammar is shfmt's (`host/parse.py` runs it): no other parser was right on all the hard cases, and a parser that misses one
command is worse than none, since a rule that never fires looks like one that was obeyed. What the text cannot say is a
`Reason`, with a code that policies name; facts with a reason are still facts (the `rm` in `rm "$x"` is an `rm`), but nothing
may be allowed on their strength alone.

Rules
1. Text that the grammar refuses has no facts at all, only the reason. There is no partial answer.
2. Every command in the tree is visited, wherever it stands; the walk is compared with the tree afterwards, and what was missed
   is a reason.
3. Names are compared after quote removal; wrappers are looked through when they are literal (`core/wrappers.py`).
4. Paths are resolved against every directory the shell may be in at that point (`core/places.py`).

What no text says: aliases and functions that exist already, what a script or program file does, what a line means to whoever
reads it if that is not a shell. The caller may know some of it (`shadowed`, `typed`), and everything here is pure: the parser
and the look behind links come in as functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.places import Cwds, Place, Real, same
from holdfast.core.reasons import Reason
from holdfast.core.words import Word

TEXT_BYTES_MAX: Final = 128 * 1024  # of a command that is looked at
DIALECTS: Final[dict[str, str]] = {
    "bash": "bash",
    "zsh": "zsh",
    "sh": "posix",
    "dash": "posix",
    "ash": "posix",
    "mksh": "mksh",
}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_HISTORY: Final = re.compile(r"(?<!\\)![^\s=(]|^\^", re.M)


_ODD: Final = (
    AttributeError,
    TypeError,
    KeyError,
    IndexError,
    ValueError,
)  # what a tree of another shape makes the walk raise


class Unparseable(Exception):
    """The parser has no tree for this text."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(detail or code)
        self.reason = Reason(code, detail[:200])


Parse = Callable[[str, str], Mapping[str, Any]]  # text, dialect; raises Unparseable


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the text is read in."""

    cwd: str | None = None  # None: not known
    home: str | None = None
    shell: str = "bash"
    typed: bool = False  # goes through a line editor, which knows keys and history
    shadowed: frozenset[str] = frozenset()  # names that are aliases or functions in the live shell
    real: Real = same


@dataclass(frozen=True, slots=True)
class Redirect:
    op: str
    fd: str
    target: Word | None
    places: tuple[Place, ...] | None  # None: not known
    writes: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command, wrappers taken off. `:` stands for a statement that only redirects or assigns."""

    name: str  # "" if not known
    words: tuple[Word, ...]  # its arguments
    flags: frozenset[str] = frozenset()
    paths: tuple[
        tuple[Place, ...], ...
    ] = ()  # each argument that may be a path, with all it may mean
    writes: tuple[tuple[Place, ...], ...] = ()
    open_paths: bool = False  # some path cannot be known
    network: bool = False
    via: tuple[str, ...] = ()  # wrappers, outermost first
    fed_by: tuple[str, ...] = ()  # names of what is piped into it
    assigns: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    background: bool = False
    inside: str = ""  # substitution, function, text (of `sh -c`, `trap`)
    reasons: tuple[Reason, ...] = ()
    shown: str = ""
    called: tuple[
        tuple[str, str], ...
    ] = ()  # names that were written with a path, and that path: no alias, function or entry of PATH is between

    @property
    def open_words(self) -> bool:
        """Some argument is not known: it may be an option as well."""
        return any(w.text is None for w in self.words)


@dataclass(slots=True)
class Facts:
    commands: list[Command] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    assignments: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    pipelines: list[tuple[str, ...]] = field(default_factory=list)
    heredocs: int = 0
    substitutions: int = 0
    background: bool = False
    reasons: list[Reason] = field(default_factory=list)  # of the text as a whole

    @property
    def unresolvable(self) -> tuple[Reason, ...]:
        """Everything that cannot be known, of the text and of each command."""
        return tuple(dict.fromkeys([*self.reasons, *(r for c in self.commands for r in c.reasons)]))

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.commands]


def unknown(reason: Reason) -> Facts:
    return Facts(reasons=[reason])


def analyse(text: str, parse: Parse, around: Surroundings) -> Facts:
    """The facts of a command text. Never raises because of the text."""
    from holdfast.core.shelltree import Walk

    if _CONTROL.search(text):
        return unknown(Reason("keys" if around.typed else "control"))
    if len(text) > TEXT_BYTES_MAX or len(text.encode()) > TEXT_BYTES_MAX:
        return unknown(Reason("size"))
    dialect = DIALECTS.get(around.shell)
    if dialect is None:
        return unknown(Reason("shell", around.shell[:40]))
    facts = Facts()
    if around.typed:
        if "\t" in text:
            facts.reasons.append(Reason("keys", "Tab completes"))
        if dialect in ("bash", "zsh") and _HISTORY.search(text):
            facts.reasons.append(Reason("history"))
    return _walked(facts, lambda: Walk(facts, parse, around).text(text, dialect, _start(around)))


def of_argv(argv: Sequence[str], parse: Parse, around: Surroundings) -> Facts:
    """The facts of a program and its arguments that no shell has to read first."""
    from holdfast.core.shelltree import Walk

    facts = Facts()
    if not argv or not argv[0]:
        return unknown(Reason("name"))
    return _walked(facts, lambda: Walk(facts, parse, around).argv(argv, _start(around)))


def _walked(facts: Facts, walk: Callable[[], object]) -> Facts:
    """What a walk found; nothing is known of what it cannot follow."""
    try:
        walk()
    except Unparseable as e:
        return unknown(e.reason)
    except RecursionError:
        return unknown(Reason("depth"))
    except _ODD:
        return unknown(Reason("construct", "a tree that is not known"))
    return facts


def _start(around: Surroundings) -> Cwds:
    return (
        None if around.cwd is None or not around.cwd.startswith("/") else frozenset((around.cwd,))
    )
