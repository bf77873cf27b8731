"""The gRPC server of a relay: the same frames, admission and registry as by WebSocket.

Needs the extra [grpc]. A message of the stream is exactly one frame; the library's (de)serializers
are not used, so wire/outer.py alone checks the bytes. Two differences from the WebSocket server:
gRPC does not tell by which name the relay was called, so a registration may be signed for any of
its names; and a web page cannot speak gRPC (an attempt would carry an Origin and is refused). Flow
control is by credit here too, because the library's own has let memory grow without bound.

Authentication is the same: metadata `authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import unquote

import grpc

from holdfast.model import limits
from holdfast.relay.admission import Approach, TurnedAway, by_browser
from holdfast.relay.hub import Hub, Visit
from holdfast.relay.server import CLOSE_WAIT_S
from holdfast.wire import outer

SERVICE, METHOD = "holdfast.v1.Relay", "Connect"
STATUS = {401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED}
OPTIONS = (
    ("grpc.max_receive_message_length", limits.OUTER_BYTES),
    ("grpc.max_metadata_size", 16 * limits.KiB),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.so_reuseport", 0),
    # No compression: sealed bytes do not compress, and a small gzip could expand without bound.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.server_handshake_timeout_ms", int(limits.RELAY_HELLO_S * 1000)),
    ("grpc.max_connection_idle_ms", int(limits.RELAY_ADMIT_S * 1000)),  # without a call
)
Pair = tuple[bytes, bytes]  # certificate chain and key, as PEM


class Call:
    """A call, as a Carrier of the hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.number = 0
        self._out: deque[bytes] = deque()
        self._queued = self._taken = 0
        self._wake = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._pausing: asyncio.TimerHandle | None = None
        self._held = self._pressed = False
        self.finished = False

    def send(self, data: bytes) -> None:
        if not self.finished:
            self._out.append(data)
            self._queued += len(data)
            if self._queued > limits.RELAY_PRESSURE_BYTES and not self._pressed:
                self._pressed = True
                self._hub.pressed(self.number)

    def flush(self) -> None:
        self._wake.set()

    def finish(self, code: int) -> None:
        self.finished = True
        self._resumed.set()
        self._wake.set()

    def pause(self, seconds: float) -> None:
        if self._pausing is not None:
            self._pausing.cancel()
        self._resumed.clear()
        self._pausing = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pausing = None
        if not self._held:
            self._resumed.set()

    def hold(self, held: bool) -> None:
        self._held = held
        if held:
            self._resumed.clear()
        elif self._pausing is None:
            self._resumed.set()

    def queued(self) -> int:
        return self._queued

    def taken(self) -> int:
        return self._taken

    async def read(self, hub: Hub, messages: AsyncIterator[bytes]) -> None:
        async for message in messages:
            if self.finished:
                return
            hub.received(self.number, message)
            hub.flush()
            await self._resumed.wait()

    async def write(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while True:
            while self._out:
                data = self._out.popleft()
                await context.write(data)
                self._queued -= len(data)
                self._taken += len(data)
                if self._pressed and self._queued < limits.RELAY_PRESSURE_BYTES // 4:
                    self._pressed = False
                    self._hub.relieved(self.number)
            if self.finished:
                return
            self._wake.clear()
            await self._wake.wait()


class GrpcDoor:
    def __init__(self, hub: Hub, certificate: Callable[[], Pair] | None) -> None:
        self._hub, self._certificate = hub, certificate
        self.reached: tuple[str, ...] = ()  # our address, as in a URL
        self._server = grpc.aio.server(
            options=OPTIONS, maximum_concurrent_rpcs=limits.RELAY_CONNECTIONS_MAX
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(self._connect)}
                ),
            )
        )
        self._shown: Pair | None = None

    async def start(self, address: str) -> int:
        """Listen and return the port, or 0 on failure."""
        try:
            if self._certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(
                    address,
                    grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration),
                )
        except RuntimeError:  # grpc gives no reason
            return 0
        await self._server.start()
        return int(port)

    def _configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a changed certificate for a handshake, or None to keep the last certificate."""
        assert self._certificate is not None
        pair = self._certificate()
        if pair == self._shown:
            return None
        self._shown = pair
        return grpc.ssl_server_certificate_configuration([(pair[1], pair[0])])

    async def stop(self) -> None:
        await self._server.stop(CLOSE_WAIT_S)

    async def _connect(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        visit = self._hub.knock(_address(context.peer()))
        if visit is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections")
        assert visit is not None
        try:
            await self._welcome(messages, context, visit)
        finally:
            visit.over()

    async def _welcome(
        self,
        messages: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[bytes, bytes],
        visit: Visit,
    ) -> None:
        given = [
            (str(key), value if isinstance(value, str) else value.decode(errors="replace"))
            for key, value in context.invocation_metadata() or ()
        ]
        approach = Approach(
            None,
            tuple(v for k, v in given if k == "origin"),
            tuple(v for k, v in given if k == "authorization"),
            self.reached,
            by_browser(k for k, _ in given),
        )
        try:
            admission = self._hub.doorkeeper.admit(approach, time.time())
        except TurnedAway as refused:
            self._hub.counts["turned_away"] += 1
            # Read its HELLO first: a refusal during its write would look like an internal error.
            with suppress(StopAsyncIteration, TimeoutError):
                await asyncio.wait_for(anext(messages), CLOSE_WAIT_S)
            await context.abort(
                STATUS.get(refused.status, grpc.StatusCode.FAILED_PRECONDITION), refused.reason
            )
            return
        call = Call(self._hub)
        call.number = self._hub.connected(call, admission, visit)
        self._hub.flush()
        reading = asyncio.create_task(call.read(self._hub, messages))
        writing = asyncio.create_task(call.write(context))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if call.finished:  # we ended it: the peer must still learn why
                await asyncio.wait((writing,), timeout=CLOSE_WAIT_S)
        finally:
            self._hub.gone(call.number)
            call.finish(outer.DONE)
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)


def _address(peer: str) -> str:
    """Return the address in `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
