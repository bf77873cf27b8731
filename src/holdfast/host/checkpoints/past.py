"""Acts beside a checkpoint (core/record/acts_beside.py): a save notes, a restore tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.record import acts_beside as rules
from holdfast.core.record.record import host_fact
from holdfast.model.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.core.checkpoint.manifest import Manifest
    from holdfast.host.checkpoints.dumping import Moment
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal
    from holdfast.model.canonical import Canonical

KIND: Final = "restored"  # of the entry in the record
Acts = tuple[dict[str, str], ...]


class Past(NamedTuple):
    """`more`: later acts that `later` has no room for."""

    in_flight: Acts = ()
    later: Acts = ()
    more: int = 0


async def in_flight(journal: Journal, session: Session, entry: int, moment: Moment) -> Acts:
    """The acts that the dump caught in the middle. `entry`: of the record, before the dump."""
    found = await journal.unfinished_at(session.id, entry, moment.at_ns)
    return rules.in_flight(found, session.record.epoch, moment.origins)


async def look(journal: Journal, manifest: Manifest, ours: bool) -> Past:
    """`ours`: this machine made the checkpoint, so its record goes on behind `manifest.entry`."""
    await journal.settled()
    try:
        entries = await journal.acts_after(manifest.session, manifest.entry if ours else 0)
    except Unavailable:
        entries = []
    later = rules.later(entries, manifest.epoch, manifest.origins)
    kept = later[-rules.KEPT_MAX :]
    return Past(rules.rows(manifest.in_flight), (*kept,), len(later) - len(kept))


def tell(session: Session, journal: Journal, checkpoint: str, past: Past) -> None:
    """Record them behind the beginning of the new incarnation."""
    if past.in_flight or past.later:
        facts: dict[str, Canonical] = {
            "checkpoint": checkpoint,
            "in_flight": past.in_flight,
            "later": past.later,
            "more": past.more,
        }
        journal.post(host_fact(session.id, session.record.epoch, KIND, "host", "host", facts=facts))
