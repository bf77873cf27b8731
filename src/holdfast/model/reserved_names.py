"""Names that no operator can have, because records, graphs and policies give them a meaning.

An operator of such a name could be taken for the host, for the shell, or for an author that is not
known. This is the only table of these names. To add a pseudo actor, add its name here first.

Operators that an earlier build let in under such a name keep it: the record names them. `doctor`
reports them, and the host never takes the pseudo actor for the operator.
"""

from __future__ import annotations

from holdfast.model.errors import Refused, Usage
from holdfast.model.ids import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED = {
    "unknown": "an actor or author that was not observed (graph, record, policy)",
    "shell": "a shell that acts by itself: its prompt, its hooks (graph, record, policy)",
    "others": "every other operator (policy: shaped_by)",
    "host": "the host itself (record)",
    "machine": "the installation: its key, and its record",
    "keeper": "the process that holds a session",
    # kept free for policies and commands
    "all": "every operator",
    "any": "any operator",
    "everyone": "every operator",
    "none": "no operator",
    "self": "the operator that asks",
}


_SEPARATORS = "._-"
_LOOK = str.maketrans("01", "ol", _SEPARATORS)


def _looks(name: str) -> set[str]:
    """Return what hasty readers see: no case, no punctuation, and 0 and 1 as letters.

    A capital I is an i or an l; rn is read as m, and vv as w.
    """
    return {
        one.casefold().translate(_LOOK).replace("rn", "m").replace("vv", "w")
        for one in (name, name.replace("I", "l"))
    }


def is_reserved(name: str) -> bool:
    """Say whether the name, or a name that looks like it, has a meaning of its own."""
    return not _looks(name).isdisjoint(RESERVED)


def lookalike(name: str, names: Iterable[str]) -> str | None:
    """Return another name, of these, that a reader could mistake for this one."""
    looks = _looks(name)
    return next((one for one in names if one != name and not looks.isdisjoint(_looks(one))), None)


def check_lookalike(name: str, names: Iterable[str]) -> None:
    """Raises Refused if a new operator of this name could be mistaken for one of these."""
    if (other := lookalike(name, names)) is not None:
        raise Refused(
            f"the name {name} looks like {other}, another operator",
            "choose a name that differs by more than case, '.', '_', '-', 0 for o, 1 or I for l, "
            "rn for m or vv for w",
        )


def check_new_operator(name: str) -> str:
    """Return a name that a new operator can have. Raises Usage for any other."""
    if meant := RESERVED.keys() & _looks(check_name(name)):
        raise Usage(
            f"an operator cannot be named {name}: the name means {RESERVED[min(meant)]}",
            f"choose another name, like {name}-1",
        )
    return name
