"""Has the checkpointer write CRIU's images of a running session into a private directory.

Order. Acts wait in the lane from now on: the images would miss their effects. The checkpointer
freezes the processes and CRIU writes the images. While the processes stand still, the host notes
the end of the output, the screen and the last acts. Then the processes go on, or end if the caller
keeps the images meanwhile (`keep`). After a failure the session is as it was.

The images are plain. `packing.py` seals the images that are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.checkpoint import preflight
from holdfast.core.session.connections import Connection
from holdfast.core.session.lifecycle import STANDING
from holdfast.host.checkpoints import halts, look
from holdfast.host.checkpoints.checkpointer_process import CheckpointerProcess
from holdfast.host.checkpoints.halts import Standing
from holdfast.host.checkpoints.store import PLAN, read_plan
from holdfast.host.connections import held
from holdfast.host.processes import proc_scan
from holdfast.host.processes.halt import Halter, execution
from holdfast.host.runtime.tasks import to_the_end, wait_out
from holdfast.host.session.session import Session
from holdfast.model.errors import Impossible
from holdfast.wire import checkpointing as wire
from holdfast.wire.spawning import MOUNT_LAYERED, MOUNT_MEMORY, MOUNT_WRITE, NET_HOST, Spawn

SILENCE_S: Final = 30.0  # without a report of the checkpointer and without growing images, twice

Tell = Callable[[str, int], None]


class Moment(NamedTuple):
    """Facts that the host noted while the processes stood still."""

    head: int
    sequence: int
    origins: tuple[tuple[int, int, int], ...]
    terminal: tuple[int, ...]
    screen: tuple[int, dict[str, Any], bytes]
    connections: tuple[Connection, ...] = ()
    halted: str = ""  # the kind of halt (core/session/halt.py)
    stops: tuple[dict[str, Any], ...] = ()  # stopped operators, as in the manifest
    at_ns: int = 0


class Dumped(NamedTuple):
    """Images in a directory, and the moment that they are of."""

    outcome: wire.Outcome
    moment: Moment


Keep = Callable[[Dumped], Awaitable[None]]
Still = Callable[[], Awaitable[None]]


def memory_of(plan: Spawn) -> list[str]:
    """Where a session has memory file systems; a plain session has none of its own."""
    if plan.containment is None:
        return []
    mounts = plan.containment.mounts
    return ["/dev/shm", *(os.fsdecode(m.target) for m in mounts if m.kind == MOUNT_MEMORY)]


def plan_of(session: Session) -> Spawn | None:
    """How the session was made; None if that is not known."""
    with contextlib.suppress(OSError, Impossible):
        return read_plan(Path(session.host_only_directory, PLAN).read_bytes())
    return None


async def dump(
    session: Session,
    halter: Halter,
    criu: wire.Criu,
    images: Path,
    tell: Tell,
    keep: Keep | None = None,
    still: Still | None = None,
) -> Dumped:
    """Write images of the session. With `keep`, its processes end once `keep` has returned.

    `still` copies files while the processes stand still, so no file is copied beside the images.
    However this ends, the session stands still no longer. The caller can cancel it until the
    processes end.
    """
    dumping = _Dumping(session, halter, criu, images, tell, keep, still)
    return await to_the_end(dumping.run(), lambda: not dumping.too_late)


class _Dumping:
    def __init__(
        self,
        session: Session,
        halter: Halter,
        criu: wire.Criu,
        images: Path,
        tell: Tell,
        keep: Keep | None,
        still: Still | None,
    ) -> None:
        self.session, self.criu, self.images = session, criu, images
        self.halter, self.where = halter, execution(session)
        self.halted, self.stood = session.halted, session.state in STANDING
        self.how = ""
        self.copying: asyncio.Future[None] | None = None
        self.noting: asyncio.Future[Moment] | None = None
        self.tell, self.keep, self.still = tell, keep, still
        self.moment: Moment | None = None
        self.too_late = False  # the processes end

    async def run(self) -> Dumped:
        # Its interpreter starts meanwhile.
        coming = asyncio.ensure_future(asyncio.to_thread(CheckpointerProcess))
        try:
            return await self._with(await wait_out(coming))
        finally:
            if coming.exception() is None:
                await coming.result().end()

    async def _with(self, process: CheckpointerProcess) -> Dumped:
        session = self.session
        with session.lane.held():
            await session.view.exact()  # restores the emulator, so that the freeze is shorter
            await session.terminal()  # the keeper has taken every act that was sent
            outcome = await self._checkpointer(process)
            if outcome.problem:
                raise Impossible(
                    f"{session.name} could not be saved: {preflight.explain(outcome.problem)}",
                    "the session goes on as it was",
                    criu=outcome.problem[-1000:],
                )
            assert self.moment is not None
            return Dumped(outcome, self.moment)

    async def _checkpointer(self, process: CheckpointerProcess) -> wire.Outcome:
        """Give the checkpointer's process its job and answer its packets."""
        loop = asyncio.get_running_loop()
        stands = await self.halter.in_thread(halts.standing, self.halter, self.where)
        self.how = stands.how if self.halted else ""
        init, namespaces = await asyncio.to_thread(look.held, self.session.keeper_pid)
        images = os.open(self.images, os.O_RDONLY | os.O_DIRECTORY)
        try:
            job = await asyncio.to_thread(self._job, init)
            self.halter.dumping[self.session.id] = loop.create_future()
            await self.halter.in_thread(halts.release, self.where, stands)
            process.begin(job, self.images, [images, *namespaces, *stands.freezers])
            return await self._answer(process, stands)
        finally:
            try:
                await process.end(lambda: halts.freeze(stands))
                with contextlib.suppress(OSError):  # a killed checkpointer left it stopped
                    if init:
                        os.kill(init, signal.SIGCONT)
            finally:
                await self._let_go(stands)
            begun = (one for one in (self.noting, self.copying) if one is not None)
            await asyncio.gather(*begun, return_exceptions=True)
            for fd in (images, *namespaces):
                os.close(fd)
            stands.close()

    async def _answer(self, process: CheckpointerProcess, stands: Standing) -> wire.Outcome:
        while True:
            told = await self._told(process)
            if "done" in told:
                return wire.read_outcome(told["done"])
            if told.get("saved"):
                go_on = await self._saved(told)
                self.too_late = self.keep is not None
                await process.answer(go_on)
            elif told["step"] == "frozen":  # beside CRIU, so that the freeze is shorter
                self.noting = asyncio.ensure_future(self._noted())
                if self.still is not None:
                    self.copying = asyncio.ensure_future(self.still())
            else:
                if told["step"] == "resumed":
                    await self._let_go(stands)
                self.tell(str(told["step"]), int(told["bytes"]))

    async def _told(self, process: CheckpointerProcess) -> dict[str, Any]:
        """The next report. Impossible if CRIU neither reports nor writes for SILENCE_S."""
        written = -1
        while (told := await process.told(SILENCE_S)) is None:
            before, written = written, await asyncio.to_thread(process.written)
            if written == before:
                raise Impossible(
                    f"CRIU did nothing for {SILENCE_S:.0f} s and was stopped",
                    "the session goes on as it was; try again",
                )
        return told

    async def _let_go(self, stands: Standing) -> None:
        """CRIU has let go of the processes: hold them again if they stood, and allow halts."""
        if (dumping := self.halter.dumping.pop(self.session.id, None)) is not None:
            try:
                await self.halter.in_thread(halts.hold, self.where, stands)
            finally:
                dumping.set_result(None)
            if self.stood and self.session.state not in STANDING:  # the resume could not wait
                await self.halter.resume(self.where)

    def _job(self, init: int) -> wire.Dump:
        plan = plan_of(self.session)
        assert plan is not None
        written = list[str]()
        for mount in plan.containment.mounts if plan.containment is not None else ():
            if mount.kind in (MOUNT_WRITE, MOUNT_LAYERED):
                written.append(os.fsdecode(mount.target))
        return wire.Dump(
            self.criu,
            init,
            self.keep is not None,
            tuple(written),
            tuple(memory_of(plan)),
            preflight.COPIED_MAX if self.still is None else preflight.NOTHING,
            0 if init else proc_scan.hf_root(self.session.keeper_pid),
        )

    async def _saved(self, told: dict[str, Any]) -> bool:
        """The processes stand still. With `keep`, they end after this answer."""
        if self.still is not None:
            await (self.copying or self.still())
        self.moment = await (self.noting or self._noted())
        if self.keep is not None:
            del told["saved"]
            await self.keep(Dumped(wire.read_outcome(told), self.moment))
        return True

    async def _noted(self) -> Moment:
        session, at_ns = self.session, time.time_ns()
        await session.terminal()  # the keeper has read the last output
        state = await session.marks_seen()
        stops = await self.halter.in_thread(halts.stops, self.halter, session)
        connections = session.looked(self._connections)
        screen, found = await asyncio.gather(session.view.exact(), connections)
        return Moment(
            session.ring.head,
            session.ring.accepted,
            session.lane.origins(),
            (state.iflag, state.oflag, state.cflag, state.lflag),
            screen,
            found,
            self.how,
            stops,
            at_ns,
        )

    def _connections(self) -> tuple[Connection, ...]:
        session, plan = self.session, plan_of(self.session)
        inside = plan.containment if plan is not None else None
        return held.of_session(
            session.record.root_pid,
            [one.pid for one in proc_scan.of_session(session.keeper_pid)],
            inside is not None and inside.net != NET_HOST,
            session.commands.lineage.of,
            session.ref,
        )
