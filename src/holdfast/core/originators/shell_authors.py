"""The state of a live shell, with authors for each piece of it (P3).

A state machine, driven by commands that began and snapshots that arrived, without access to the
clock or files. A piece is an alias, a function, a variable, an option, a trap, an entry of PATH, a
remembered program, or the directory. The commands between two snapshots caused the differences:

1. The first snapshot is the baseline and belongs to the machine. A piece with the baseline value
   has no author, even after a change in between.
2. If a single command ran, the actor is the author, for certain. Other actors who had a part in the
   command may be authors and are named too: typists of the line, and authors of an alias on the way
   or of the hooks and traps that run by themselves.
3. If several commands ran because a snapshot was missed, each actor may be the author. If no
   command ran, the authors of hooks and traps may be, and an unknown actor (a key may be bound to a
   command). Between the end of a run and the next prompt only hooks run; but bash can list its
   traps only there.
4. Functions are listed only after a command that may define some (`may_define`). If one such
   command ran since the last list, its actor is the author, for certain; of several, each actor may
   be. If none ran and a function differs all the same, every actor since the last list may be.
5. The author of an entry of PATH is the actor who added the entry, moved it forward, or
   removed an earlier entry. Moving an entry back has no author.
6. If the baseline came late (a command had run before), every answer contains an unknown part.

State that cannot be attributed names UNKNOWN. It is never attributed to the last typist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from holdfast.core.originators.lineage import Cause, Saved, read_cause, saved_cause
from holdfast.core.originators.originators import UNKNOWN
from holdfast.core.originators.shell_state import CWD, Piece, Snapshot
from holdfast.model.words import names_of

AUTHORS_MAX: Final = 8  # of one piece; further authors are unknown
RAN_MAX: Final = 64  # commands since the last snapshot; further commands have an unknown actor
HOOKS: Final = names_of(
    """
    PROMPT_COMMAND precmd_functions preexec_functions chpwd_functions periodic_functions
    zshaddhistory_functions zshexit_functions command_not_found_handle command_not_found_handler
    precmd preexec chpwd periodic zshaddhistory
    """
)
# Words that may define a function.
DEFINERS: Final = names_of(
    """
    eval source . unset declare typeset local export readonly builtin command exec trap enable
    bind complete compopt compgen jobs - autoload zmodload functions disable unfunction hash rehash
    unhash alias unalias zle fc history r emulate noglob nocorrect function if then else elif fi for
    while until do done case select in time coproc always repeat foreach end mapfile readarray
    """
)
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_./+-]+")
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*\+?=[^\s()]*")
_COMPUTED: Final = re.compile(
    r"(?:^|[;|&(\n])\s*[\"'\\$`!]|\b(?:eval|source|exec|command|xargs|fc)\b"
    r"|(?:^|[;|&(\n])\s*\.\s|[^\n\x20-\x7e]"
)
_READ_IN: Final = re.compile(
    r"(?:^|[;|&({\n]|\b(?:if|elif|while|until|then|do|else|builtin|time)\s)\s*(?:source|eval|\.)\s"
)
_READERS: Final = frozenset((".", "source", "eval"))
_TOKEN: Final = re.compile(r"[^\s;|&()<>$`'\"{}=]+")
_SHOWN: Final = re.compile(r"[\x20-\x7e\n\u00a0-\ud7ff\ue000-\U0010ffff]*")


class Hand(NamedTuple):
    """An actor who shaped a piece, or may have."""

    actor: str
    act: int | None
    sure: bool


Author = tuple[Hand, ...]
NOBODY_KNOWS: Final[Author] = (Hand(UNKNOWN, None, False),)


class View(NamedTuple):
    """The knowledge at one moment, immutable, so that threads may read it."""

    authors: Mapping[Piece, Author]
    state: Snapshot | None = None
    # Why some state cannot be known; empty if all of it is known.
    blind: str = "the shell has not reported its state yet"
    functions: bool = False  # all functions are known
    # Keyed digests of the values that the shell exported at its first prompt.
    environment: Mapping[str, bytes] = {}

    def shadowed(self, actor: str) -> frozenset[str]:
        """Return the names that have another meaning than in the baseline.

        An actor's own function was judged when it was defined. An alias was not judged.
        """
        return frozenset(
            name
            for (kind, name), author in self.authors.items()
            if kind == "alias"
            or (kind == "function" and any(hand.actor != actor or not hand.sure for hand in author))
        )


NOTHING: Final = View({})


class Shape:
    """The tracked state of one shell."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """Start without state; `given` maps variables set for the new shell to their authors."""
        self.view, self._given = NOTHING, dict(given or {})
        self.seq = 0  # of the last processed mark
        self._base: dict[Piece, bytes] = {}
        self._base_path: tuple[str, ...] = ()
        self._base_environment: dict[str, bytes] = {}
        self._authors: dict[Piece, Author] = {}
        self._state: Snapshot | None = None
        self._ran: list[Cause] = []  # commands since the last snapshot
        self._defining: list[Cause] = []  # commands that may have defined unlisted functions
        self._since: list[Cause] = []  # all commands since functions were listed
        self._done: list[Cause] = []  # the run that just ended, before the prompt
        self._missed = False  # a snapshot was missed since the last that arrived
        self._late = False
        self._listed = False  # functions were listed at least once

    # ------------------------------------------------------------ events

    def began(
        self,
        cause: Cause,
        seq: int,
        defines: bool = True,
        through: Iterable[str] = (),
        over: bool = False,
    ) -> None:
        """Note that the shell begins a command, as the mark `seq` says.

        `defines`: the command may define functions. `through` names the authors of the aliases and
        functions on its way. `over`: the command has ended already, and no snapshot follows. A
        mark that was processed before is ignored.
        """
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
        """Note a mark whose snapshot is not available."""
        if seq > self.seq:
            self.seq, self._missed = seq, True
            self._look()

    def snapshot(self, new: Snapshot, prompt: bool = True) -> None:
        """Process a snapshot at a prompt, or at the end of a run."""
        if new.seq <= self.seq:
            return
        self.seq = new.seq
        if self._state is None:
            self._late = bool(self._ran) or self._missed or new.seq > 1
            self._base, self._base_path, self._listed = dict(new.values), new.path, new.functions
            self._state = new
            if not self._late:
                self._base_environment = dict(new.environment)
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
        """No command began since the last snapshot."""
        return not self._ran and not self._missed

    def _born(self, new: Snapshot) -> None:
        """Attribute the variables that were set for the shell to their authors."""
        for name, who in self._given.items():
            if name == "PATH":
                self._authors |= {("path", entry): (Hand(who, None, True),) for entry in new.path}
                self._base_path = ()
            elif ("variable", name) in new.values:
                self._authors["variable", name] = (Hand(who, None, True),)
                del self._base["variable", name]

    # ------------------------------------------------------------ attribution

    def _compare(self, old: Snapshot, new: Snapshot) -> None:
        kept = {
            piece: value
            for piece, value in old.values.items()
            if (piece[0] in ("function", "hash") and not new.functions)
            or (piece[0] == "trap" and not new.traps)
        }
        values = kept | new.values
        first = new.functions and not self._listed
        author = self._author(self._ran or self._done, self._missed or not self._ran)
        definer = self._author(self._defining or self._since, len(self._defining) != 1)
        trapper = self._author(self._ran or self._done, self._missed)
        for piece in dict.fromkeys((*old.values, *values)):
            if old.values.get(piece) == values.get(piece):
                continue
            if first and piece[0] in ("function", "hash"):
                self._base[piece] = values[piece]
            elif piece != ("variable", "PATH"):
                who = {"function": definer, "trap": trapper}.get(piece[0], author)
                self._give(piece, who, values.get(piece))
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
            blind = "the shell has not reported its state"
        elif self._missed:
            blind = "the state that the shell reported could not be read"
        elif self._late:
            blind = "the shell was not observed from its start"
        self.view = View(
            dict(self._authors),
            self._state,
            blind,
            self._listed and not self._defining,
            self._base_environment,
        )

    # ------------------------------------------------------------ before a command begins

    def through(self, text: str | None) -> tuple[str, ...]:
        """Return the authors of aliases and functions that this text may run through.

        The text None is unknown. A text that computes names may run through any of them.
        """
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
        """Say whether the text may make the shell run the content of a file or a variable.

        The author of that content is then also an author of the changes.
        """
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
        """Say whether the text may define functions in this shell.

        The answer False counts as certain (rule 4): the text has only plain commands, and none of
        them is a function, an alias or a builtin that could define one (DEFINERS).
        """
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

    def save(self) -> Saved:
        state = self._state
        environment = {name: one.hex() for name, one in self._base_environment.items()}
        return {
            "seq": self.seq,
            "base": _plain(self._base),
            "base_path": list(self._base_path),
            "authors": [
                [*piece, [list(hand) for hand in author]] for piece, author in self._authors.items()
            ],
            "state": None if state is None else _saved_state(state),
            "ran": [*map(saved_cause, self._ran)],
            "defining": [*map(saved_cause, self._defining)],
            "since": [*map(saved_cause, self._since)],
            "done": [*map(saved_cause, self._done)],
            "missed": self._missed,
            "late": self._late,
            "listed": self._listed,
            **({"environment": environment} if environment else {}),
        }

    def restore(self, saved: Saved) -> None:
        """Load the state of the last host; a malformed state is refused as a whole."""
        made = Shape(self._given)
        made.seq, made._base = int(saved["seq"]), _values(saved["base"])
        made._base_path = tuple(map(str, saved["base_path"]))
        made._base_environment = {
            str(name): bytes.fromhex(one) for name, one in saved.get("environment", {}).items()
        }
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
                {str(k): bytes.fromhex(v) for k, v in state.get("environment", {}).items()},
            )
        made._ran, made._defining, made._since, made._done = (
            [*map(read_cause, saved[key])] for key in ("ran", "defining", "since", "done")
        )
        made._missed, made._late = bool(saved["missed"]), bool(saved["late"])
        made._listed = bool(saved["listed"])
        made._look()
        self.__dict__.update(made.__dict__)


def _saved_state(state: Snapshot) -> Saved:
    saved = state._asdict() | {
        "exported": sorted(state.exported),
        "active": sorted(state.active),
        "anywhere": sorted(state.anywhere),
        "values": _plain(state.values),
    }
    environment = {name: value.hex() for name, value in saved.pop("environment").items()}
    return saved | ({"environment": environment} if environment else {})


def _words(text: str) -> set[str]:
    """Return the words that may be names of aliases, and their suffixes (zsh)."""
    words = {*_TOKEN.findall(text)}
    return words | {f".{word.rpartition('.')[2]}" for word in words if "." in word}


def changed(view: View) -> list[tuple[Piece, Author]]:
    """Return the pieces that differ from the baseline, for the next holder of the turn."""
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


def _values(saved: Iterable[tuple[str, str, str]]) -> dict[Piece, bytes]:
    return {(str(kind), str(name)): bytes.fromhex(value) for kind, name, value in saved}


__all__ = ["CWD", "NOTHING", "Author", "Hand", "Shape", "View", "changed"]
