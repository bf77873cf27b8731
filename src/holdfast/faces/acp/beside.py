"""The agent's program as a child of this process, with this process's account."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Final

from holdfast.faces.acp.peer import LEAVE_S, LINE_BYTES_MAX, Peer
from holdfast.model.errors import Impossible


class Beside:
    """The agent, in a process group of its own."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdin is not None and child.stdout is not None
        self._child: Final = child
        self.peer: Final = Peer("the agent", child.stdout, child.stdin)

    @classmethod
    async def started(cls, command: Sequence[str]) -> Beside:
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                process_group=0,
            )
        except OSError as e:
            raise Impossible(
                f"the agent does not start: {e}", "name the agent's program after --"
            ) from e
        return cls(child)

    async def own_end(self) -> int:
        """The exit code of an agent that has closed its output."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                code = await self._child.wait()
                return code if code >= 0 else 128 - code
        return 0

    async def end(self) -> None:
        """Ends the agent and its process group: closed input and TERM, then KILL."""
        self.peer.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._child.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._child.wait()
