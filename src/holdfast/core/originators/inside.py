"""Clients that run inside a session, and the operators who started such a client (A7).

A plain session runs as the account that has the key files. Code there can sign as any operator with
a key in that account, so a signature alone does not prove the actor. The kernel names the process
of a local client, and the lineage names the operators whose orders started this process.

1. Each operator who may have had a part in the order counts: a typist on the same line too.
2. Where the lineage does not know the order, every operator who ever gave input to the session
   counts. If that is one operator, this operator started the client.
3. Otherwise the operator is unknown.

An act of a client that another operator started is refused, and so is an act of a client with an
unknown operator. For an unknown operator there are two exceptions: reading, and acts that only stop
(`STOPS`). The installation can allow all of these acts; the record then names the operators.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.originators.lineage import SHELL, Cause
from holdfast.core.originators.originators import UNKNOWN

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

STOPS: Final = frozenset(("seize", "halt"))
# Operations that a client needs to leave, or to sign for keys that the host has taken already.
ALWAYS: Final = frozenset(("ping", "cover", "detach", "refresh"))


class Inside(NamedTuple):
    """A client inside a session."""

    session: str | None  # the reference of the session; None: any session, or none
    operators: tuple[str, ...]  # who started the client; "unknown" comes last
    act: str | None = None  # the reference of the act that started it

    def show(self) -> dict[str, Canonical]:
        return {"session": self.session, "operators": list(self.operators), "act": self.act}

    def others(self, actor: str) -> tuple[str, ...]:
        """Return the operators beside `actor`."""
        return tuple(one for one in self.operators if one != actor)


def starters(cause: Cause, inputs_of: Collection[str] | None) -> tuple[str, ...]:
    """Return the operators behind a process; `inputs_of`: who ever gave input to the session."""
    found = dict.fromkeys(
        UNKNOWN if one == SHELL.actor else one for one in (cause.actor, *cause.others)
    )
    if found.pop(UNKNOWN, 0) is None:
        alone = inputs_of is not None and len(inputs_of) == 1
        found |= dict.fromkeys((inputs_of or ()) if alone else (UNKNOWN,))
    return tuple(found)


def refuses(inside: Inside, actor: str, op: str, harmless: bool) -> bool:
    """Say whether an operation of this client in the name of `actor` is refused."""
    others = inside.others(actor)
    if not others or op in ALWAYS:
        return False
    return others != (UNKNOWN,) or not (harmless or op in STOPS)
