"""A TCP road between two programs that can be cut, go silent, be slow or long, as networks are.

    open      bytes pass
    cut       every connection is reset, new ones too
    silent    connections stay, but no byte and no notice passes: a sleeping laptop, a router that
              forgot (half-open)

`lag_s` delays each direction, `rate` limits it to so many bytes a second. The road runs in a thread
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Any, Final

from holdfast.transport import accepting

OPEN, CUT, SILENT = "open", "cut", "silent"
PIECE_BYTES: Final = 16 * 1024


class Road:
    def __init__(self, port: int = 0) -> None:
        """`to` is the destination: set it before the first connection."""
        self.mode, self.lag_s, self.rate = OPEN, 0.0, 0.0
        self.to = 0
        self.passed = 0  # bytes
        self._running: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._changed: asyncio.Event
        self._over: asyncio.Event
        self._ready = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20.0)

    def become(self, mode: str) -> None:
        """From now on."""
        done = threading.Event()

        def act() -> None:
            self.mode = mode
            if mode == CUT:
                for task in list(
                    self._running
                ):  # the carrying thread closes: a descriptor under a wait must not be closed
                    task.cancel()
            self._changed.set()
            self._changed = asyncio.Event()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(20.0)

    def close(self) -> None:
        self.become(CUT)
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20.0)

    async def _serve(self) -> None:
        self._loop, self._over, self._changed = (
            asyncio.get_running_loop(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._listener.setblocking(False)
        task = self._loop.create_task(self._accept())
        task.add_done_callback(lambda _: self._listener.close())
        self._ready.set()
        await self._over.wait()
        task.cancel()

    async def _accept(self) -> None:
        while True:
            sock, _ = await accepting.accept(self._listener)
            task = self._loop.create_task(self._carry(sock))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _carry(self, sock: socket.socket) -> None:
        other = socket.socket()
        other.setblocking(False)
        sock.setblocking(False)
        try:
            if self.mode == CUT:
                raise asyncio.CancelledError
            while self.mode == SILENT:
                await self._changed.wait()
            for end in (sock, other):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(other, ("127.0.0.1", self.to))
            try:
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._way(sock, other))
                    ways.create_task(self._way(other, sock))
            except* OSError:
                pass
        except OSError:
            pass
        except asyncio.CancelledError:
            for end in (sock, other):
                with contextlib.suppress(OSError):
                    end.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )  # a reset, not an end
            raise
        finally:
            sock.close()
            other.close()

    async def _way(self, one: socket.socket, other: socket.socket) -> None:
        free = 0.0
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def write() -> None:
            while True:
                at, data = await queue.get()
                if (wait := at - self._loop.time()) > 0:
                    await asyncio.sleep(wait)
                while self.mode == SILENT:
                    await self._changed.wait()
                if not data:
                    with contextlib.suppress(OSError):
                        other.shutdown(socket.SHUT_WR)
                    return
                await self._loop.sock_sendall(other, data)
                self.passed += len(data)

        writing = self._loop.create_task(write())
        try:
            while not writing.done():
                data = await self._loop.sock_recv(one, PIECE_BYTES)
                now = self._loop.time()
                free = max(free, now) + (len(data) / self.rate if self.rate else 0.0)
                await queue.put((free + self.lag_s, data))
                if not data:
                    break
            await writing
        finally:
            writing.cancel()
