"""What an operator may be allowed to do: the finer rights, and the everyday bundles of them.

Levels that rank one above another cannot express least privilege (may halt, but not type), so a right is a name and an
envelope a set of them. A bundle is only a way to write several. When you add a right: say here what it lets one do, put it into the
bundles, and refuse it at one place in the host's door.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.model.errors import Usage

RIGHTS: Final = {
    "observe": "see the screen, the output, the graph and who is there",
    "input": "type",
    "run": "run discrete commands",
    "signal": "signal processes of the session",
    "resize": "change the terminal's size",
    "turn.request": "ask for the turn",
    "turn.hand": "hand the turn to somebody",
    "turn.seize": "take the turn without asking",
    "halt": "freeze and thaw everything",
    "grant": "hand on rights that one has",
    "approve": "decide what waits for approval",
    "end": "end the session, rename it, forget it",
    "checkpoint": "freeze it to disk, restore and move it",
    "fork": "branch it, keep and discard branches",
    "files": "read and write files through it",
    "log": "read its record",
    "new": "make sessions on the machine",
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
    "new",
}
ADMIN: Final = frozenset(RIGHTS)
BUNDLES: Final = {"read": READ, "execute": EXECUTE, "admin": ADMIN}
MACHINE_WIDE: Final = frozenset(
    ("new", "manage")
)  # mean nothing in an envelope that is for one session


def parse(text: str) -> frozenset[str]:
    """`read`, `execute,halt`, `observe,input`: bundles and rights by name."""
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
    """The shortest way to write them."""
    left, words = set(rights), list[str]()
    for name in ("admin", "execute", "read"):
        if BUNDLES[name] <= left:
            words.append(name)
            left -= BUNDLES[name]
            break
    return ",".join([*words, *sorted(left)])
