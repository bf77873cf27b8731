"""One side of the proxy: lines of JSON-RPC from it and to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Final

from holdfast.model.errors import PeerFault

LINE_BYTES_MAX: Final = 32 << 20  # a message; editors send pictures and whole files
LEAVE_S: Final = 3.0  # for the agent to end after TERM


class Peer:
    """One side of the proxy: lines from it and to it."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name, self._reader, self._writer = name, reader, writer
        self._lock = asyncio.Lock()
        writer.transport.set_write_buffer_limits(high=0)  # a line that was sent was taken

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of the peer until it closes its end."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                raise PeerFault(
                    f"{self.name} sent a line of more than {LINE_BYTES_MAX} bytes",
                    f"see the log of {self.name}; the session goes on",
                ) from None
            if not line:
                return
            if line.strip():
                yield line

    async def send(self, line: bytes) -> None:
        async with self._lock:
            self._writer.write(line)
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


def say(text: str) -> None:
    print(f"holdfast acp: {text}", file=sys.stderr, flush=True)
