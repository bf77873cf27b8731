"""The rights that an envelope can hold, and the everyday bundles of them.

Ranked levels cannot express least privilege (may halt but not type), so a right is a name and an
envelope holds a set of names. A bundle is shorthand for several rights. To add a right, describe it
here, put it into a bundle (or not, as PLAIN), and check it at one place in the host's door.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.model.errors import Usage

RIGHTS: Final = {
    "observe": "see the screen, the output, the graph and the attached operators",
    "input": "type",
    "run": "run discrete commands",
    "signal": "signal processes of the session",
    "resize": "change the terminal's size",
    "turn.request": "ask for the turn",
    "turn.hand": "hand the turn to another operator",
    "turn.seize": "take the turn without asking, detach clients of other operators",
    "halt": "freeze and thaw the whole session",
    "grant": "hand on one's own rights",
    "approve": "decide acts that wait for approval",
    "end": "end the session, rename it, forget it",
    "checkpoint": "freeze it to disk, restore and move it",
    "rehome": "let other machines take it over, or pin it; invalidate its lease",
    "fork": "branch it, keep and discard branches",
    "files": "read and write files through it",
    "forward": "connect to its listening ports",
    "log": "read its record",
    "plain": "steer plain sessions too, where code can read the keys of the account (agents only)",
    "new": "make sessions on the machine",
    "store": "keep copies of sessions of another machine here, and move them here (machines)",
    "manage": "operators, policy and the host of the machine",
}
READ: Final = frozenset(("observe", "log"))
EXECUTE: Final = READ | {
    "input",
    "run",
    "signal",
    "resize",
    "turn.request",
    "turn.hand",
    "files",
    "forward",
    "new",
}
PLAIN: Final = "plain"  # in no bundle: a person gives it to an agent by name
# Rights that steer the programs of a session: in a plain session an agent needs PLAIN too.
STEERS: Final = frozenset(
    (
        *("input", "run", "signal", "resize", "turn.request", "turn.hand", "turn.seize"),
        *("files", "forward"),
    )
)
ADMIN: Final = frozenset(RIGHTS) - {PLAIN}
# The machine made administrators before this right existed; they have it too.
LATER: Final = frozenset(("forward", "store", "rehome"))
BUNDLES: Final = {"read": READ, "execute": EXECUTE, "admin": ADMIN}
# Without meaning in an envelope of one session.
MACHINE_WIDE: Final = frozenset(("new", "manage", "store"))


def parse(text: str) -> frozenset[str]:
    """Parse names of bundles and rights, such as `read`, `execute,halt` or `observe,input`."""
    found: set[str] = set()
    for word in filter(None, (w.strip() for w in text.split(","))):
        if word in BUNDLES:
            found |= BUNDLES[word]
        elif word in RIGHTS:
            found.add(word)
        else:
            raise Usage(
                f"{word[:40]!a} is not a right",
                f"bundles: {', '.join(BUNDLES)}; rights: {', '.join(RIGHTS)}",
            )
    if not found:
        raise Usage(
            "no rights were named", f"bundles: {', '.join(BUNDLES)}; rights: {', '.join(RIGHTS)}"
        )
    return frozenset(found)


def show(rights: Iterable[str]) -> str:
    """Write a set of rights in the shortest way."""
    left, words = set(rights), list[str]()
    for name in ("admin", "execute", "read"):
        if BUNDLES[name] <= left:
            words.append(name)
            left -= BUNDLES[name]
            break
    return ",".join([*words, *sorted(left)])
