"""Saves a session before an act, because a rule of the policy wants a checkpoint there.

If the session cannot be saved, the act is refused: the rule is there for acts whose state someone
wants to have back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.core.checkpoint.manifest import Manifest
from holdfast.host.checkpoints.save import save
from holdfast.host.checkpoints.store import Checkpoints
from holdfast.host.processes.halt import Halter
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal
from holdfast.model.errors import GateRefused, HoldfastError

HOST = "host"  # the actor


def saver(
    checkpoints: Callable[[], Checkpoints],
    halter: Halter,
    journal: Journal,
    saved: Callable[[Session, Manifest], None],
) -> Callable[[Session, str], Awaitable[str]]:
    """A function that saves a session for a rule, and returns the checkpoint's id.

    `saved` learns of each of these checkpoints.
    """

    async def save_first(session: Session, rule: str) -> str:
        try:
            made = await save(
                checkpoints(), session, HOST, False, lambda step, count: None, halter, journal
            )
        except HoldfastError as e:
            raise GateRefused(
                f"the rule {rule!r} wants a checkpoint before this act: {e.message}",
                e.recover or "`holdfast checkpoint --check` says what can be saved",
                rule=rule,
            ) from e
        facts = {"operator": HOST, "checkpoint": made.id, "bytes": made.bytes, "rule": rule}
        session.event("session.saved", **facts)
        saved(session, made)
        return made.id

    return save_first
