"""The last steps of a restore, when the processes run: halts, events and the record.

The host that began the restore does them, or the next host if that one died.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.checkpoint import manifest as forms
from holdfast.host.checkpoints import halts, past, restore, unfinished
from holdfast.host.checkpoints.past import Past
from holdfast.host.checkpoints.unfinished import How, Unfinished
from holdfast.host.connections.closed import tell_closed
from holdfast.host.lifecycle.prepare import host_only_directory

if TYPE_CHECKING:
    from holdfast.core.checkpoint.manifest import Manifest
    from holdfast.home import Home
    from holdfast.host.checkpoints.store import Checkpoints
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.keeper_link import KeeperLink
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def home(self) -> Home: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def journal(self) -> Journal: ...


async def beside(journal: Journal, checkpoints: Checkpoints, manifest: Manifest) -> Past:
    ours = manifest.maker == checkpoints.maker
    return await past.look(journal, manifest, ours)


def tell(
    session: Session,
    journal: Journal,
    manifest: Manifest,
    operator: str,
    how: How,
    beside: Past,
) -> tuple[dict[str, Any], ...]:
    session.event(
        "session.restored",
        operator=operator,
        checkpoint=manifest.id,
        at=manifest.at,
        epoch=session.record.epoch,
        root_pid=session.record.root_pid,
        in_flight=[one["act"] for one in beside.in_flight],
        later=[one["act"] for one in beside.later],
        **({"halted": True} if manifest.halted else {}),
    )
    past.tell(session, journal, manifest.id, beside)
    return tell_closed(session, journal, manifest.connections, how, manifest.id)


# ---------------------------------------------------------------- a restore of the last host


async def go_on(
    engine: Engine, checkpoints: Checkpoints, session: str, link: KeeperLink
) -> tuple[Unfinished, Manifest] | None:
    """Find a restore that the last host did not finish; give the keeper its screen."""
    directory = host_only_directory(engine.home, session)
    note = unfinished.read(directory, link.welcome.epoch)
    if note is None:
        return None
    manifest = await asyncio.to_thread(checkpoints.read, session, note.checkpoint)
    screen = await asyncio.to_thread(checkpoints.content, manifest, forms.SCREEN)
    restore.show(screen, manifest, note.base, link.snapshot_fd)
    return note, manifest


async def finish(
    engine: Engine,
    checkpoints: Checkpoints,
    session: Session,
    note: Unfinished,
    manifest: Manifest,
) -> None:
    """Do what the last host had still to do for a restored session."""
    await halts.again(engine.halter, session, manifest, note.operator)
    unfinished.remove(session.host_only_directory)
    checkpoints.drop_last_output(session.id)
    acts = await beside(engine.journal, checkpoints, manifest)
    tell(session, engine.journal, manifest, note.operator, note.how, acts)
