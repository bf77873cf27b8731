"""Saves a session: preflight, the checkpointer's process, and the host's own part.

Order. Acts wait in the lane from now on: the image would miss their effects. The checkpointer
freezes the processes and CRIU writes the images. While the processes stand still, the host notes
the end of the output, the screen and the last acts. Then the processes go on. With `stop`, the
processes end when the whole checkpoint is on the disk; after an earlier failure they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast import __version__
from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import preflight
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.checkpoint.preflight import Facts, Preflight
from holdfast.home import cores, programs
from holdfast.host.checkpoints import look
from holdfast.host.checkpoints.store import PLAN, Checkpoints, read_plan
from holdfast.host.runtime import criu
from holdfast.host.session.session import Session
from holdfast.model.errors import Impossible, Refused
from holdfast.wire import checkpointing as wire
from holdfast.wire.spawning import MOUNT_MEMORY, MOUNT_WRITE, NET_HOST, Spawn

COPIED_MAX: Final = 256 << 20  # of files open for writing, which are copied while all stand still
SILENCE_S: Final = 600.0  # between two reports of the checkpointer
_IMAGES = f"{forms.IMAGES}/"

Tell = Callable[[str, int], None]


class Moment(NamedTuple):
    """Facts that the host noted while the processes stood still."""

    head: int
    sequence: int
    origins: tuple[tuple[int, int, int], ...]
    terminal: tuple[int, ...]
    screen: tuple[int, dict[str, Any], bytes]


async def examine(checkpoints: Checkpoints, session: Session) -> Preflight:
    """Run the preflight; nothing stops."""
    terminal = await session.terminal()

    def facts() -> Facts:
        try:
            tool = ""
            criu.find(checkpoints.criu)
        except Impossible as e:
            tool = f"{e.message}: {e.recover}"
        found = look.processes(session.keeper_pid, session.record.root_pid)
        plan = _plan(session)
        return Facts(
            session.layout.get("layout", ""),
            session.state,
            plan is not None,
            found,
            look.connections(session.record.root_pid, found),
            plan is not None and plan.containment is not None and plan.containment.net != NET_HOST,
            look.shared_memory(found),
            terminal.queued_input,
            checkpoints.free(),
            tool,
        )

    return preflight.judge(await session.looked(facts))


def _plan(session: Session) -> Spawn | None:
    with contextlib.suppress(OSError, Impossible):
        return read_plan(Path(session.host_only_directory, PLAN).read_bytes())
    return None


def impossible(session: Session, found: Preflight) -> Impossible:
    return Impossible(
        f"{session.name} cannot be saved: {'; '.join(found.blockers)}",
        "the session goes on as it was; docs/reference/recovery.md says what can be saved",
        blockers=list(found.blockers),
    )


async def save(
    checkpoints: Checkpoints, session: Session, by: str, stop: bool, tell: Tell
) -> Manifest:
    """Save a session; with `stop`, its processes end. A failure leaves the session as it was."""
    if session.id in checkpoints.busy:
        raise Refused(f"{session.name} is being saved or restored", "wait until that is over")
    checkpoints.busy.add(session.id)
    try:
        found = await examine(checkpoints, session)
        if not found.possible:
            raise impossible(session, found)
        tell("examined", found.bytes)
        return await _Saving(checkpoints, session, by, stop, tell, found).run()
    finally:
        checkpoints.busy.discard(session.id)


class _Saving:
    def __init__(
        self,
        checkpoints: Checkpoints,
        session: Session,
        by: str,
        stop: bool,
        tell: Tell,
        found: Preflight,
    ) -> None:
        self.checkpoints, self.session, self.by, self.stop = checkpoints, session, by, stop
        self.tell, self.found = tell, found
        self.at = time.time()
        self.id, self.place = checkpoints.begin(session.id)
        self.moment: Moment | None = None
        self.manifest: Manifest | None = None

    async def run(self) -> Manifest:
        session = self.session
        session.lane.hold()
        try:
            await session.view.exact()  # restores the emulator, so that the freeze is shorter
            await session.terminal()  # the keeper has taken every act that was sent
            outcome = await self._checkpointer()
            if outcome.problem:
                raise Impossible(
                    f"{session.name} could not be saved: {preflight.explain(outcome.problem)}",
                    "the session goes on as it was",
                    criu=outcome.problem[-1000:],
                )
            return self.manifest or await self._commit(outcome)
        except BaseException:
            session.end_of.saved_as = ""
            await asyncio.to_thread(self._remove)
            raise
        finally:
            session.lane.release()

    def _remove(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        if self.manifest is not None:  # the host had kept it, and CRIU failed afterwards
            self.checkpoints.remove(self.session.id, self.id)

    async def _checkpointer(self) -> wire.Outcome:
        """Run the checkpointer's process and answer its packets."""
        loop = asyncio.get_running_loop()
        init, namespaces = await asyncio.to_thread(look.held, self.session.keeper_pid)
        images = os.open(self.place / forms.IMAGES, os.O_RDONLY | os.O_DIRECTORY)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = None
        try:
            with cores.original_limit():
                process = subprocess.Popen(
                    programs.module("holdfast.checkpointer", f"{theirs.fileno()}"),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                )
            theirs.close()
            job = await asyncio.to_thread(self._job, init)
            socket.send_fds(ours, [wire.pack_dump(job)], [images, *namespaces])
            ours.setblocking(False)
            while True:
                async with asyncio.timeout(SILENCE_S):
                    packet = await loop.sock_recv(ours, wire.PACKET_BYTES)
                if not packet:
                    raise Impossible("the checkpointer died", "try again; see host.log")
                told = wire.read(packet)
                if "done" in told:
                    return wire.read_outcome(told["done"])
                if told.get("saved"):
                    await loop.sock_sendall(ours, wire.pack({"go_on": await self._saved(told)}))
                else:
                    self.tell(str(told["step"]), int(told["bytes"]))
        finally:
            for fd in (images, *namespaces):
                os.close(fd)
            ours.close()
            theirs.close()
            if process is not None:
                await asyncio.to_thread(process.wait)
                with contextlib.suppress(OSError):  # a checkpointer that was killed left it stopped
                    os.kill(init, signal.SIGCONT)

    def _job(self, init: int) -> wire.Dump:
        plan = _plan(self.session)
        assert plan is not None and plan.containment is not None
        places: dict[int, list[str]] = {MOUNT_WRITE: [], MOUNT_MEMORY: ["/dev/shm"]}
        for mount in plan.containment.mounts:
            if mount.kind in places:
                places[mount.kind].append(os.fsdecode(mount.target))
        return wire.Dump(
            criu.find(self.checkpoints.criu),
            init,
            self.stop,
            tuple(places[MOUNT_WRITE]),
            tuple(places[MOUNT_MEMORY]),
            COPIED_MAX,
        )

    async def _saved(self, told: dict[str, Any]) -> bool:
        """The processes stand still. With `stop`, the processes end after this answer."""
        self.moment = await self._noted()
        if self.stop:
            del told["saved"]
            self.manifest = await self._commit(wire.read_outcome(told))
            self.session.end_of.saved_as = self.id
        return True

    async def _noted(self) -> Moment:
        session = self.session
        await session.terminal()  # the keeper has read the last output
        state = await session.marks_seen()
        screen = await session.view.exact()
        return Moment(
            session.ring.head,
            session.ring.accepted,
            session.lane.origins(),
            (state.iflag, state.oflag, state.cflag, state.lflag),
            screen,
        )

    async def _commit(self, outcome: wire.Outcome) -> Manifest:
        assert self.moment is not None
        session, moment = self.session, self.moment
        output = session.ring.copy(session.ring.start, moment.head) or b""
        return await asyncio.to_thread(self._write, outcome, moment, output)

    def _write(self, outcome: wire.Outcome, moment: Moment, output: bytes) -> Manifest:
        session = self.session
        offset, notes, blob = moment.screen
        parts = {
            forms.OUTPUT: output,
            forms.SCREEN: json.dumps({"offset": offset, "notes": notes}).encode() + b"\n" + blob,
            forms.PLAN: Path(session.host_only_directory, PLAN).read_bytes(),
        }
        files = {_IMAGES + name: one for name, one in outcome.files.items()} | {
            name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in parts.items()
        }
        large = [f"{path} is too large to be copied" for path in outcome.too_large]
        manifest = Manifest(
            self.id,
            session.id,
            session.name,
            session.record.epoch,
            self.at,
            self.by,
            self.stop,
            sum(size for size, _ in files.values()),
            moment.head,
            moment.sequence,
            session.size,
            session.label,
            {**asdict(session.record), "screen": [], "ansi": ""},
            files,
            {
                "boot": session.record.boot,
                "kernel": os.uname().release,
                "processor": os.uname().machine,
                "criu": criu.find(self.checkpoints.criu).version,
            },
            moment.terminal,
            moment.origins,
            (*self.found.losses, *large),
            tuple(outcome.written),
            outcome.frozen_ms,
            outcome.took_ms,
            __version__,
        )
        self.checkpoints.commit(self.place, manifest, parts)
        return manifest
