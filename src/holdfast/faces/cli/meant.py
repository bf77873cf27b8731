"""For a name that nobody has: the one that was probably meant, of those the asker may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, NotFound

if TYPE_CHECKING:
    from argparse import Namespace

LISTS = {
    "session": ("ls", "sessions"),
    "operator": ("operator.ls", "operators"),
}  # what -> the request that lists them, and where in its answer


def close(word: str, names: list[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(word, names, 1)
    return f"; did you mean {found[0]}?" if found else ""


def explain(error: NotFound, options: Namespace) -> None:
    """Adds it to the error, if there is one; an error while looking for it is none."""
    what, word = str(error.facts.get("what")), error.facts.get("word")
    if what not in LISTS or not isinstance(word, str):
        return
    from holdfast.faces.cli.connect import link

    op, where = LISTS[what]
    try:
        connection = link(options, autostart=False)
        names = [str(one["name"]) for one in connection.request(op)[where]]
        connection.close()
    except HoldfastError:
        return
    error.message += close(word, names)
