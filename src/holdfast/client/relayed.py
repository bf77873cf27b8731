"""The service's end of webhooks: a line to a relay that brings providers' requests here.

The service dials out and registers a route of its own, so it needs no open port. The route lists
the hook pass (core/sealed/route.py), so the relay opens a stream for each `POST /hook/ROUTE/NAME`.
A stream has one request and one answer in plain text (wire/carried.py). This module trusts neither
the relay nor the request: the caller checks the provider's signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast import __version__
from holdfast.core.sealed import route as routes
from holdfast.core.sealed.backoff import Patience
from holdfast.model import address, base64url, signing
from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Unavailable, Usage
from holdfast.model.limits import CARRIED_MAX, REMOTE_AGAIN_MAX_S, REMOTE_WAIT_S, SEALED_BYTES
from holdfast.transport import carriers
from holdfast.wire import carried, outer

if TYPE_CHECKING:
    from holdfast.home.relays import Relay
    from holdfast.transport.carriers import Carrier

AGAIN_FIRST_S: Final = 0.2


class Answered(NamedTuple):
    status: int
    type: str
    body: bytes


Carried = carried.Request
Answer = Callable[[Carried, bytes], Awaitable[Answered]]


class Relayed:
    """`key`: the private key of the route. `told` gets a sentence when the state changes."""

    def __init__(
        self,
        relay: Relay,
        key: bytes,
        generation: Callable[[], int],
        answer: Answer,
        told: Callable[[str], None],
    ) -> None:
        if address.parsed(relay.url).scheme in address.GRPC:
            raise Usage(
                "webhooks come by the relay's WebSocket address",
                "`holdfast host connect wss://...` first, then name that address",
            )
        self._relay, self._key, self._generation = relay, key, generation
        self._answer, self._told = answer, told
        self._state = ""
        self._patience = Patience(AGAIN_FIRST_S, REMOTE_AGAIN_MAX_S)

    @property
    def url(self) -> str:
        """The address for providers; the name of a webhook follows."""
        parts = address.parsed(self._relay.url)
        scheme = "https" if address.secure(self._relay.url) else "http"
        route = base64url.encode(routes.route(signing.public(self._key)))
        return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/hook/{route}/"

    async def run(self) -> None:
        """Serves until cancelled; dials again after every failure."""
        while True:
            try:
                await self._serve()
            except (HoldfastError, OSError, TimeoutError) as e:
                self._became(f"not reachable: {e}" if str(e) else "the relay does not answer")
            await asyncio.sleep(self._patience.pause(time.monotonic(), random.random()))

    def _became(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._told(f"webhooks through {address.name(self._relay.url)}: {state}")

    async def _serve(self) -> None:
        relay = self._relay
        carrier = await asyncio.to_thread(
            carriers.dial, relay.url, relay.token, relay.ca, REMOTE_WAIT_S
        )
        line = _Line(carrier, self._answer)
        try:
            async with asyncio.timeout(REMOTE_WAIT_S):
                ping_s = await self._register(line)
            self._patience.reached(time.monotonic())
            self._became("reachable")
            await line.serve(ping_s)
        finally:
            line.close()

    async def _register(self, line: _Line) -> float:
        line.send(outer.Hello(outer.LOWEST, outer.VERSION, outer.HOST, f"holdfast {__version__}"))
        welcome = await line.next()
        if not isinstance(welcome, outer.Welcome):
            raise PeerFault("the relay answers something else")
        outer.chosen(welcome)
        public, generation = signing.public(self._key), self._generation()
        name = address.name(self._relay.url)
        signature = routes.sign(self._key, name, welcome.nonce, generation)
        passes = (routes.digest(routes.hook_pass(routes.route(public))),)
        line.send(outer.Register(public, generation, signature, passes))
        told = await line.next()
        if isinstance(told, outer.Close) and told.code == outer.UNAUTHORIZED:
            raise NotAllowed(
                f"it does not admit this service: {told.reason}; the route key is "
                f"{signing.show(public)}",
                "`holdfast relay admit KEY` there",
            )
        if not isinstance(told, outer.Registered):
            raise PeerFault("the relay did not register this service")
        return float(welcome.ping_s)


class _Line:
    """A registered connection and its streams."""

    def __init__(self, carrier: Carrier, answer: Answer) -> None:
        self._carrier, self._answer = carrier, answer
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Queue[outer.Frame | Exception] = asyncio.Queue()
        self._streams: dict[int, carried.Incoming] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop.add_reader(carrier.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            for message in self._carrier.receive():
                self._came.put_nowait(outer.decode(message, outer.TO_HOST))
        except HoldfastError as e:
            self._loop.remove_reader(self._carrier.fileno())
            self._came.put_nowait(e)

    async def next(self) -> outer.Frame:
        found = await self._came.get()
        if isinstance(found, Exception):
            raise found
        return found

    def send(self, frame: outer.Frame) -> None:
        self._carrier.send(outer.encode(frame))
        if self._carrier.pending:
            self._loop.add_writer(self._carrier.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            self._carrier.flush()
        except HoldfastError as e:
            self._came.put_nowait(e)
        if not self._carrier.pending:
            self._loop.remove_writer(self._carrier.fileno())

    async def serve(self, ping_s: float) -> None:
        asked = False
        while True:
            try:
                async with asyncio.timeout(ping_s):
                    frame = await self.next()
                asked = False
            except TimeoutError:
                if asked:
                    raise Unavailable("the relay does not answer any more") from None
                asked = True
                self.send(outer.Ping(os.urandom(outer.MARK_BYTES)))
                continue
            self._handle(frame)

    def _handle(self, frame: outer.Frame) -> None:
        match frame:
            case outer.Incoming(stream):
                if len(self._streams) + len(self._tasks) >= CARRIED_MAX:
                    return self.send(outer.Close(stream, outer.LIMIT, "too many requests"))
                self._streams[stream] = carried.Incoming()
                self.send(outer.Accept(stream))
            case outer.Data(stream, payload):
                self._take(stream, payload)
            case outer.Close(0, code, reason):
                raise Unavailable(f"the relay closed the line ({outer.CODES[code]}): {reason}")
            case outer.Close(stream):
                self._streams.pop(stream, None)
            case outer.Ping(mark):
                self.send(outer.Pong(mark))

    def _take(self, stream: int, payload: bytes) -> None:
        message = self._streams.get(stream)
        if message is None:
            return
        try:
            whole = message.feed(payload)
            if isinstance(message.head, carried.Answer):
                raise PeerFault("an answer came where a request was due")
        except PeerFault:
            del self._streams[stream]
            return self.send(outer.Close(stream, outer.PROTOCOL, "this is not a request"))
        self.send(outer.Credit(stream, len(payload)))
        if whole and isinstance(message.head, carried.Request):
            del self._streams[stream]
            task = self._loop.create_task(self._do(stream, message.head, message.body))
            self._tasks[stream] = task
            task.add_done_callback(lambda _: self._tasks.pop(stream, None))

    async def _do(self, stream: int, request: carried.Request, body: bytes) -> None:
        """Answers one request. The act goes on if the provider has left."""
        with contextlib.suppress(Unavailable):  # the line is gone, and so is the provider
            try:
                found = await self._answer(request, body)
            except Exception:
                self.send(outer.Close(stream, outer.FAILED, "the service failed"))
                raise
            head = carried.head(carried.Answer(found.status, found.type, len(found.body)))
            data = head + found.body
            for at in range(0, len(data), SEALED_BYTES):
                self.send(outer.Data(stream, data[at : at + SEALED_BYTES]))
            self.send(outer.Close(stream, outer.DONE))

    def close(self) -> None:
        self._loop.remove_reader(self._carrier.fileno())
        self._loop.remove_writer(self._carrier.fileno())
        self._carrier.close()
