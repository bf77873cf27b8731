"""Put names into errors: the session of the command, and the name that was probably meant."""

from __future__ import annotations

from holdfast.model.errors import HoldfastError, NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

MOVES_MAX = 100  # that a terminal follows

# Kind of name -> the request that lists the names, and the field of the answer.
LISTS = {"session": ("ls", "sessions"), "operator": ("operator.ls", "operators")}


def close(word: str, names: list[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(word, names, 1)
    return f"; did you mean {found[0]}?" if found else ""


def name_session(error: HoldfastError, typed: str) -> None:
    """Put the session into the advice as the user typed it, with the machine if there is one."""
    import re
    from shlex import quote

    if error.recover:
        error.recover = re.sub(r"\bSESSION\b", lambda _: quote(typed), error.recover)


def is_elsewhere(error: HoldfastError, options: Namespace, word: str | None) -> bool:
    """Whether a known machine has the session `word`, which this machine does not have.

    `options` then name the machine too. The command had no effect so far.
    """
    found = error.facts.get("known_as")  # id and name of a session that went to another machine
    known_as = [str(one) for one in found] if isinstance(found, list) else []
    if error.facts.get("what") != "session" or not word:
        return False
    if word != error.facts.get("word") and word not in known_as:
        return False
    import os

    from holdfast.client.environ import CREDENTIAL
    from holdfast.faces.cli.connect import home_here

    if "/" in word or os.environ.get(CREDENTIAL) or not os.path.exists(home_here().machines):
        return False
    from holdfast.client.everywhere import went
    from holdfast.faces.cli import fleet

    if known_as and (machine := fleet.named(options, went(error.facts))):
        options.session = f"{machine}/{known_as[0]}"
        return True
    try:
        options.session = fleet.find_elsewhere(options, known_as[0] if known_as else word)
    except NotFound as e:
        error.message = e.message
        return False
    return True


def run_there(command: Callable[[Namespace], int], options: Namespace) -> int:
    """Run the command at the machine that `options` name now.

    An attached terminal follows its session further, also back to this machine. The id is known
    from this machine: an id from another machine could lead the keys into another session.
    """
    session, away = options.session.partition("/")[2], True
    for _ in range(MOVES_MAX):
        try:
            return command(options)
        except NotFound as e:
            if not e.facts.get("known_as") or not (away or is_elsewhere(e, options, session)):
                raise
            if away:
                options.session = session
            away = not away
    return command(options)


def explain(error: NotFound, options: Namespace) -> None:
    """Add a suggestion to the error. A failure to find a suggestion is ignored."""
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
