"""Every door of a relay against hostile callers.

Browsers' pages, names that point at loopback, bytes that come slowly, in masses or compressed.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.model import limits
from holdfast.wire import outer
from tests.support.commands.certificates import certificate
from tests.support.relays import WAIT_S, RelayProcess, client, host

Start = Callable[..., RelayProcess]
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: holdfast.1",
)
ALL = ("--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def script(body: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 5 * WAIT_S))


def place(relay: RelayProcess, door: str) -> tuple[str, int]:
    url = urlsplit(relay.urls[door])
    assert url.hostname is not None and url.port is not None
    return url.hostname, url.port


def knock(relay: RelayProcess, door: str) -> socket.socket:
    return socket.create_connection(place(relay, door), WAIT_S)


def rest(sock: socket.socket) -> bytes:
    """All that still comes, until the other side has had enough."""
    got = b""
    try:
        while piece := sock.recv(65536):
            got += piece
    except ConnectionError:
        pass
    return got


# ------------------------------------------------------------ pages in browsers


@pytest.mark.parametrize("site", ("cross-site", "same-site", "same-origin", "none"))
def test_a_browser_that_does_not_say_its_origin_gets_no_connection(start: Start, site: str) -> None:
    """Every browser states the page from which a WebSocket comes.

    A browser that hides the origin, by a defect or an extension, is still known by its other
    headers.
    """
    relay = start("--origin", "https://app.example")
    here = f"Host: 127.0.0.1:{relay.port}"
    assert relay.get("/", here, f"Sec-Fetch-Site: {site}", *UPGRADE)[0] == 403
    assert relay.get("/", here, "Cookie: a=b", *UPGRADE)[0] == 403, "nothing here ever set one"
    with knock(relay, "websocket") as sock:
        sock.sendall(
            "\r\n".join(
                [
                    "GET / HTTP/1.1",
                    here,
                    "Origin: https://app.example",
                    f"Sec-Fetch-Site: {site}",
                    *UPGRADE,
                    "",
                    "",
                ]
            ).encode()
        )
        assert sock.recv(12) == b"HTTP/1.1 101"


@pytest.mark.parametrize("door", ("websocket", "metrics"))
def test_pages_of_a_browser_cannot_embed_a_relay(start: Start, door: str) -> None:
    """Neither as a script, nor as a picture, nor by a name at loopback (DNS rebinding)."""
    relay = start(*ALL)
    url, where = relay.urls[door], relay.urls[door].partition("://")[2]
    for path in ("/", "/healthz", "/metrics"):
        assert relay.get(
            path, f"Host: {where}", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", url=url
        )[0] in (403, 404)
        assert (
            relay.get(path, f"Host: attacker.example:{where.rpartition(':')[2]}", url=url)[0] == 421
        )
        assert relay.get(path, url=url)[0] == 421
        status, text = relay.get(path, f"Host: {where}", url=url)
        head = text.partition("\r\n\r\n")[0].lower()
        assert status in (200, 404)
        for header in (
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ):
            assert header in head, (path, header)
        assert "set-cookie" not in head and "access-control-allow" not in head


def test_requests_of_a_browser_are_refused_at_the_grpc_door(start: Start) -> None:
    """A page's request is HTTP/1.1, or HTTP/2 behind a certificate for its own name.

    The request also states its origin; tests/relay/test_relay.py tries that.
    """
    relay = start(*ALL)
    with knock(relay, "grpc") as sock:
        sock.sendall(
            b"POST /holdfast.v1.Relay/Connect HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/grpc-web\r\nContent-Length: 0\r\n\r\n"
        )
        answer = rest(sock)
    assert not answer.startswith(b"HTTP/1.1 2")


# ------------------------------------------------------------ slowly


@pytest.mark.parametrize("door", ("websocket", "metrics", "grpc"))
@pytest.mark.parametrize(
    "said",
    (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", PREFACE[:10], PREFACE),
    ids=("nothing", "half a request", "half a preface", "a preface"),
)
def test_a_connection_without_a_valid_hello_is_closed_in_time(
    start: Start, door: str, said: bytes
) -> None:
    relay = start(*ALL, RELAY_HELLO_S=1.0, RELAY_ADMIT_S=1.0)
    with knock(relay, door) as sock:
        sock.sendall(said)
        rest(sock)  # returns when the relay hangs up; times out otherwise


@pytest.mark.parametrize("door", ("websocket", "metrics"))
def test_a_byte_now_and_then_does_not_hold_a_door(start: Start, door: str) -> None:
    relay = start(*ALL, RELAY_HELLO_S=1.0)
    with knock(relay, door) as sock:
        sock.settimeout(0.05)
        sent = 0
        try:
            while sent < 20 * WAIT_S:
                sock.sendall(b"GET / HTTP/1.1\r\nX: "[sent : sent + 1] or b"y")
                sent += 1
                try:
                    if not sock.recv(1):
                        break
                except TimeoutError:
                    pass
        except ConnectionError:
            pass
        assert sent < 20 * WAIT_S


def test_a_tls_handshake_that_is_not_finished_is_given_up(start: Start, tmp_path: Path) -> None:
    chain, key = certificate(tmp_path, "relay.example", 1)
    relay = start(
        "--tls-cert",
        str(chain),
        "--tls-key",
        str(key),
        "--grpc",
        "127.0.0.1:0",
        RELAY_HELLO_S=1.0,
        RELAY_ADMIT_S=1.0,
    )
    for door in ("websocket", "grpc"):
        with knock(relay, door) as sock:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
            rest(sock)
    context = ssl.create_default_context(cafile=str(chain))
    with (
        knock(relay, "websocket") as sock,
        context.wrap_socket(sock, server_hostname="relay.example") as sealed,
    ):
        assert sealed.recv(1) == b"", "and one that is finished without a request"


def test_a_call_that_says_no_hello_is_ended_and_counts_as_a_stranger(start: Start) -> None:
    relay = start(
        "--grpc", "127.0.0.1:0", RELAY_STRANGERS_PER_ADDRESS=2, RELAY_HELLO_S=1.0, RELAY_ADMIT_S=1.0
    )

    async def body() -> None:
        import grpc

        async with grpc.aio.insecure_channel(relay.urls["grpc"].partition("://")[2]) as channel:
            calls = [channel.stream_stream("/holdfast.v1.Relay/Connect")() for _ in range(4)]

            async def outcome(call: Any) -> str:
                try:
                    while (data := await call.read()) is not grpc.aio.EOF:
                        assert outer.decode(data) == outer.Close(0, outer.TIMEOUT, "no HELLO")
                    return "no HELLO"
                except grpc.aio.AioRpcError as e:
                    return str(e.code().name)

            assert (
                sorted([await outcome(call) for call in calls])
                == ["RESOURCE_EXHAUSTED"] * 2 + ["no HELLO"] * 2
            )

    script(body)


# ------------------------------------------------------------ in masses


@pytest.mark.parametrize("door", ("websocket", "metrics"))
@pytest.mark.parametrize(
    "request_",
    (
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n" + b"z" * 200_000,
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nz\r\n" * 20_000,
    ),
    ids=("path", "header", "headers", "body", "chunks"),
)
def test_a_request_is_small_or_refused(start: Start, door: str, request_: bytes) -> None:
    relay = start(*ALL)
    with knock(relay, door) as sock:
        try:
            sock.sendall(request_)
        except ConnectionError:
            pass
        answer = rest(sock)
    assert answer[:12] not in (b"HTTP/1.1 200", b"HTTP/1.1 101")
    assert (
        relay.get(
            "/healthz", f"Host: {relay.urls[door].partition('://')[2]}", url=relay.urls[door]
        )[0]
        == 200
    )


def test_metadata_and_messages_of_a_call_are_small_or_refused(start: Start) -> None:
    relay = start("--grpc", "127.0.0.1:0")

    async def body() -> None:
        import grpc

        async with host(relay.urls["grpc"], relay.token()) as h:
            await h.register()
            options = (
                ("grpc.max_metadata_size", 1 << 20),
                ("grpc.absolute_max_metadata_size", 1 << 20),
            )
            async with grpc.aio.insecure_channel(
                relay.urls["grpc"].partition("://")[2], options=options
            ) as channel:
                call = channel.stream_stream("/holdfast.v1.Relay/Connect")(
                    metadata=[("x", "y" * 200_000)]
                )
                with pytest.raises(grpc.aio.AioRpcError):
                    await call.read()
                call = channel.stream_stream("/holdfast.v1.Relay/Connect")()
                await call.write(b"x" * (limits.OUTER_BYTES + 1))
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await h.no_more_frames()

    script(body)


# ------------------------------------------------------------ compressed


def test_compressed_messages_are_refused_at_the_websocket_door(start: Start) -> None:
    """None is negotiated (tests/relay/test_relay.py), so the bit is a fault: no inflating."""
    relay = start()
    with knock(relay, "websocket") as sock:
        sock.sendall(
            "\r\n".join(
                [
                    "GET / HTTP/1.1",
                    f"Host: 127.0.0.1:{relay.port}",
                    *UPGRADE,
                    "Sec-WebSocket-Extensions: permessage-deflate",
                    "",
                    "",
                ]
            ).encode()
        )
        assert sock.recv(12) == b"HTTP/1.1 101"
        sock.sendall(bytes((0xC2, 0x80 | 10)) + b"\0\0\0\0" + b"z" * 10)
        answer = rest(sock)
    assert struct.pack("!H", 1002) in answer


def test_compressed_messages_are_refused_at_the_grpc_door(start: Start) -> None:
    relay = start("--grpc", "127.0.0.1:0")
    hello = outer.encode(outer.Hello(outer.LOWEST, outer.VERSION, outer.CLIENT, "x" * 60))

    async def body() -> None:
        import grpc

        async with grpc.aio.insecure_channel(relay.urls["grpc"].partition("://")[2]) as channel:
            for message in (hello, b"\0" * (limits.OUTER_BYTES - 1), b"\0" * 50_000_000):
                call = channel.stream_stream("/holdfast.v1.Relay/Connect")(
                    compression=grpc.Compression.Gzip
                )
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.write(message)
                    await call.read()
                assert refused.value.code() in (
                    grpc.StatusCode.UNIMPLEMENTED,
                    grpc.StatusCode.INTERNAL,
                ), "INTERNAL: it was refused while it was written"
        async with client(relay.urls["grpc"]):
            pass

    script(body)
    assert len(gzip.compress(b"\0" * 50_000_000)) < limits.OUTER_BYTES, (
        "small enough to come in, if it were inflated"
    )
