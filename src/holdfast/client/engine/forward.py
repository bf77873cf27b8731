"""A listening port of a session on an address of this machine.

Each local connection is a separate request, with credit in both directions. A connection that
breaks with the host or the relay ends for both programs. The forward is opened again as soon as the
host answers, and a new connection waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.lane import Fields
from holdfast.client.engine.parts import Data, Event, Reply
from holdfast.client.engine.wire import Exchange
from holdfast.client.gone import HostGone
from holdfast.model.errors import (
    HoldfastError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Usage,
)
from holdfast.model.limits import FORWARD_CONNECTIONS_MAX, FORWARD_WAIT_S, LISTEN_BACKLOG

READ_BYTES: Final = 128 * 1024
ACCEPT_PAUSE_S: Final = 0.2  # after an accept that failed because no descriptor was free


def listener(listen: str | None, port: int, expose: bool) -> socket.socket:
    """A listening socket on `listen` (ADDRESS, ADDRESS:PORT or PORT).

    Without a port it is `port`, or a free port if that is in use. Every program and account of the
    machine can connect; `expose` allows an address that other machines can reach too.
    """
    host, chosen = _parsed(listen or "")
    where = ipaddress.ip_address(host)
    if not where.is_loopback and not expose:
        raise Usage(
            f"{host} is no loopback address: other machines could connect without any right",
            "listen on 127.0.0.1, or say that you mean it (`--expose`, expose=True)",
        )
    family = socket.AF_INET6 if where.version == 6 else socket.AF_INET
    last: OSError | None = None
    for number in (port, 0) if chosen is None else (chosen,):
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, number))
            made.listen(LISTEN_BACKLOG)
            made.setblocking(False)
            return made
        except OSError as e:
            made.close()
            last = e
    raise Unavailable(
        f"cannot listen on {host}: {last.strerror if last else ''}", "choose another address"
    )


def _parsed(text: str) -> tuple[str, int | None]:
    host, colon, number = text.rpartition(":")
    if text.isdigit():
        host, number = "", text
    elif not colon or text.endswith("]") or (text.count(":") > 1 and not text.startswith("[")):
        host, number = text, ""
    host = host.strip("[]")
    try:
        ipaddress.ip_address(host or "127.0.0.1")
        if number and not 0 <= int(number) < 65536:
            raise ValueError
    except ValueError:
        raise Usage(
            f"{text[:60]!a} is no address to listen on", "for example 127.0.0.1:8080, or 8080"
        ) from None
    return host or "127.0.0.1", int(number) if number else None


class Forwarding:
    """An open forward. `opened` waits for the host; `run` lasts as long as the forward.

    `on_held`: called when the forward waits for an approval. `more`: further fields.
    """

    def __init__(
        self,
        engine: Engine,
        session: str,
        port: int,
        at: socket.socket,
        on_held: Callable[[Mapping[str, object]], object] = lambda event: None,
        **more: object,
    ) -> None:
        self._engine, self._session, self._listener = engine, session, at
        self._on_held = on_held
        self._fields: Fields = {"session": session, "port": port, "hold": None, **more}
        self._id = ""  # of the forward that the host has open
        self._open = asyncio.Event()
        self._room = asyncio.Semaphore(FORWARD_CONNECTIONS_MAX)
        self._carrying: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def opened(self) -> None:
        await self._open.wait()

    async def run(self) -> None:
        """Returns when the session has ended; raises if the right has ended or is missing."""
        accepting = asyncio.create_task(self._accept())
        try:
            asked = self._engine.stream("forward", patient=True, **self._fields)
            async with contextlib.aclosing(asked) as parts:
                async for part in parts:
                    if isinstance(part, Event) and part.name == "began":
                        self._id = str(part.body["forward"])
                        self._open.set()
                    elif isinstance(part, Event) and part.name == "held":
                        self._on_held(part.body)
        except OutcomeUnknown as e:
            if self._id and isinstance(e.__cause__, HoldfastError):
                raise e.__cause__ from None  # the forward was open: this is why it ended
            raise
        finally:
            accepting.cancel()
            self._listener.close()
            for task in self._carrying:
                task.cancel()
            await asyncio.gather(accepting, *self._carrying, return_exceptions=True)

    async def _accept(self) -> None:
        """Accepts as many connections as may be open; the kernel holds a few more."""
        await self.opened()
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError:
                self._room.release()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self.connections += 1
            task = asyncio.create_task(self._connection(sock))
            self._carrying.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._carrying.discard(task)
        self._room.release()

    async def _connection(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=sock, limit=READ_BYTES)
        ended, unsent = False, b""

        async def feed(exchange: Exchange) -> None:
            nonlocal unsent
            while unsent or (unsent := await reader.read(READ_BYTES)):
                if not await exchange.send(unsent):
                    return
                unsent = b""
            await exchange.send(b"")

        try:
            async with asyncio.timeout(FORWARD_WAIT_S) as patience:
                while not ended:
                    used = self._id
                    try:
                        asked = self._engine.stream(
                            "forward.connect", feed=feed, session=self._session, forward=used
                        )
                        async with contextlib.aclosing(asked) as parts:
                            async for part in parts:
                                if isinstance(part, Event) and part.name == "began":
                                    patience.reschedule(None)
                                elif isinstance(part, Data) and part.data:
                                    writer.write(part.data)
                                    await writer.drain()
                                elif isinstance(part, Data):
                                    writer.write_eof()
                                elif isinstance(part, Reply):
                                    ended = True
                    except (HostGone, OutcomeUnknown, NotFound):
                        if patience.when() is None:  # the connection stood
                            raise
                        await self._again(used)
        except (HoldfastError, OSError, TimeoutError):
            pass  # the program learns this from the connection
        finally:
            if ended:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            else:
                writer.transport.abort()

    async def _again(self, used: str) -> None:
        """Waits until the host has opened the forward again, under a new id."""
        if self._id == used:
            self._open.clear()
            await self.opened()
