"""The two directions of a request's bytes, each within a window.

Downstream, the client gives credit: the host begins a DATA frame only while the request has credit
left. So a client that reads one answer slowly still gets all other answers on the connection, and
unsent bytes stay at their source. A client that announced no credit is limited by its socket only.
Upstream, the host gives the credit (event `stdin`), and the client sends STDIN frames within it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.host.runtime.connection import Connection
from holdfast.model.errors import PeerFault
from holdfast.model.limits import UPSTREAM_WINDOW_BYTES
from holdfast.wire import frames


class Downstream:
    """The DATA frames of one request. `wake` is called when there may be room again."""

    def __init__(
        self, conn: Connection, number: int, wake: Callable[[], None] | None = None
    ) -> None:
        self._conn, self._number = conn, number
        self._sent, self._until = 0, conn.window
        self._woken = asyncio.Event()
        self.wake = wake or self._woken.set
        conn.downstreams[number] = self

    @property
    def open(self) -> bool:
        """Whether a frame may begin now."""
        return not self._conn.blocked and (self._until is None or self._sent < self._until)

    async def room(self) -> None:
        """Returns when a frame may begin; the end of the connection cancels the request."""
        while not self.open:
            self._woken.clear()
            await self._woken.wait()

    def send(self, start: int, end: int, data: bytes | memoryview) -> None:
        """Sends a frame; only when open."""
        self._sent += len(data)
        self._conn.send_pair(frames.data_header(self._number, start, end, len(data)), data)

    def allow(self, until: int) -> None:
        """The client takes this many bytes of the request in total."""
        if self._until is not None and until > self._until:
            self._until = until
            self.wake()

    def close(self) -> None:
        self._conn.downstreams.pop(self._number, None)


class Upstream:
    """The STDIN frames of one request. `take` is called with the bytes; none: the end."""

    def __init__(
        self,
        conn: Connection,
        number: int,
        take: Callable[[bytes], None],
        window: int = UPSTREAM_WINDOW_BYTES,
    ) -> None:
        self._conn, self._number, self._on_bytes, self._window = conn, number, take, window
        self._received = self._allowed = 0
        self.over = False  # the client has sent the end
        conn.inputs[number] = self._take

    def used(self, count: int) -> None:
        """So many bytes have left the host: the client may send a window beyond them."""
        until = count + self._window
        if until - self._allowed >= self._window // 2 and not self.over:
            self._allowed = until
            self._conn.event("stdin", request=self._number, until=until)

    def complete(self) -> None:
        """The receiver can read everything that the client has sent."""
        self._conn.event("stdin", request=self._number, until=self._received, done=True)

    def _take(self, start: int, data: bytes) -> None:
        if start != self._received or start + len(data) > self._allowed or self.over:
            raise PeerFault(f"input at {start}, where {self._received} to {self._allowed} belong")
        self._received += len(data)
        self.over = not data
        self._on_bytes(data)

    def close(self) -> None:
        self._conn.inputs.pop(self._number, None)
