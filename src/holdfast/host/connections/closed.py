"""Tells which connections a new incarnation or a branch of a session has lost (R4).

A restore, a move and a fork call `tell_closed` with the rows of the manifest, once the programs of
the new incarnation run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.core.record.record import host_fact
from holdfast.core.session import connections

if TYPE_CHECKING:
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal
    from holdfast.model.canonical import Canonical

KIND: Final = "connections"  # of the entry in the record
EVENTS_MAX: Final = 32  # for one restore; the record and the answer have the others
RECORDED_MAX: Final = 64  # in one entry of the record


def tell_closed(
    session: Session,
    journal: Journal,
    rows: Iterable[Mapping[str, Any]],
    how: Literal["restore", "move", "fork"],
    checkpoint: str,
) -> tuple[dict[str, Any], ...]:
    """Publish them as events and in the record; returns the facts, for the caller's answer."""
    found = tuple(connections.facts(one) for one in connections.lost(rows))
    for one in found[:EVENTS_MAX]:
        session.event("connection.lost", kind=f"closed_by_{how}", **one)
    if found:
        said: dict[str, Canonical] = {
            "closed_by": how,
            "checkpoint": checkpoint,
            "lost": [*found[:RECORDED_MAX]],
            "more": max(0, len(found) - RECORDED_MAX),
        }
        journal.post(host_fact(session.id, session.record.epoch, KIND, "host", "host", facts=said))
    return found
