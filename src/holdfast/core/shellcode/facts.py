"""Facts about the text of a command: programs, written files, and parts with an unknown effect.

The text is parsed by shfmt (`host/policy/shfmt.py` runs it), because no other parser was right in
all hard cases. A parser that misses a command is dangerous: no rule applies to the missed command,
and nothing shows that a rule is missing.

Where the text does not determine the effect of the command, the result has a `Reason`, with a code
that policies name. Facts with a reason are still facts: the `rm` in `rm "$x"` is an `rm`. But these
facts alone never allow a command.

Rules
1. Text that the grammar refuses has no facts, only the reason. There is no partial answer.
2. Every command in the tree is visited. Afterwards the walk is compared with
   the tree, and a missed command is a reason.
3. Names are compared after quote removal. Wrappers are removed if they are literal
   (`core/shellcode/wrappers.py`).
4. Paths are resolved against every directory in which the shell may be at that point
   (`core/shellcode/places.py`).

No text shows existing aliases and functions, the content of a script or program file, or the
meaning of a line for a reader that is not a shell. The caller may know some of this (`shadowed`,
`typed`). This module is pure: the parser and the resolution of links are passed as functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.shellcode.places import Cwds, Place, Real, same
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.words import Word

TEXT_BYTES_MAX: Final = 128 * 1024  # of a command that is analysed
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
# Errors that the walk raises if the tree has an unexpected shape.
_SHAPE_ERRORS: Final = (AttributeError, TypeError, KeyError, IndexError, ValueError)


class Unparseable(Exception):
    """The parser has no tree for this text."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(detail or code)
        self.reason = Reason(code, detail[:200])


Parse = Callable[[str, str], Mapping[str, Any]]  # text, dialect; raises Unparseable


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings in which the text is read."""

    cwd: str | None = None  # None: not known
    home: str | None = None
    shell: str = "bash"
    typed: bool = False  # the text passes a line editor, which has keys and history
    shadowed: frozenset[str] = frozenset()  # aliases and functions of the live shell
    real: Real = same
    tools: tuple[str, ...] = ()  # trees that code of the session cannot change


@dataclass(frozen=True, slots=True)
class Redirect:
    op: str
    fd: str
    target: Word | None
    places: tuple[Place, ...] | None  # None: not known
    writes: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command without wrappers.

    The name `:` stands for a statement that only redirects or assigns. The representation of this
    class is hashed into fingerprints: do not rename the class or the fields.
    """

    name: str  # "" if not known
    words: tuple[Word, ...]  # the arguments
    flags: frozenset[str] = frozenset()
    # Each argument that may be a path, with all possible places.
    paths: tuple[tuple[Place, ...], ...] = ()
    writes: tuple[tuple[Place, ...], ...] = ()
    open_paths: bool = False  # at least one path cannot be known
    network: bool = False
    via: tuple[str, ...] = ()  # wrappers, outermost first
    fed_by: tuple[str, ...] = ()  # names of the commands that are piped into this command
    assigns: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    background: bool = False
    inside: str = ""  # substitution, function, text (of `sh -c`, `trap`)
    reasons: tuple[Reason, ...] = ()
    shown: str = ""
    # Names that were written with a path, and that path. The name is not looked up: no alias,
    # function or entry of PATH applies.
    called: tuple[tuple[str, str], ...] = ()
    # Not part of the representation. The directories in which the command may run; None: not known.
    cwds: Cwds = field(default=None, repr=False, compare=False)
    # The text may start the command more than once: a loop, a function, a trap, `xargs`.
    repeats: bool = field(default=False, repr=False, compare=False)

    @property
    def open_words(self) -> bool:
        """At least one argument is not known, and may be an option."""
        return any(w.text is None for w in self.words)


@dataclass(slots=True)
class Facts:
    commands: list[Command] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    assignments: list[str] = field(default_factory=list)
    # Variables that a command gets or sets, with the value if the text tells it.
    settings: list[tuple[str, str | None]] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    pipelines: list[tuple[str, ...]] = field(default_factory=list)
    plain: bool = True  # the text only calls programs with plain words (plain_grammar.py)
    heredocs: int = 0
    substitutions: int = 0
    background: bool = False
    reasons: list[Reason] = field(default_factory=list)  # about the text as a whole
    directories: set[str] = field(default_factory=set)  # that a `cd` of the text names
    # Variables that the text removes, or sets to a value that it leaves open.
    opened: set[str] = field(default_factory=set)

    @property
    def unresolvable(self) -> tuple[Reason, ...]:
        """All reasons, of the text and of each command."""
        return tuple(dict.fromkeys([*self.reasons, *(r for c in self.commands for r in c.reasons)]))

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.commands]


def unknown(reason: Reason) -> Facts:
    return Facts(reasons=[reason])


def analyse(text: str, parse: Parse, around: Surroundings) -> Facts:
    """Return the facts about a command text. No text makes this function raise."""
    from holdfast.core.shellcode.syntax_tree import Walk

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
    """Return the facts about a program and arguments, which no shell has to read first."""
    from holdfast.core.shellcode.syntax_tree import Walk

    facts = Facts()
    if not argv or not argv[0]:
        return unknown(Reason("name"))
    return _walked(facts, lambda: Walk(facts, parse, around).argv(argv, _start(around)))


def _walked(facts: Facts, walk: Callable[[], object]) -> Facts:
    """Return the facts after a walk; if the walk fails, only the reason."""
    try:
        walk()
    except Unparseable as e:
        return unknown(e.reason)
    except RecursionError:
        return unknown(Reason("depth"))
    except _SHAPE_ERRORS:
        return unknown(Reason("construct", "a tree of unknown shape"))
    return facts


def _start(around: Surroundings) -> Cwds:
    return (
        None if around.cwd is None or not around.cwd.startswith("/") else frozenset((around.cwd,))
    )
