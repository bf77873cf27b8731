"""The state of a live shell with an author for each piece of it (P3): a machine of commands that began and of snapshots that came. It reads no clock, no file.

A piece is an alias, a function, a variable, an option, a trap, an entry of PATH, a remembered program, the directory. What differs between two snapshots was changed by
what ran between them. Rules:

1. The first snapshot is the baseline: it is the machine's. What is as it was then has no author, whoever changed it meanwhile.
2. One command ran: it is the author, for certain. Whoever else had a hand in it (typed on its line, shaped the alias it ran through, the hooks and traps that run by themselves)
   may be, and is named as well.
3. Several ran and no snapshot came between, because one was missed: each of them may be. None ran: whoever shaped the hooks and traps, and nobody knows who else (a key may be bound to a command).
   Between the end of a run and the prompt after it only hooks run; but bash can list its traps only there.
4. Functions are listed only if a command ran that may define some (`may_define`). One that was not thought to and did is found later; then everybody who ran something since may be its author.
5. An entry of PATH has as its author who put it there, or who moved it before another one, or took away one that was before it. Being moved back is nobody's doing.
6. A baseline that came late (something had run before) says little: whatever is asked, something stays unknown.

Everything that is not known names UNKNOWN; nothing is left to the last one who touched the keyboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.core.lineage import Cause
from holdfast.core.originators import UNKNOWN
from holdfast.core.shellstate import CWD, Piece, Snapshot, names_of

AUTHORS_MAX: Final = 8  # of one piece; more are unknown
RAN_MAX: Final = 64  # commands that began since the last snapshot; of more, somebody is unknown
HOOKS: Final = names_of(
    "PROMPT_COMMAND precmd_functions preexec_functions chpwd_functions periodic_functions zshaddhistory_functions "
    "zshexit_functions command_not_found_handle command_not_found_handler precmd preexec chpwd periodic zshaddhistory"
)
DEFINERS: Final = names_of(
    "eval source . unset declare typeset local export readonly builtin command exec trap enable bind complete compopt autoload zmodload functions disable "
    "unfunction hash rehash unhash alias unalias zle fc history r emulate noglob nocorrect function if then else elif fi for while until do done case select in time coproc "
    "always repeat foreach end mapfile readarray"
)
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_./+-]+")
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*\+?=[^\s()]*")
_COMPUTED: Final = re.compile(
    r"(?:^|[;|&(\n])\s*[\"'\\$`!]|\b(?:eval|source|exec|command|xargs|fc)\b|(?:^|[;|&(\n])\s*\.\s|[^\n\x20-\x7e]"
)
_READ_IN: Final = re.compile(
    r"(?:^|[;|&({\n]|\b(?:if|elif|while|until|then|do|else|builtin|time)\s)\s*(?:source|eval|\.)\s"
)
_READERS: Final = frozenset((".", "source", "eval"))
_TOKEN: Final = re.compile(r"[^\s;|&()<>$`'\"{}=]+")
_SHOWN: Final = re.compile(r"[\x20-\x7e\n\u00a0-\ud7ff\ue000-\U0010ffff]*")


class Hand(NamedTuple):
    """Somebody who shaped a piece, or may have."""

    actor: str
    act: int | None
    sure: bool


Author = tuple[Hand, ...]
NOBODY_KNOWS: Final[Author] = (Hand(UNKNOWN, None, False),)


class View(NamedTuple):
    """What is known at one moment. It does not change: threads may look at it."""

    authors: Mapping[Piece, Author]
    state: Snapshot | None = None
    blind: str = "the shell has not said yet what it is made of"  # why something cannot be known; empty: all of it is
    functions: bool = False  # whether all functions are known

    def shadowed(self, actor: str) -> frozenset[str]:
        """Names that stand for something else than they did at first. A function of one's own is what it was judged as when it was defined; an alias is judged by nobody."""
        return frozenset(
            name
            for (kind, name), author in self.authors.items()
            if kind == "alias"
            or (kind == "function" and any(hand.actor != actor or not hand.sure for hand in author))
        )


NOTHING: Final = View({})


class Shape:
    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """`given`: variables that somebody set when the shell was made, and who."""
        self.view, self._given = NOTHING, dict(given or {})
        self.seq = 0  # of the last mark that was taken
        self._base: dict[Piece, bytes] = {}
        self._base_path: tuple[str, ...] = ()
        self._authors: dict[Piece, Author] = {}
        self._state: Snapshot | None = None
        self._ran: list[Cause] = []  # since the last snapshot
        self._defining: list[Cause] = []  # since functions were listed, and may have defined some
        self._since: list[Cause] = []  # since functions were listed, all
        self._done: list[Cause] = []  # the run that ended just now: its prompt is still to come
        self._missed = False  # a snapshot, since the last that came
        self._late = False
        self._listed = False  # functions, at least once

    # ------------------------------------------------------------ what happens

    def began(
        self,
        cause: Cause,
        seq: int,
        defines: bool = True,
        through: Iterable[str] = (),
        over: bool = False,
    ) -> None:
        """The shell begins a command, as this mark says; whether it may define functions, and who shaped the aliases and functions it runs through. `over`: it has ended already, and the shell
        says nothing after it. A mark that was taken before says nothing new."""
        if seq <= self.seq:
            return
        self.seq, self._missed = seq, self._missed or over
        cause = cause._replace(
            others=tuple(
                name for name in dict.fromkeys((*cause.others, *through)) if name != cause.actor
            )
        )
        for known in (self._ran, self._since, *((self._defining,) if defines else ())):
            if len(known) < RAN_MAX:
                known.append(cause)
            else:
                known[-1] = Cause(UNKNOWN, None)
        self._look()

    def missed(self, seq: int) -> None:
        """A mark came, and its snapshot is not to be had."""
        if seq > self.seq:
            self.seq, self._missed = seq, True
            self._look()

    def snapshot(self, new: Snapshot, prompt: bool = True) -> None:
        """What the shell said at a prompt, or at the end of a run."""
        if new.seq <= self.seq:
            return
        self.seq = new.seq
        if self._state is None:
            self._late = bool(self._ran) or self._missed or new.seq > 1
            self._base, self._base_path, self._listed = dict(new.values), new.path, new.functions
            self._state = new
            self._born(new)
        else:
            self._compare(self._state, new)
        self._done = [] if prompt else self._ran
        self._ran = []
        self._missed = False
        if new.functions:
            self._defining.clear()
            self._since.clear()
        self._look()

    @property
    def quiet(self) -> bool:
        """Nothing began since the last snapshot."""
        return not self._ran and not self._missed

    def _born(self, new: Snapshot) -> None:
        """What was set for it is whoever's set it, not the machine's."""
        for name, who in self._given.items():
            if name == "PATH":
                self._authors |= {("path", entry): (Hand(who, None, True),) for entry in new.path}
                self._base_path = ()
            elif ("variable", name) in new.values:
                self._authors["variable", name] = (Hand(who, None, True),)
                del self._base["variable", name]

    # ------------------------------------------------------------ who did it

    def _compare(self, old: Snapshot, new: Snapshot) -> None:
        kept = {
            piece: value
            for piece, value in old.values.items()
            if (piece[0] in ("function", "hash") and not new.functions)
            or (piece[0] == "trap" and not new.traps)
        }
        values = kept | new.values
        first = new.functions and not self._listed
        author, definer = (
            self._author(self._ran or self._done, self._missed or not self._ran),
            self._author(self._defining or self._since, len(self._defining) != 1),
        )
        trapper = self._author(self._ran or self._done, self._missed)
        for piece in dict.fromkeys((*old.values, *values)):
            if old.values.get(piece) == values.get(piece):
                continue
            if first and piece[0] in ("function", "hash"):
                self._base[piece] = values[piece]
            elif piece != ("variable", "PATH"):
                self._give(
                    piece,
                    definer
                    if piece[0] == "function"
                    else trapper
                    if piece[0] == "trap"
                    else author,
                    values.get(piece),
                )
        self._listed = self._listed or new.functions
        self._of_path(old.path, new.path, author)
        self._state = new._replace(
            values=values, hashed=new.hashed if new.functions else old.hashed
        )

    def _give(self, piece: Piece, author: Author, value: bytes | None) -> None:
        if value == self._base.get(piece):
            self._authors.pop(piece, None)
        else:
            self._authors[piece] = author

    def _of_path(self, old: tuple[str, ...], new: tuple[str, ...], author: Author) -> None:
        if new == self._base_path:
            for piece in [piece for piece in self._authors if piece[0] == "path"]:
                del self._authors[piece]
        elif old != new:
            before = {entry: frozenset(old[:at]) for at, entry in enumerate(old)}
            for at, entry in enumerate(new):
                if entry not in before or before[entry] - frozenset(new[:at]):
                    self._authors["path", entry] = author
            for entry in old:
                if entry not in new:
                    self._authors.pop(("path", entry), None)

    def _author(self, causes: list[Cause], several: bool) -> Author:
        by_themselves = [
            hand
            for piece, author in self._authors.items()
            if piece[0] == "trap" or piece[1] in HOOKS
            for hand in author
        ]
        if not causes:
            return _bounded((*(hand._replace(sure=False) for hand in by_themselves), *NOBODY_KNOWS))
        sure = len(causes) == 1 and not several
        hands = [Hand(cause.actor, cause.act, sure and cause.actor != UNKNOWN) for cause in causes]
        hands += [Hand(name, None, False) for cause in causes for name in cause.others]
        return _bounded((*hands, *(hand._replace(sure=False) for hand in by_themselves)))

    def _look(self) -> None:
        blind = ""
        if self._state is None:
            blind = "the shell has not said what it is made of"
        elif self._missed:
            blind = "what the shell said of itself could not be read"
        elif self._late:
            blind = "the shell was not seen from its beginning"
        self.view = View(
            dict(self._authors), self._state, blind, self._listed and not self._defining
        )

    # ------------------------------------------------------------ before it begins

    def through(self, text: str | None) -> tuple[str, ...]:
        """Who shaped an alias or a function that this text may run through; None: not known what it says. Names that it computes may be any."""
        named = None if text is None or _COMPUTED.search(text) else _words(text)
        return tuple(
            dict.fromkeys(
                hand.actor
                for (kind, name), author in self._authors.items()
                if kind in ("alias", "function") and (named is None or name in named)
                for hand in author
            )
        )

    def reads_in(self, text: str | None) -> bool:
        """Whether a text may have this shell itself run what a file or a variable says: what that changes is also its author's doing."""
        if text is None or _READ_IN.search(text) or _COMPUTED.search(text):
            return True
        aliases, anywhere = (
            (self._state.aliases, self._state.anywhere)
            if self._state is not None
            else ({}, frozenset[str]())
        )
        return not anywhere.isdisjoint(_words(text)) or any(
            not _READERS.isdisjoint(aliases.get(word, ())) for word in _TOKEN.findall(text)
        )

    def may_define(self, text: str) -> bool:
        """Whether a text may define functions in this shell, for all that is known. Sure is only the other answer: plain commands, none of them a function, an alias or a builtin that could."""
        state = self._state
        if state is None or not self._listed or self._defining or not _SHOWN.fullmatch(text):
            return True
        if not state.anywhere.isdisjoint(_words(text)):
            return True
        bare = text.replace("$(", "").replace("${", "")
        if "(" in bare or "{" in bare or "\\" in bare or "`" in bare or "<<" in bare or "!" in bare:
            return True
        for part in re.split(r"[|&;\n]+", text):
            words = part.split()
            while words and _ASSIGNS.fullmatch(words[0]):
                del words[0]
            if words and (
                not _SIMPLE.fullmatch(words[0])
                or words[0] in DEFINERS
                or words[0] in state.aliases
                or ("function", words[0]) in state.values
            ):
                return True
        return False

    # ------------------------------------------------------------ for the next host

    def save(self) -> dict[str, Any]:
        state = self._state
        return {
            "seq": self.seq,
            "base": _plain(self._base),
            "base_path": list(self._base_path),
            "authors": [
                [*piece, [list(hand) for hand in author]] for piece, author in self._authors.items()
            ],
            "state": None
            if state is None
            else state._replace(values={})._asdict()
            | {
                "exported": sorted(state.exported),
                "active": sorted(state.active),
                "anywhere": sorted(state.anywhere),
                "values": _plain(state.values),
            },
            "ran": [_cause(c) for c in self._ran],
            "defining": [_cause(c) for c in self._defining],
            "since": [_cause(c) for c in self._since],
            "done": [_cause(c) for c in self._done],
            "missed": self._missed,
            "late": self._late,
            "listed": self._listed,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """What the last host knew; what is not as it was written is refused as a whole."""
        made = Shape(self._given)
        made.seq, made._base, made._base_path = (
            int(saved["seq"]),
            _values(saved["base"]),
            tuple(map(str, saved["base_path"])),
        )
        made._authors = {
            (str(kind), str(name)): tuple(
                Hand(str(a), None if n is None else int(n), bool(s)) for a, n, s in hands
            )
            for kind, name, hands in saved["authors"]
        }
        if (state := saved["state"]) is not None:
            made._state = Snapshot(
                int(state["seq"]),
                _values(state["values"]),
                tuple(map(str, state["path"])),
                str(state["cwd"]),
                frozenset(map(str, state["exported"])),
                {str(k): tuple(map(str, v)) for k, v in state["aliases"].items()},
                {str(k): str(v) for k, v in state["hashed"].items()},
                bool(state["functions"]),
                bool(state["traps"]),
                frozenset(map(str, state["active"])),
                frozenset(map(str, state["anywhere"])),
            )
        made._ran, made._defining, made._since, made._done = (
            [
                Cause(str(a), None if n is None else int(n), tuple(map(str, o)))
                for a, n, o in saved[key]
            ]
            for key in ("ran", "defining", "since", "done")
        )
        made._missed, made._late, made._listed = (
            bool(saved["missed"]),
            bool(saved["late"]),
            bool(saved["listed"]),
        )
        made._look()
        self.__dict__.update(made.__dict__)


def _words(text: str) -> set[str]:
    """Each as it may be the name of an alias: also by how it ends (zsh)."""
    words = {*_TOKEN.findall(text)}
    return words | {f".{word.rpartition('.')[2]}" for word in words if "." in word}


def changed(view: View) -> list[tuple[Piece, Author]]:
    """What is not as it was at first, for whoever takes over."""
    return [(piece, author) for piece, author in view.authors.items() if piece[0] != "hash"]


def _bounded(hands: Iterable[Hand]) -> Author:
    found: dict[str, Hand] = {}
    for hand in hands:
        if hand.actor not in found or (hand.sure and not found[hand.actor].sure):
            found[hand.actor] = hand
    each = tuple(found.values())
    return (
        each if len(each) <= AUTHORS_MAX else (*each[: AUTHORS_MAX - 1], Hand(UNKNOWN, None, False))
    )


def _plain(values: Mapping[Piece, bytes]) -> list[list[str]]:
    return [[*piece, value.hex()] for piece, value in values.items()]


def _values(saved: Any) -> dict[Piece, bytes]:
    return {(str(kind), str(name)): bytes.fromhex(value) for kind, name, value in saved}


def _cause(cause: Cause) -> list[Any]:
    return [cause.actor, cause.act, list(cause.others)]


__all__ = ["CWD", "NOTHING", "Author", "Hand", "Shape", "View", "changed"]
