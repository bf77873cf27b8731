"""Which of the known machines has the session that a word means. Pure: the callers ask.

A name or beginning means a session of this machine first. If this machine has none, an id finds
its session on any machine. A name finds a session elsewhere only if every known machine answered
and one of them has it: the caller could have meant a session of a silent machine. Beginnings of
names are not searched elsewhere.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from holdfast.model.errors import Ambiguous, NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.home import Home
    from holdfast.model.errors import HoldfastError
    from holdfast.model.jsontext import Json

SEARCH_S: Final = 3.0  # for the answers of all known machines
ODD: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


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


def went(answer: Mapping[str, object]) -> str:
    """The key of the machine to which an answer or an error leads; else empty."""
    found = answer.get("elsewhere")
    return str(found.get("key", "")) if isinstance(found, dict) else ""


def called_here(error: HoldfastError, home: Home, told_by: str) -> str:
    """How a session that another machine led away is named here: by the machine's key.

    The caller decides: a machine could lead an act into a session that the caller did not mean.
    """
    from holdfast.home import machines
    from holdfast.model import signing

    # By its id: a session of that machine may have the same name.
    key, names = went(error.facts), error.facts.get("known_as")
    session = str(names[0]) if isinstance(names, list) and names else "SESSION"
    for one in machines.listing(home):
        if signing.show(one.key) == key:
            return f"name it as {one.name}/{session}"
    return f"{told_by} says that it is at the machine with the key {key}, which is not known here"


def best(answers: dict[str, Json], here: Json) -> tuple[str, Json] | None:
    """The machine with the best answer about a reference, if it is better than that of `here`.

    A machine that has the session is better than one that leads elsewhere; then the later
    incarnation counts. An odd answer does not.
    """
    ranks = dict[str, tuple[bool, bool, int]]()
    for name, answer in answers.items():
        with contextlib.suppress(*ODD):  # another machine may say anything
            ranks[name] = _rank(answer)
    found = max(ranks, key=lambda name: ranks[name], default=None)
    if found is None or ranks[found] <= _rank(here):
        return None
    return found, answers[found]


def _rank(answer: Json) -> tuple[bool, bool, int]:
    epoch = (answer.get("elsewhere") or answer.get("session") or {}).get("epoch") or 0
    return answer["known"] is True, not went(answer), int(epoch)


LISTED: Final = 8  # names in a message


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
