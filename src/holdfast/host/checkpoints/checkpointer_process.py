"""The process of one dump, the checkpointer, which always ends within a time limit.

When its socket closes, it has CRIU let go of the session. CRIU learns so once it has written the
images, so a CRIU that still writes is left alone: one that is killed while it puts code into the
processes harms them. A CRIU that hangs is killed. The kernel then lets go of what CRIU held.

The host holds each process by a pidfd: when the checkpointer has died, the number of its process
group may be that of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.home import programs
from holdfast.host.processes import proc_scan
from holdfast.host.runtime.worker_programs import WorkerProgram
from holdfast.model.errors import Impossible
from holdfast.wire import checkpointing as wire

LET_GO_S: Final = 10.0  # for CRIU to let go of the processes, once the images do not grow any more
KILLED_S: Final = 5.0  # for killed processes to be gone
BEGUN: Final = "begun"  # the step that is told before CRIU touches the session


class CheckpointerProcess:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = WorkerProgram(programs.lean("checkpointer"), (theirs.fileno(),))
        self._ours.setblocking(False)
        self._images: Path | None = None
        self._started = list[int]()  # pidfds of CRIU and of other processes that it has started

    def begin(self, job: wire.Dump, images: Path, descriptors: list[int]) -> None:
        self._images = images
        socket.send_fds(self._ours, [wire.pack_dump(job)], descriptors)

    async def told(self, most_s: float) -> dict[str, Any] | None:
        """The next report; None after a silence. Impossible if it died."""
        packet = b""
        try:
            with contextlib.suppress(ConnectionError):  # it was killed with an answer unread
                async with asyncio.timeout(most_s):
                    packet = await asyncio.get_running_loop().sock_recv(
                        self._ours, wire.PACKET_BYTES
                    )
        except TimeoutError:
            return None
        if not packet:
            raise Impossible("the checkpointer died", "try again; see host.log")
        told = wire.read(packet)
        if told.get("step") == BEGUN:
            await asyncio.to_thread(self._hold)
        return told

    def _hold(self) -> None:
        for one in proc_scan.descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                self._started.append(os.pidfd_open(one.pid))

    def written(self) -> int:
        """The bytes of the images so far."""
        found = 0
        for one in self._images.iterdir() if self._images is not None else ():
            with contextlib.suppress(FileNotFoundError):
                found += one.stat().st_size
        return found

    async def answer(self, go_on: bool) -> None:
        await asyncio.get_running_loop().sock_sendall(self._ours, wire.pack({"go_on": go_on}))

    async def end(self, before_kill: Callable[[], None] = lambda: None) -> None:
        """Wait until it has let go of the session, or kill it with CRIU; once."""
        if self._ours.fileno() == -1:
            return
        self._ours.close()
        await asyncio.to_thread(self._end, before_kill)

    def _end(self, before_kill: Callable[[], None]) -> None:
        self._hold()
        written = self.written()
        while not self._exit(LET_GO_S):
            before, written = written, self.written()
            if written == before:
                before_kill()
                self._kill()
                break
        self._process.wait()
        self._exit(KILLED_S)
        for fd in self._started:
            os.close(fd)

    def _exit(self, most_s: float) -> bool:
        """Whether it exits in time, with all that it has started."""
        until = time.monotonic() + most_s
        if not self._process.exits(most_s):
            return False
        for fd in self._started:
            left = select.poll()
            left.register(fd, select.POLLIN)
            if not left.poll(max(until - time.monotonic(), 0) * 1000):
                return False
        return True

    def _kill(self) -> None:
        self._process.kill()
        for fd in self._started:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
