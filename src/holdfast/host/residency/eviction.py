"""Evicts a session: saves it to disk, and its processes end; the next attach brings it back (R8).

The checkpoint is made by `host`, and so are the entries in the record. That mark is on the disk
with the checkpoint: any later host knows that the session was not stopped by an operator, and
restores it for the next attach or command. A session that an operator stopped (`checkpoint --stop`)
waits for `restore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.record.record import host_fact
from holdfast.host.checkpoints.save import examine, impossible, save
from holdfast.host.processes.halt import Halter
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.session.session import Session
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Impossible, Refused, Saved
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.checkpoints.incarnations import Incarnations, Restored
    from holdfast.host.storage.journal import Journal

HOST: Final = "host"
ENDED_S: Final = 60.0  # for the end of a saved session to be filed
TOLD_S: Final = 2.0  # between two messages to a client that waits for a restore

Tell = Callable[[str, int], None]


class Engine(Protocol):
    """The parts of the engine that this module needs."""

    @property
    def halter(self) -> Halter: ...

    @property
    def incarnations(self) -> Incarnations: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...


class Evicted(NamedTuple):
    """An evicted session on the disk."""

    checkpoint: str
    at: float
    bytes: int


class Evictions:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._restores: dict[str, asyncio.Task[Restored]] = {}
        self._known: dict[str, tuple[str, Manifest | None]] = {}  # by session, with the reason
        self._tasks = Tasks("the restore of an evicted session")
        # Raises if another machine has the session (host/copies).
        self.may_wake: Callable[[str], Awaitable[None]] = _may

    # ------------------------------------------------------------ to the disk

    async def evict(
        self,
        session: Session,
        why: str,
        tell: Tell = lambda step, done: None,
        used: Callable[[], str] = lambda: "",
    ) -> Manifest:
        """Impossible (with `final`) if the session cannot be saved. A failure changes nothing.

        `used`: says why the session must stay after all; it is asked at every step.
        """

        def step(name: str, done: int) -> None:
            if in_use := used():
                raise Refused(in_use)
            if name == "begun":
                probe("host.evict.begun")
            elif name == "stored":
                probe("host.evict.stored")
            tell(name, done)

        store = self._engine.incarnations.checkpoints
        found = await examine(store, session)
        if not found.possible:
            error = impossible(session, found)
            error.facts["final"] = True
            raise error
        manifest = await save(
            store, session, HOST, True, step, self._engine.halter, self._engine.journal
        )
        async with asyncio.timeout(ENDED_S):
            await asyncio.shield(session.ended)
        self._known[session.id] = session.record.reason, manifest
        session.event("session.evicted", checkpoint=manifest.id, bytes=manifest.bytes, because=why)
        self._note(session.id, manifest.epoch, "save", checkpoint=manifest.id, because=why)
        probe("host.evict.done")
        return manifest

    def _note(self, session: str, epoch: int, kind: str, **facts: Any) -> None:
        self._engine.journal.post(host_fact(session, epoch, kind, HOST, HOST, facts=facts))

    # ------------------------------------------------------------ on the disk

    async def manifest(self, row: SessionRow) -> Manifest | None:
        """The checkpoint with which this incarnation ended."""
        if row.state != "checkpointed":
            return None
        reason, found = self._known.get(row.id, ("", None))
        if reason != row.reason:
            store = self._engine.incarnations.checkpoints
            made = await asyncio.to_thread(store.of, row.id)
            found = forms.newest([one for one in made if one.ended and one.epoch == row.epoch])
            self._known[row.id] = row.reason, found
        return found

    def known(self, row: SessionRow) -> bool:
        """As `evicted`, by what is known without a look at the disk."""
        reason, found = self._known.get(row.id, ("", None))
        fits = row.state == "checkpointed" and reason == row.reason
        return fits and found is not None and found.by == HOST

    async def evicted(self, row: SessionRow) -> bool:
        """Whether the host saved the session by itself, so that it comes back by itself."""
        found = await self.manifest(row)
        return found is not None and found.by == HOST

    # ------------------------------------------------------------ back

    async def restore(
        self, row: SessionRow, operator: str, tell: Callable[[dict[str, Any]], None]
    ) -> Session:
        """Bring the session back; callers at the same time share one restore."""
        task = self._restores.get(row.id)
        if task is None:
            task = self._restores[row.id] = self._tasks.spawn(self._restored(row, operator))
            task.add_done_callback(lambda _: self._restores.pop(row.id, None))
        found = await self.manifest(row)
        facts: dict[str, Any] = {"name": row.name}
        if found is not None:
            facts |= {"bytes": found.bytes, "at": found.at, "checkpoint": found.id}
        tell(facts)
        while not (await asyncio.wait({task}, timeout=TOLD_S))[0]:
            tell(facts)
        return (await asyncio.shield(task)).session

    async def _restored(self, row: SessionRow, operator: str) -> Restored:
        found = await self.manifest(row)
        if found is None:
            raise Saved(f"session {row.name} is on the disk, and its checkpoint cannot be read")
        await self.may_wake(row.id)
        incarnations, loop = self._engine.incarnations, asyncio.get_running_loop()
        until = loop.time() + ENDED_S
        while row.id in incarnations.checkpoints.busy and loop.time() < until:
            await asyncio.sleep(0.02)
        if row.id not in self._engine.sessions:
            probe("host.wake.begun")
            try:
                made = await incarnations.restore(row, found, operator)
            except Impossible as e:
                raise Impossible(
                    e.message,
                    f"try again: `holdfast restore {row.name} --no-fallback`. Without that option "
                    "a session whose restore fails comes back without its memory, and must end "
                    "before its checkpoint, which stays, can be tried again",
                    **e.facts,
                ) from e
            epoch = made.session.record.epoch
            self._note(row.id, epoch, "restore", checkpoint=found.id, because=operator)
            return made
        raise Refused(f"session {row.name} is running again", "try again")


async def _may(session: str) -> None:
    """No machine has copies."""


def final(error: HoldfastError) -> bool:
    """Whether another attempt to save the session would fail in the same way."""
    return bool(error.facts.pop("final", False))
