"""Saves a session: preflight, images of the processes, and the host's own part.

With `stop`, the processes end when the whole checkpoint is on the disk; after an earlier failure
they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from holdfast import __version__
from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import preflight
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.checkpoint.preflight import Facts, Preflight
from holdfast.core.session import connections
from holdfast.host.checkpoints import look, machine, packing, past, sizes
from holdfast.host.checkpoints.dumping import Dumped, Tell, dump, memory_of, plan_of
from holdfast.host.checkpoints.store import PLAN, Checkpoints
from holdfast.host.processes import proc_scan
from holdfast.host.processes.halt import Halter
from holdfast.host.runtime import criu
from holdfast.host.runtime.tasks import to_the_end
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal
from holdfast.model.errors import Impossible, Refused
from holdfast.wire.spawning import NET_HOST

EXAMINED: Final = "examined"  # the first step that is told
STORED: Final = "stored"  # all is on the disk: it cannot be given up any more
ENDED_S: Final = 5.0  # for the end of killed processes to be noticed
NOT_PACKED: Final = frozenset({"dump.log", "stats-dump"})  # in the directory of images


async def examine(
    checkpoints: Checkpoints, session: Session, copied_max: int = preflight.COPIED_MAX
) -> Preflight:
    """Run the preflight; nothing stops. `copied_max`: as in preflight.Facts."""
    terminal = await session.terminal()

    def facts() -> Facts:
        try:
            tool = ""
            criu.find(checkpoints.criu)
        except Impossible as e:
            tool = f"{e.message}: {e.recover}"
        root = session.record.root_pid
        found = look.processes(session.keeper_pid, root)
        plan = plan_of(session)
        inside = plan.containment if plan is not None else None
        own_network = inside is not None and inside.net != NET_HOST
        return Facts(
            session.layout.get("layout", ""),
            plan is not None,
            found,
            look.connections(root, found, own_network),
            look.shared_memory(found),
            terminal.queued_input,
            checkpoints.free(),
            tool,
            sizes.held(root, found, memory_of(plan)) if plan is not None else (),
            copied_max,
            os.geteuid() == 0,
            proc_scan.hf_root(session.keeper_pid) > 0,
            os.getpid(),
        )

    return preflight.judge(await session.looked(facts))


def impossible(session: Session, found: Preflight) -> Impossible:
    return Impossible(
        f"{session.name} cannot be saved: {'; '.join(found.blockers)}",
        "the session goes on as it was; docs/reference/checkpoints.md says what can be saved",
        blockers=list(found.blockers),
    )


async def save(
    checkpoints: Checkpoints,
    session: Session,
    by: str,
    stop: bool,
    tell: Tell,
    halter: Halter,
    journal: Journal,
) -> Manifest:
    """Save a session; with `stop`, its processes end. A failure leaves the session as it was.

    The caller can cancel it until the checkpoint is stored.
    """
    with checkpoints.using(session.id, session.name):
        found = await examine(checkpoints, session)
        if not found.possible:
            raise impossible(session, found)
        tell(EXAMINED, found.bytes)
        saving = _Saving(checkpoints, session, by, stop, tell, found, halter, journal)
        checkpoints.saving.add(session.id)
        try:
            return await to_the_end(saving.run(), lambda: saving.manifest is None)
        finally:
            checkpoints.saving.discard(session.id)


class _Saving:
    def __init__(
        self,
        checkpoints: Checkpoints,
        session: Session,
        by: str,
        stop: bool,
        tell: Tell,
        found: Preflight,
        halter: Halter,
        journal: Journal,
    ) -> None:
        self.checkpoints, self.session, self.by, self.stop = checkpoints, session, by, stop
        self.tell, self.found, self.halter, self.journal = tell, found, halter, journal
        self.at = time.time()
        self.id = f"{forms.PREFIX}{secrets.token_hex(6)}"
        self.tool = criu.find(checkpoints.criu)
        self.manifest: Manifest | None = None
        self.images: Path | None = None  # plain
        self.entry = 0  # the end of the record before the dump

    async def run(self) -> Manifest:
        session, store = self.session, self.checkpoints
        try:
            await asyncio.to_thread(store.sweep_session, session.id)
            images = await asyncio.to_thread(store.scratch.make, self.id, self.found.bytes)
            self.images = images
            await self.journal.settled()
            self.entry = entry.seq if (entry := self.journal.tip(session.id)) is not None else 0
            keep = self._keep if self.stop else None
            made = await dump(session, self.halter, self.tool, images, self.tell, keep)
            self.manifest = self.manifest or await self._store(made)
        except BaseException as e:
            if self.manifest is not None and await self._ended():
                return self.manifest
            session.end_of.saved_as = ""
            with contextlib.suppress(OSError):
                await asyncio.to_thread(store.remove, session.id, self.id)
            if isinstance(e, OSError):
                raise Impossible(
                    f"{session.name} could not be saved: {e.strerror or e}",
                    "the session goes on as it was",
                ) from e
            raise
        finally:
            if self.images is not None:
                await asyncio.to_thread(store.scratch.clear, self.images)
        with contextlib.suppress(OSError):  # the next save tries again
            await asyncio.to_thread(store.prune, session.id)
        return self.manifest

    async def _ended(self) -> bool:
        """Whether the processes ended although the checkpointer said nothing any more."""
        await asyncio.wait({self.session.ended}, timeout=ENDED_S)
        return self.session.ending

    async def _keep(self, made: Dumped) -> None:
        """Store the checkpoint while the processes stand still; they end afterwards."""
        session, manifest = self.session, await self._store(made)
        if session.halted and not manifest.halted:  # the halt could not wait for the dump
            raise Refused(f"{session.name} was halted meanwhile", "it stays halted; save it again")
        saved = {one["operator"] for one in manifest.stops}
        if late := {one.operator for one in session.stopped} - saved:
            said = f"{', '.join(sorted(late))} was stopped in {session.name} meanwhile"
            raise Refused(said, "the stop stays in force; save the session again")
        self.manifest, session.end_of.saved_by = manifest, self.by
        session.end_of.saved_as = self.id

    async def _store(self, made: Dumped) -> Manifest:
        """Pack the images and store the manifest; everything is on the disk then."""
        assert self.images is not None
        loop, session, images = asyncio.get_running_loop(), self.session, self.images
        output = session.ring.copy(session.ring.start, made.moment.head) or b""
        offset, notes, blob = made.moment.screen
        parts = {
            forms.OUTPUT: output,
            forms.SCREEN: json.dumps({"offset": offset, "notes": notes}).encode() + b"\n" + blob,
        }
        store = self.checkpoints
        await self.journal.settled()
        draft = replace(
            self._draft(made),
            once=await self.journal.once.travelling(session.id, self.entry, made.moment.at_ns),
            in_flight=await past.in_flight(self.journal, session, self.entry, made.moment),
        )
        stop = threading.Event()

        def done(count: int) -> None:
            loop.call_soon_threadsafe(self.tell, "packed", count)

        def keep() -> Manifest:
            parts[forms.PLAN] = Path(session.host_only_directory, PLAN).read_bytes()
            sources = packing.Sources(images, parts, made.moment.head, NOT_PACKED)
            return store.pack(draft, sources, done, stop)

        storing = loop.run_in_executor(None, keep)
        try:
            manifest = await asyncio.shield(storing)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.gather(storing, return_exceptions=True)
            raise
        self.tell(STORED, manifest.bytes)
        return manifest

    def _draft(self, made: Dumped) -> Manifest:
        session, (outcome, moment) = self.session, made
        large = [f"{path} is too large to be copied" for path in outcome.too_large]
        return Manifest(
            id=self.id,
            session=session.id,
            name=session.name,
            epoch=session.record.epoch,
            at=self.at,
            by=self.by,
            ended=self.stop,
            bytes=0,
            head=moment.head,
            sequence=moment.sequence,
            size=session.size,
            label=session.label,
            row={**asdict(session.record), "screen": [], "ansi": ""},
            files={},
            tree={},
            marks=(),
            machine=machine.facts(self.tool, session.record.boot),
            terminal=moment.terminal,
            origins=moment.origins,
            losses=(*self.found.losses, *large),
            written=tuple(outcome.written),
            frozen_ms=outcome.frozen_ms,
            holdfast=__version__,
            connections=connections.rows(moment.connections),
            halted=moment.halted,
            stops=moment.stops,
            entry=self.entry,
        )
