"""Who shaped the state that an act runs on, as opposed to who triggered it (P3): the words that all who look for it share.

What was found is a list of `Shaped`: one thing that the act would touch, and who made it what it is. Each finder (the shell's state, the files' writers, the line, the processes) adds
what it knows; the gate is asked about the act with this list, the record names the people on it, and whoever takes the turn is shown it.

1. What nobody in the session has changed since it began is not listed: it is the machine's.
2. What the trigger itself shaped is listed too: foreign is what is left when its own is taken away.
3. What could not be seen is listed with UNKNOWN as its actor. It is never left out: then the record would name only the trigger.
4. `sure` is False where someone may have shaped it, for all that is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

UNKNOWN: Final = "unknown"
UNSEEN: Final = (UNKNOWN,)  # the names, where nobody has looked
SHAPED_MAX: Final = 64  # of one act; of more, those that are another's come first
KINDS: Final = (
    "alias",  # the command's name is an alias
    "function",  # ... or a function of the shell
    "path",  # its program is found by an entry of PATH
    "variable",  # it is handed this variable, or the shell reads it
    "preload",  # ... and the variable says what code is loaded into every program (LD_PRELOAD and the like)
    "hook",  # the shell runs it by itself: PROMPT_COMMAND, precmd, ENV
    "trap",
    "option",
    "cwd",  # where it runs
    "file",  # a program, script or other file that it reads or runs
    "line",  # the text itself: who typed on it
    "shell",  # the state of the shell as a whole, where it could not be seen
)


class Shaped(NamedTuple):
    kind: str  # one of KINDS
    name: str  # of the alias, variable ...; of a file, its path
    actor: str  # who shaped it last
    act: int | None = None  # their act's number in the session
    sure: bool = True

    def show(self, session: str) -> dict[str, Any]:
        """For people and records; `session` is its reference."""
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


def told(one: Shaped) -> str:
    """In plain words: "eve's alias ls"."""
    return told_of(one.kind, one.name, one.actor, one.sure)


def told_of(kind: str, name: str, actor: str, sure: bool = True) -> str:
    what = _WORDS.get(kind, "{name}").replace("{name}", name)
    if actor == UNKNOWN:
        return f"what nobody knows ({what})"
    return f"{actor}'s {what}" if sure else f"perhaps {actor}'s {what}"


def foreign(items: Iterable[Shaped], actor: str) -> tuple[Shaped, ...]:
    """What others shaped, or nobody knows who."""
    return tuple(one for one in items if one.actor != actor)


def names(items: Iterable[Shaped], actor: str) -> tuple[str, ...]:
    """The originators of an act of `actor`, each once; "unknown" at the end if some of it could not be seen."""
    found = dict.fromkeys(one.actor for one in foreign(items, actor))
    unseen = UNKNOWN in found
    found.pop(UNKNOWN, None)
    return (*found, UNKNOWN) if unseen else tuple(found)


def written(items: Iterable[Shaped], actor: str) -> tuple[str, ...]:
    """Who else may have written what a shell reads in and runs (`source`, `eval`): of files and variables."""
    return names((one for one in items if one.kind in ("file", "variable", "shell")), actor)


def bounded(items: Iterable[Shaped], actor: str) -> tuple[Shaped, ...]:
    """Each once, and no more than SHAPED_MAX: another's first, then what is not known, then one's own. What had to be left out is unknown."""
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
