"""Which of the known machines has the session that a word means. Pure: the callers ask.

A name or beginning means a session of this machine first. If this machine has none, an id finds
its session on any machine. A name finds a session elsewhere only if every known machine answered
and one of them has it: the caller could have meant a session of a silent machine. Beginnings of
names are not searched elsewhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model.errors import Ambiguous, NotFound

SEARCH_S: Final = 3.0  # for the answers of all known machines


class Found(NamedTuple):
    """A session on a known machine."""

    machine: str
    id: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.machine}/{self.name}"


def decide(word: str, found: list[Found], silent: dict[str, str]) -> Found:
    """The session that the word means. `silent`: why a machine did not answer, by its name."""
    for one in found:
        if one.id == word:
            return one
    named = [one for one in found if one.name == word]
    if len(named) > 1:
        raise Ambiguous(
            f"several machines have a session {word}: {_listed([one.path for one in named])}",
            "name the machine, or give the id",
        )
    if named and silent:
        raise Ambiguous(
            f"{named[0].path} exists, and {_listed(list(silent))} did not answer",
            f"name the machine: {named[0].path}",
        )
    if named:
        return named[0]
    unheard = f"; {_listed(list(silent))} did not answer" if silent else ""
    raise NotFound(f"no known machine has a session {word!a}{unheard}")


LISTED: Final = 8  # names in a message


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
