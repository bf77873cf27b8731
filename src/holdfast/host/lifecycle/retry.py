"""Tries that make a session: again if the machine did not stay as the host saw it.

The plan of a contained session is made by the host and carried out by the keeper a moment later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.host.lifecycle.nursery import NoNetwork, TreeChanged
from holdfast.host.runtime import connectors
from holdfast.model.contained import OWN

if TYPE_CHECKING:
    from holdfast.host.lifecycle.prepare import Maker, NewSession
    from holdfast.host.session.session import Session


async def attempt(
    maker: Maker,
    create: Callable[[str, str, NewSession, str], Awaitable[Session]],
    session_id: str,
    name: str,
    request: NewSession,
    operator: str,
) -> Session:
    """Create the session; once more if its file tree changed, or if no connector started.

    The decision about the tree is not made again: it may have been approved.
    """
    looked_again = False
    while True:
        try:
            return await create(session_id, name, request, operator)
        except TreeChanged:
            if looked_again:
                raise
            looked_again = True
        except NoNetwork as e:
            request = with_the_machines_network(maker, request, e)


def with_the_machines_network(maker: Maker, request: NewSession, why: NoNetwork) -> NewSession:
    """The request for a session that shares the machine's network; raises `why` if it must not.

    Only if nobody asked for a network of its own. For an agent, only if this machine seems unable
    to connect one: otherwise code inside could exhaust the machine's processes or memory, so that
    the agent's next session gets the machine's loopback.
    """
    decision = request.decision
    if decision is None or not decision.may_share:
        raise why
    works = any(session.label.get("net") == OWN for session in maker.sessions.values())
    if not decision.wanted.human and works and connectors.routed():
        raise why
    return replace(request, decision=decision.sharing_network(why.why))
