"""Originators: the operators who shaped the state that an act runs on (P3).

The trigger of an act is the operator who performs the act. The originators are the operators who
shaped the state that the act uses. The result of the search is a list of `Shaped`: a piece of state
with an author. Each finder (shell state, writers of files, the line, processes) adds entries. The
gate judges the act with this list, the record names the operators in the list, and the next holder
of the turn sees the list.

1. State that no operator changed since the session began belongs to the machine and is not listed.
2. State that the trigger itself shaped is listed too. `foreign` removes it.
3. State that could not be observed is listed with the actor UNKNOWN, and never left out,
   because then the record would name only the trigger.
4. `sure` is False where an operator may have shaped the state, but that is not certain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

UNKNOWN: Final = "unknown"
UNSEEN: Final = (UNKNOWN,)  # the originators of an act that was not examined
SHAPED_MAX: Final = 64  # entries of one act; if there are more, foreign state comes first
KINDS: Final = (
    "alias",  # the name of the command is an alias
    "function",  # the name of the command is a shell function
    "path",  # an entry of PATH leads to the program
    "variable",  # the program is given this variable, or the shell reads it
    "preload",  # a variable that makes programs load code (LD_PRELOAD and the like)
    "hook",  # the shell runs it by itself: PROMPT_COMMAND, precmd, ENV
    "trap",
    "option",
    "cwd",  # the working directory
    "file",  # a program, script or other file that the act reads or runs
    "line",  # the typed text itself
    "shell",  # the whole state of the shell, where it could not be observed
)


class Shaped(NamedTuple):
    """A piece of state that an act would use, and the author.

    The representation of this class is hashed into fingerprints: do not rename the class or the
    fields.
    """

    kind: str  # one of KINDS
    name: str  # of the alias, variable ...; the path of a file
    actor: str  # the last author
    act: int | None = None  # the number of that operator's act in the session
    sure: bool = True

    def show(self, session: str) -> dict[str, Canonical]:
        """Return the entry for display and records; `session` is a reference."""
        return {
            "kind": self.kind,
            "name": self.name.encode("utf-8", "backslashreplace").decode(),
            "actor": self.actor,
            "act": None if self.act is None else f"{session}#{self.act}",
            **({} if self.sure else {"sure": False}),
        }


_WORDS: Final = {
    "path": "entry {name} of PATH",
    "variable": "variable {name}",
    "preload": "variable {name}",
    "hook": "hook {name}",
    "trap": "trap on {name}",
    "option": "option {name}",
    "cwd": "change of directory",
    "file": "file {name}",
    "line": "part of the line",
    "alias": "alias {name}",
    "function": "function {name}",
}


def in_words(kind: str, name: str, actor: str, sure: bool = True) -> str:
    """Describe an entry in plain words, such as "eve's alias ls"."""
    what = _WORDS.get(kind, "{name}").replace("{name}", name)
    if actor == UNKNOWN:
        return f"{what} (author unknown)"
    return f"{actor}'s {what}" if sure else f"perhaps {actor}'s {what}"


def foreign(items: Iterable[Shaped], actor: str) -> tuple[Shaped, ...]:
    """Return the entries of other operators, and those with an unknown author."""
    return tuple(one for one in items if one.actor != actor)


def names(items: Iterable[Shaped], actor: str) -> tuple[str, ...]:
    """Return the originators of an act of `actor`, each once; an "unknown" comes last."""
    found = dict.fromkeys(one.actor for one in foreign(items, actor))
    unseen = UNKNOWN in found
    found.pop(UNKNOWN, None)
    return (*found, UNKNOWN) if unseen else tuple(found)


def written(items: Iterable[Shaped], actor: str) -> tuple[str, ...]:
    """Return other possible authors of text that a shell reads and runs (`source`, `eval`)."""
    return names((one for one in items if one.kind in ("file", "variable", "shell")), actor)


def bounded(items: Iterable[Shaped], actor: str) -> tuple[Shaped, ...]:
    """Return each entry once, at most SHAPED_MAX.

    Entries of other operators come first, then unknown entries, then entries of `actor`. Omitted
    entries are represented by an unknown entry.
    """
    each = sorted(
        dict.fromkeys(items),
        key=lambda one: (one.actor == actor, one.actor == UNKNOWN, not one.sure),
    )
    return (
        tuple(each)
        if len(each) <= SHAPED_MAX
        else (
            *each[: SHAPED_MAX - 1],
            Shaped("shell", f"and {len(each) - SHAPED_MAX + 1} more", UNKNOWN),
        )
    )
