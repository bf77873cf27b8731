"""The last steps of a restore, when the processes run: halts, events and the record.

The host that began the restore does them, or the next host if that one died.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.record.record import host_fact
from holdfast.host.checkpoints import halts, past, restore, unfinished
from holdfast.host.checkpoints.past import Past
from holdfast.host.checkpoints.unfinished import Unfinished
from holdfast.host.connections.closed import tell_closed
from holdfast.host.lifecycle.prepare import host_only_directory
from holdfast.host.runtime.notify import log_error, log_errors
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.core.checkpoint.manifest import Manifest
    from holdfast.home import Home
    from holdfast.host.checkpoints.store import Checkpoints
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.keeper_link import KeeperLink
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal

TAKEN_OVER: Final = "taken_over"  # the kind of the entry in the record


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def home(self) -> Home: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def journal(self) -> Journal: ...

    async def keep_now(self, record: SessionRow) -> None: ...


async def beside(journal: Journal, checkpoints: Checkpoints, manifest: Manifest, last: int) -> Past:
    """The acts beside the checkpoint. `last`: the epoch of the incarnation before."""
    found = await past.look(journal, manifest, manifest.maker == checkpoints.maker)
    if manifest.ended and last == manifest.epoch:  # no act went on after the checkpoint
        return found._replace(in_flight=())
    return found


def tell(
    session: Session,
    journal: Journal,
    note: Unfinished,
    acts: Past,
    connections: tuple[dict[str, Any], ...],
) -> tuple[dict[str, Any], ...]:
    """Tell of a restore; returns the facts of the connections that did not survive."""
    session.event(
        "session.restored",
        operator=note.operator,
        checkpoint=note.id,
        at=note.at,
        epoch=session.record.epoch,
        root_pid=session.record.root_pid,
        in_flight=[one["act"] for one in acts.in_flight],
        later=[one["act"] for one in acts.later],
        **({"halted": True} if note.halted else {}),
    )
    past.tell(session, journal, note.id, acts)
    return tell_closed(session, journal, connections, note.how, note.id)


async def use_numbers(session: Session, journal: Journal) -> None:
    """Acts that the lost incarnation took after the checkpoint are not done again (R6).

    The keeper knows the acts of the checkpoint; those go on as they were.
    """
    with contextlib.suppress(Unavailable):
        await journal.catch_up(session.id, session.record.epoch, session.lane.restore_number)


def record_takeover(journal: Journal, session: str, epoch: int, facts: dict[str, Any]) -> None:
    """Begin the record of a session here: the entry names the end of the old record."""
    journal.post(host_fact(session, epoch, TAKEN_OVER, "host", "host", facts=facts))


# ---------------------------------------------------------------- a restore of the last host


class Left(NamedTuple):
    """What the last host left to do. `manifest`: None if the checkpoint cannot be used any more."""

    note: Unfinished
    manifest: Manifest | None

    @property
    def row(self) -> SessionRow:
        return SessionRow(**self.note.row)


async def go_on(
    engine: Engine, checkpoints: Checkpoints, session: str, link: KeeperLink
) -> Left | None:
    """Find a restore that the last host did not finish; before a client finds the session.

    The processes run, whatever became of their checkpoint. Without it only the screen is missing,
    and the acts and connections of that moment.
    """
    note = unfinished.read(host_only_directory(engine.home, session), link.welcome.epoch)
    if note is None:
        return None
    await engine.keep_now(SessionRow(**note.row))
    if note.taken_over and not await _is_recorded(engine.journal, session, note.epoch):
        record_takeover(engine.journal, session, note.epoch, note.taken_over)
    manifest = None
    try:
        manifest = await asyncio.to_thread(checkpoints.read, session, note.id)
        screen = await asyncio.to_thread(restore.read_screen, checkpoints, manifest)
        restore.show(screen, manifest, note.base, link.snapshot_fd)
    except Exception as e:  # of any kind: another machine may have made the checkpoint
        log_error(f"the screen of the restored session {session}", e)
    return Left(note, manifest)


async def _is_recorded(journal: Journal, session: str, epoch: int) -> bool:
    try:
        await journal.settled()
        newest = await journal.read(session, newest=True)
    except Unavailable:
        return False
    return any(one.fields["kind"] == TAKEN_OVER and one.fields["epoch"] == epoch for one in newest)


async def finish(engine: Engine, checkpoints: Checkpoints, session: Session, left: Left) -> None:
    """Do what the last host had still to do for a restored session."""
    note, manifest = left
    with log_errors(f"the halt of the restored session {session.id}"):
        await halts.again(engine.halter, session, note, note.operator)
    unfinished.remove(session.host_only_directory)
    checkpoints.drop_last_output(session.id)
    acts, connections = Past(), tuple[dict[str, Any], ...]()
    if manifest is not None:
        acts = await beside(engine.journal, checkpoints, manifest, note.last)
        connections = manifest.connections
    tell(session, engine.journal, note, acts, connections)
