"""A relay in its own process, and scripted hosts and clients that speak outer frames to it.

They send exactly the frames of the script, right or wrong.

    with RelayProcess(tmp) as relay:
        async with host(relay.url, relay.token()) as h, client(relay.url) as c:
            route = await h.register()
            stream = await c.open(route, h.passes[0])
            ...

The ends seal nothing: a relay cannot tell, and that is the point. `raw` sends bytes that are no
frame.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from holdfast.core.sealed import route as routes
from holdfast.model import signing
from holdfast.relay import admin, control
from holdfast.wire import outer

WAIT_S = 20.0  # for any expected event; a loaded machine is slow, not wrong
F = TypeVar("F", bound=outer.Frame)


class Closed(Exception):
    """The relay ended the connection. `frame`: the CLOSE frame, if any; `code`: WebSocket's."""

    def __init__(self, frame: outer.Close | None, code: int | None) -> None:
        super().__init__(
            f"{outer.CODES[frame.code]}: {frame.reason}"
            if frame is not None
            else f"closed without a word ({code})"
        )
        self.frame, self.code = frame, code


class Carrier:
    """Messages both ways, over any transport."""

    async def send(self, data: bytes) -> None:
        """That the other side has closed meanwhile is told by `receive`."""
        raise NotImplementedError

    async def receive(self) -> bytes:
        """The next message; EOFError at the end."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    code: int | None = None


# Since release 15 the library's client uses the proxies that the environment names.
NO_PROXY = {"proxy": None} if int(version("websockets").partition(".")[0]) >= 15 else {}


class WebSocketCarrier(Carrier):
    def __init__(self, ws: Any) -> None:
        self.ws = ws

    @classmethod
    async def dial(cls, url: str, token: str | None = None, **how: Any) -> WebSocketCarrier:
        from websockets.asyncio.client import connect

        headers = {
            **({"Authorization": f"Bearer {token}"} if token else {}),
            **how.pop("headers", {}),
        }
        how = {
            "subprotocols": ["holdfast.1"],
            "compression": None,
            "ping_interval": None,
            "max_size": 1 << 20,
            **NO_PROXY,
            "open_timeout": WAIT_S,
            **how,
        }
        return cls(await connect(url, additional_headers=headers, **how))

    async def send(self, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            await self.ws.send(data)

    async def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            data = await self.ws.recv()
        except ConnectionClosed as e:
            self.code = e.rcvd.code if e.rcvd is not None else None
            raise EOFError from e
        return data if isinstance(data, bytes) else data.encode()

    async def close(self) -> None:
        await self.ws.close()


class GrpcCarrier(Carrier):
    def __init__(self, channel: Any, call: Any) -> None:
        self._channel, self._call = channel, call

    @classmethod
    async def dial(cls, url: str, token: str | None = None, **how: Any) -> GrpcCarrier:
        import grpc

        metadata = [
            *([("authorization", f"Bearer {token}")] if token else []),
            *((k.lower(), v) for k, v in how.get("headers", {}).items()),
        ]
        channel = grpc.aio.insecure_channel(urlsplit(url).netloc)
        call = channel.stream_stream("/holdfast.v1.Relay/Connect")(metadata=metadata)
        return cls(channel, call)

    async def send(self, data: bytes) -> None:
        import grpc

        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(data)

    async def receive(self) -> bytes:
        import grpc

        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as e:
            self.code = e.code().value[0]
            raise EOFError from e
        if not isinstance(data, bytes):
            raise EOFError
        return data

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


class End:
    """An end of a relay connection, as a script."""

    role = outer.CLIENT

    def __init__(self, carrier: Carrier, url: str) -> None:
        self.carrier = carrier
        self.name = urlsplit(url).netloc
        self.welcome: outer.Welcome
        self.closing: outer.Close | None = None
        self.answers_pings = True
        self._kept: list[outer.Frame] = []

    async def hello(
        self, lowest: int = outer.LOWEST, highest: int = outer.VERSION
    ) -> outer.Welcome:
        await self.send(outer.Hello(lowest, highest, self.role, "script"))
        self.welcome = await self.expect(outer.Welcome)
        return self.welcome

    async def send(self, *frames: outer.Frame) -> None:
        for frame in frames:
            await self.carrier.send(outer.encode(frame))

    async def raw(self, data: bytes) -> None:
        await self.carrier.send(data)

    async def next(self) -> outer.Frame:
        """The next frame but PINGs, which are answered; Closed when the connection is."""
        if self._kept:
            return self._kept.pop(0)
        while True:
            try:
                frame = outer.decode(await asyncio.wait_for(self.carrier.receive(), WAIT_S))
            except EOFError as e:
                raise Closed(self.closing, self.carrier.code) from e
            if isinstance(frame, outer.Close) and frame.stream == 0:
                self.closing = frame
            elif isinstance(frame, outer.Ping) and self.answers_pings:
                await self.send(outer.Pong(frame.mark))
            else:
                return frame

    async def expect(self, kind: type[F]) -> F:
        frame = await self.next()
        assert isinstance(frame, kind), f"{kind.__name__} was due, not {frame!r}"
        return frame

    async def wait_for(self, kind: type[F]) -> F:
        """The next frame of that kind; other frames are kept for later."""
        passed: list[outer.Frame] = []
        try:
            while not isinstance(frame := await self.next(), kind):
                passed.append(frame)
        finally:
            self._kept = passed + self._kept
        return frame

    async def ended(self) -> Closed:
        """Reads until the relay ends the connection; gives how."""
        try:
            while True:
                await self.next()
        except Closed as e:
            return e

    async def no_more_frames(self) -> None:
        """Assert that no other frame came up to now: the next frame answers a PING."""
        await self.send(outer.Ping(b"anything"))
        assert await self.next() == outer.Pong(b"anything")


class Host(End):
    role = outer.HOST

    def __init__(self, carrier: Carrier, url: str) -> None:
        super().__init__(carrier, url)
        self.secret = signing.generate()
        self.passes = [os.urandom(outer.PASS_BYTES)]

    @property
    def route(self) -> bytes:
        return routes.route(signing.public(self.secret))

    def registration(self, generation: int = 1, name: str | None = None) -> outer.Register:
        signature = routes.sign(self.secret, name or self.name, self.welcome.nonce, generation)
        return outer.Register(
            signing.public(self.secret),
            generation,
            signature,
            tuple(routes.digest(p) for p in self.passes),
        )

    async def register(self, generation: int = 1, name: str | None = None) -> bytes:
        await self.send(self.registration(generation, name))
        return (await self.wait_for(outer.Registered)).route

    async def accept(self) -> int:
        """The next stream that comes in."""
        number = (await self.wait_for(outer.Incoming)).stream
        await self.send(outer.Accept(number))
        return number


class Client(End):
    def __init__(self, carrier: Carrier, url: str) -> None:
        super().__init__(carrier, url)
        self._streams = 0

    def number(self) -> int:
        self._streams += 1
        return self._streams

    async def open(self, host: Host, pass_: bytes | None = None) -> tuple[int, int]:
        """Open a stream to a host of the same script; return the stream's number here and there."""
        number = self.number()
        await self.send(outer.Open(number, host.route, host.passes[0] if pass_ is None else pass_))
        there = await host.accept()
        assert await self.wait_for(outer.Accept) == outer.Accept(number)
        return number, there


async def dial(url: str, token: str | None = None, **how: Any) -> Carrier:
    return await (GrpcCarrier if url.startswith("grpc") else WebSocketCarrier).dial(
        url, token, **how
    )


@asynccontextmanager
async def host(url: str, token: str | None = None, **how: Any) -> AsyncIterator[Host]:
    end = Host(await dial(url, token, **how), url)
    try:
        await end.hello()
        yield end
    finally:
        await end.carrier.close()


@asynccontextmanager
async def client(url: str, token: str | None = None, **how: Any) -> AsyncIterator[Client]:
    end = Client(await dial(url, token, **how), url)
    try:
        await end.hello()
        yield end
    finally:
        await end.carrier.close()


class RelayProcess:
    """`holdfast relay serve` on loopback, on any free port."""

    def __init__(
        self,
        data: str,
        *options: str,
        port: int = 0,
        limits: dict[str, float] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self.data = data
        self.log = f"{data}.log"
        self._address = address
        self._options = (*options, "--listen", f"{address}:{port}")
        self._limits = limits or {}
        self.urls: dict[str, str] = {}
        self.reached: list[str] = []  # the addresses for other machines
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command: Sequence[str] = [
            sys.executable,
            "-m",
            "holdfast",
            "relay",
            "serve",
            "--data",
            self.data,
            "--json",
            *self._options,
        ]
        if self._limits:  # smaller than in any real relay, so that a test need not wait or flood
            script = (
                "import json, sys; from holdfast.model import limits; "
                "given = json.loads(sys.argv.pop(1)); "
                "[setattr(limits, k, v) for k, v in given.items()]; "
                "from holdfast.faces.cli.main import main; main()"
            )
            command = [sys.executable, "-c", script, json.dumps(self._limits), *command[3:]]
        with open(self.log, "ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("{"):
            process.kill()
            process.wait()
            with open(self.log, errors="replace") as log_file:
                raise AssertionError(
                    f"the relay did not start: {line!r}\n{log_file.read()[-2000:]}"
                )
        said = json.loads(line)
        self.urls, self.reached = said["listening"], said["urls"]
        return process

    @property
    def url(self) -> str:
        return self.urls["websocket"]

    @property
    def port(self) -> int:
        return self.port_of("websocket")

    def port_of(self, door: str) -> int:
        return urlsplit(self.urls[door]).port or 0

    def token(self, tenant: str = "default", expires: int | None = None) -> str:
        token, digest = admin.make()
        self.ask("token.new", digest=digest.hex(), tenant=tenant, expires=expires)
        return token

    def ask(self, act: str, **request: Any) -> Any:
        """The work of `holdfast relay token` and similar commands, without a process."""
        return control.ask(self.data, {"act": act, **request})

    def restart(self) -> None:
        """The same again, on the same ports."""
        self.stop()
        options = list(self._options)
        for option, door in (("--listen", "websocket"), ("--grpc", "grpc")):
            if option in options:
                options[options.index(option) + 1] = f"{self._address}:{self.port_of(door)}"
        self._options = tuple(options)
        self.process = self._start()

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def logged(self) -> str:
        with open(self.log, errors="replace") as log:
            return log.read()

    def get(self, path: str, *headers: str, url: str | None = None) -> tuple[int, str]:
        """A plain HTTP request, exactly these headers; (status, all that was answered)."""
        place = urlsplit(url or self.url)
        with socket.create_connection((place.hostname, place.port), WAIT_S) as sock:
            sock.sendall("\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode())
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        text = answer.decode(errors="replace")
        return int(text.split(" ", 2)[1]) if text else 0, text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def watches(relay: RelayProcess) -> int:
    page = relay.get("/metrics", f"Host: {relay.urls['metrics'][7:]}", url=relay.urls["metrics"])[1]
    return int(page.split("\nholdfast_relay_watches ")[1].split()[0])
