"""Arbitrary bytes at a relay: only their sender notices, and no exception escapes."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.sealed import route as routes
from holdfast.model import signing
from holdfast.relay.admission import Admission, Doorkeeper
from holdfast.relay.events import Token
from holdfast.relay.hub import Hub, Visit
from holdfast.relay.registry import Registry
from holdfast.relay.server import WebSocket
from holdfast.wire import outer
from tests.support.examples import examples

SECRET = b"s" * 32
KEY = signing.public(SECRET)
PASS = b"p" * 32


class Keeps:
    """A store that forgets, and a carrier that listens."""

    failures = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended = False

    def save(self, known: Any) -> None: ...
    def forget(self, key: bytes) -> None: ...
    def flush(self) -> None: ...
    def pause(self, seconds: float) -> None: ...
    def hold(self, held: bool) -> None: ...

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def finish(self, code: int) -> None:
        self.ended = True

    def queued(self) -> int:
        return 0

    def taken(self) -> int:
        return sum(map(len, self.sent))

    def frames(self) -> list[outer.Frame]:
        return [outer.decode(data) for data in self.sent]


def frames() -> st.SearchStrategy[bytes]:
    small = st.integers(1, 4)
    some: st.SearchStrategy[Any] = st.one_of(
        st.builds(outer.Data, small, st.binary(min_size=1, max_size=40)),
        st.builds(outer.Credit, small, st.integers(1, 262144)),
        st.builds(outer.Accept, small),
        st.builds(outer.Close, st.integers(0, 4), st.integers(1, 13), st.just("")),
        st.builds(outer.Open, small, st.just(routes.route(KEY)), st.just(PASS)),
        st.builds(outer.Watch, st.just(routes.route(KEY)), st.just(PASS)),
        st.builds(outer.Ping, st.binary(min_size=8, max_size=8)),
        st.builds(outer.Hello, st.just(1), st.integers(1, 3), st.integers(1, 2), st.just("")),
        st.builds(outer.Incoming, small),
    )

    def bent(data: bytes, at: int, by: int) -> bytes:
        return data[: at % (len(data) + 1)] + bytes([by]) + data[at % (len(data) + 1) + 1 :]

    whole = some.map(outer.encode)
    return st.one_of(
        whole,
        st.builds(bent, whole, st.integers(0, 60), st.integers(0, 255)),
        st.binary(max_size=100),
    )


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(frames(), max_size=12), st.sampled_from((outer.HOST, outer.CLIENT, 0)))
def test_bytes_from_one_connection_harm_no_other_connection(
    messages: list[bytes], role: int
) -> None:
    async def body() -> None:
        store: Any = Keeps()
        hub = Hub(Registry(), Doorkeeper((), ()), store)

        def come(token: Token | None, role: int) -> tuple[int, Keeps]:
            carrier = Keeps()
            number = hub.connected(carrier, Admission(("relay",), token), Visit(hub, "127.0.0.1"))
            if role:
                hub.received(number, outer.encode(outer.Hello(1, 1, role, "")))
            return number, carrier

        host, at_host = come(Token("t", "tenant"), outer.HOST)
        welcome = at_host.frames()[0]
        assert isinstance(welcome, outer.Welcome)
        hub.received(
            host,
            outer.encode(
                outer.Register(
                    KEY, 1, routes.sign(SECRET, "relay", welcome.nonce, 1), (routes.digest(PASS),)
                )
            ),
        )
        client, at_client = come(None, outer.CLIENT)
        hub.received(client, outer.encode(outer.Open(1, routes.route(KEY), PASS)))
        hub.received(host, outer.encode(outer.Accept(1)))
        evil, _ = come(None, role)
        for message in messages:
            hub.received(evil, message)
            hub.flush()
        hub.gone(evil)
        assert not at_host.ended and not at_client.ended
        before = len(at_host.sent)
        hub.received(client, outer.encode(outer.Data(1, b"still here")))
        assert at_host.frames()[before:] == [outer.Data(1, b"still here")]
        for number in (host, client):
            hub.gone(number)
        assert not hub.registry.connections and not hub.registry.tenants and not hub.lines
        hub.stop()

    asyncio.run(body())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans())
def test_bytes_below_the_frames_throw_nothing(pieces: list[bytes], upgraded: bool) -> None:
    async def body() -> None:
        store: Any = Keeps()
        hub = Hub(Registry(), Doorkeeper(("relay",), ()), store)
        near, far = await _pair()
        loop = asyncio.get_running_loop()
        _, protocol = await loop.connect_accepted_socket(
            lambda: WebSocket(hub, Visit(hub, "x")), near
        )
        if upgraded:
            protocol.data_received(
                b"GET / HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                b"Sec-WebSocket-Protocol: holdfast.1\r\n\r\n"
            )
            assert hub.lines
        for piece in pieces:
            protocol.data_received(piece)
        far.close()
        while hub.sockets:
            await asyncio.sleep(0)
        assert not hub.lines and not hub.strangers and not hub.registry.connections
        hub.stop()

    asyncio.run(body())


async def _pair() -> tuple[Any, Any]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    near.setblocking(False)
    return near, far
