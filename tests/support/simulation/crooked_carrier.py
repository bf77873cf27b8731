"""A relay that can misbehave in every way open to a relay.

It can look, drop, delay, repeat, reorder, cut, change, keep and resend, mix up streams, and lie
about which peers are there. The relay runs in a thread of its own. `meddle` controls it: called
with each frame on its way, `meddle` returns the frames that go on instead. All passing frames are
kept in `seen`, as a relay could keep them. The relay checks nothing and admits every peer: a
promise that holds against it does not hold because of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from holdfast.core.sealed import route
from holdfast.model.limits import OUTER_BYTES, STREAMS_MAX
from holdfast.wire import outer

UP, DOWN = "up", "down"  # from the client to the host, and back
Meddle = Callable[[str, int, outer.Frame], "list[outer.Frame | float]"]
"""Direction, stream on the host's side, frame -> the frames to send instead; a float is a pause."""


def honest(direction: str, stream: int, frame: outer.Frame) -> list[outer.Frame | float]:
    return [frame]


class Crooked:
    def __init__(self) -> None:
        self.meddle: Meddle = honest
        self.seen: list[tuple[str, int, outer.Frame]] = []
        self.registered = threading.Event()
        self.url = ""
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hosts: dict[bytes, ServerConnection] = {}
        self._streams: dict[
            int, tuple[ServerConnection, int, bytes]
        ] = {}  # on the host's side: owner, number on the owner's side, destination
        self._by_client: dict[tuple[ServerConnection, int], int] = {}
        self._next = 0
        self._own: dict[
            int, list[outer.Frame]
        ] = {}  # streams of the relay's own: their received bytes
        self._streams_to: dict[int, bytes] = {}
        self._came = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20.0)

    # ------------------------------------------------------------ from the test's thread

    def do(self, act: Callable[[], Any]) -> None:
        """Run a function in the thread of the relay."""
        assert self._loop is not None
        done = threading.Event()

        def go() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(go)
        assert done.wait(20.0)

    def cut_all(self) -> None:
        """Every connection is gone, without a word."""

        def act() -> None:
            for ws in {*self._hosts.values(), *(ws for ws, _, _ in self._streams.values())}:
                ws.transport.abort()

        self.registered.clear()
        self.do(act)

    def to_client(self, stream: int, frame: outer.Frame) -> None:
        """Send an unprompted frame."""
        ws, theirs, _ = self._streams[stream]
        self.do(lambda: asyncio.ensure_future(ws.send(outer.encode(_renumbered(frame, theirs)))))

    def to_host(self, stream: int, frame: outer.Frame) -> None:
        host = self._hosts[
            self._streams[stream][2] if stream in self._streams else self._streams_to[stream]
        ]
        self.do(lambda: asyncio.ensure_future(host.send(outer.encode(_renumbered(frame, stream)))))

    def open(self, to: bytes) -> int:
        """Open a stream to that host with the relay itself at this end."""
        self._next += 1
        number, host = self._next, self._hosts[to]
        self._own[number] = []
        self.do(lambda: asyncio.ensure_future(host.send(outer.encode(outer.Incoming(number)))))
        self._streams_to[number] = to
        return number

    def wait_for(self, direction: str, stream: int, kind: type[Any]) -> outer.Frame:
        """The next frame of that kind from the host on a stream of the relay's own."""
        assert direction == DOWN
        with self._came:
            assert self._came.wait_for(
                lambda: any(isinstance(f, kind) for f in self._own[stream]), 20.0
            ), f"no {kind.__name__}"
            found: outer.Frame = next(f for f in self._own[stream] if isinstance(f, kind))
            return found

    @property
    def streams(self) -> list[int]:
        return list(self._streams)

    def close(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20.0)

    # ------------------------------------------------------------ the thread of the relay

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with serve(
            self._one,
            "127.0.0.1",
            0,
            subprotocols=["holdfast.1"],  # type: ignore[list-item]
            compression=None,
            max_size=OUTER_BYTES,
            ping_interval=None,
            close_timeout=0.5,
        ) as server:
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._over.wait()

    async def _one(self, ws: ServerConnection) -> None:
        try:
            hello = outer.decode(await ws.recv(decode=False))
            assert isinstance(hello, outer.Hello)
            await ws.send(
                outer.encode(
                    outer.Welcome(
                        outer.VERSION, os.urandom(32), OUTER_BYTES, STREAMS_MAX, 30, "crooked"
                    )
                )
            )
            if hello.role == outer.HOST:
                await self._host(ws)
            else:
                await self._client(ws)
        except Exception:  # the peer is gone, or speaks nonsense
            pass

    async def _host(self, ws: ServerConnection) -> None:
        register = outer.decode(await ws.recv(decode=False))
        assert isinstance(register, outer.Register)
        at = route.route(register.route_key)
        self._hosts[at] = ws
        await ws.send(outer.encode(outer.Registered(at)))
        self.registered.set()
        try:
            await self._from_host(ws)
        finally:
            if self._hosts.get(at) is ws:
                del self._hosts[at]
            for client, theirs in [
                (client, theirs) for client, theirs, to in self._streams.values() if to == at
            ]:
                with contextlib.suppress(ConnectionClosed):
                    await client.send(outer.encode(outer.Close(theirs, outer.AWAY)))

    async def _from_host(self, ws: ServerConnection) -> None:
        while True:
            frame = outer.decode(await ws.recv(decode=False), outer.FROM_HOST)
            if isinstance(frame, outer.Ping):
                await ws.send(outer.encode(outer.Pong(frame.mark)))
            elif (stream := getattr(frame, "stream", 0)) in self._own:
                with self._came:
                    self._own[stream].append(frame)
                    self._came.notify_all()
            elif stream in self._streams:
                client, theirs, _ = self._streams[stream]
                with contextlib.suppress(ConnectionClosed):
                    await self._pass_on(DOWN, stream, frame, client, theirs)

    async def _client(self, ws: ServerConnection) -> None:
        try:
            while True:
                frame = outer.decode(await ws.recv(decode=False), outer.FROM_CLIENT)
                if isinstance(frame, outer.Ping):
                    await ws.send(outer.encode(outer.Pong(frame.mark)))
                elif isinstance(frame, outer.Open):
                    self._next += 1
                    if (host := self._hosts.get(frame.route)) is None:
                        await ws.send(outer.encode(outer.Close(frame.stream, outer.OFFLINE)))
                        continue
                    self._streams[self._next], self._by_client[ws, frame.stream] = (
                        (ws, frame.stream, frame.route),
                        self._next,
                    )
                    await self._pass_on(
                        UP, self._next, outer.Incoming(self._next), host, self._next
                    )
                elif (
                    stream := self._by_client.get((ws, getattr(frame, "stream", 0)))
                ) is not None and (host := self._hosts.get(self._streams[stream][2])) is not None:
                    with contextlib.suppress(ConnectionClosed):
                        await self._pass_on(UP, stream, frame, host, stream)
        finally:
            for key in [key for key in self._by_client if key[0] is ws]:
                stream = self._by_client.pop(key)
                host = self._hosts.get(self._streams.pop(stream)[2])
                if host is not None:
                    await host.send(outer.encode(outer.Close(stream, outer.AWAY)))

    async def _pass_on(
        self, direction: str, stream: int, frame: outer.Frame, to: ServerConnection, number: int
    ) -> None:
        self.seen.append((direction, stream, frame))
        for one in self.meddle(direction, stream, frame):
            if isinstance(one, float):
                await asyncio.sleep(one)
            else:
                await to.send(outer.encode(_renumbered(one, number)))


def _renumbered(frame: outer.Frame, number: int) -> outer.Frame:
    return (
        frame._replace(stream=number)
        if isinstance(
            frame, outer.Incoming | outer.Accept | outer.Data | outer.Credit | outer.Close
        )
        else frame
    )
