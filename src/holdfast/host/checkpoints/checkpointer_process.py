"""The process of one dump, the checkpointer, which always ends within a time limit.

It leads a process group with CRIU. When its socket closes, it has CRIU let go of the session. A
group that hangs is killed: the kernel then lets go of the processes that CRIU held.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from holdfast.home import programs
from holdfast.host.runtime.worker_programs import WorkerProgram
from holdfast.model.errors import Impossible
from holdfast.wire import checkpointing as wire

LET_GO_S: Final = 10.0  # for CRIU to let go of the processes
KILLED_S: Final = 5.0  # for a killed group to be gone
_LOOK_S: Final = 0.01


class CheckpointerProcess:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = WorkerProgram(programs.lean("checkpointer"), (theirs.fileno(),))
        self._ours.setblocking(False)

    def begin(self, job: wire.Dump, descriptors: list[int]) -> None:
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
        return wire.read(packet)

    async def answer(self, go_on: bool) -> None:
        await asyncio.get_running_loop().sock_sendall(self._ours, wire.pack({"go_on": go_on}))

    async def end(self, before_kill: Callable[[], None] = lambda: None) -> None:
        """Wait until it has let go of the session, or kill it with CRIU; once."""
        if self._ours.fileno() == -1:
            return
        self._ours.close()
        await asyncio.to_thread(self._end, before_kill)

    def _end(self, before_kill: Callable[[], None]) -> None:
        group = self._process.pid
        if not self._process.exits(LET_GO_S):
            before_kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)  # CRIU too, if only its parent has died
        self._process.wait()
        until = time.monotonic() + KILLED_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < until:
                os.killpg(group, 0)
                time.sleep(_LOOK_S)
