"""A running relay, and scripted hosts and clients that talk to it over real sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from holdfast.model import limits, signing
from holdfast.relay import admin
from holdfast.wire import outer
from tests.support.relays import WAIT_S, Closed, RelayProcess, WebSocketCarrier, client, dial, host

Start = Callable[..., RelayProcess]
WINDOW = limits.STREAM_WINDOW_BYTES
DOORS = ("websocket", "grpc")


def script(body: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 5 * WAIT_S))


# ------------------------------------------------------------ routing


@pytest.mark.parametrize("hosts", DOORS)
@pytest.mark.parametrize("clients", DOORS)
def test_every_door_carries_the_same_frames(start: Start, hosts: str, clients: str) -> None:
    relay = start("--grpc", "127.0.0.1:0")

    async def body() -> None:
        async with host(relay.urls[hosts], relay.token()) as h, client(relay.urls[clients]) as c:
            assert await h.register() == h.route
            here, there = await c.open(h)
            await c.send(outer.Data(here, b"in"), outer.Data(here, b"x" * 65535))
            assert [await h.next(), await h.next()] == [
                outer.Data(there, b"in"),
                outer.Data(there, b"x" * 65535),
            ]
            await h.send(outer.Credit(there, 2), outer.Data(there, b"out"))
            assert [await c.next(), await c.next()] == [
                outer.Credit(here, 2),
                outer.Data(here, b"out"),
            ]
            await c.send(outer.Close(here, outer.DONE, "bye"))
            assert await h.next() == outer.Close(there, outer.DONE, "bye")
            await c.no_more_frames()

    script(body)


def test_streams_of_many_do_not_mix(start: Start) -> None:
    relay = start()

    async def body() -> None:
        async with (
            host(relay.url, relay.token()) as one,
            host(relay.url, relay.token("other")) as two,
            client(relay.url) as c,
            client(relay.url) as d,
        ):
            await one.register()
            await two.register()
            ends = [
                (c, *await c.open(one), one),
                (c, *await c.open(two), two),
                (d, *await d.open(two), two),
                (d, *await d.open(one), one),
            ]
            for index, (end, here, _, _) in enumerate(ends):
                await end.send(outer.Data(here, b"%d" % index))
            for index, (_, _, there, at) in enumerate(ends):
                assert await at.next() == outer.Data(there, b"%d" % index)
            for index, (_, _, there, at) in enumerate(ends):
                await at.send(outer.Data(there, b"%d" % index))
            for end, expected in ((c, [0, 1]), (d, [2, 3])):
                got = {
                    (f.stream, f.payload)
                    for f in [await end.expect(outer.Data), await end.expect(outer.Data)]
                }
                assert got == {
                    (here, b"%d" % i)
                    for i, (e, here, _, _) in enumerate(ends)
                    if i in expected and e is end
                }

    script(body)


def test_a_megabyte_with_credit_arrives_whole(start: Start) -> None:
    relay = start()
    sent = os.urandom(3_000_000)

    async def body() -> None:
        async with host(relay.url, relay.token()) as h, client(relay.url) as c:
            await h.register()
            here, there = await c.open(h)

            async def push() -> None:
                left, at = WINDOW, 0
                while at < len(sent):
                    piece = sent[at : at + min(left, 60_000)]
                    if piece:
                        await h.send(outer.Data(there, piece))
                        left, at = left - len(piece), at + len(piece)
                    else:
                        left += (await h.expect(outer.Credit)).amount

            async def pull() -> bytes:
                got = b""
                while len(got) < len(sent):
                    piece = (await c.expect(outer.Data)).payload
                    got += piece
                    await c.send(outer.Credit(here, len(piece)))
                return got

            _, got = await asyncio.gather(push(), pull())
            assert got == sent

    script(body)


# ------------------------------------------------------------ admission


@pytest.mark.parametrize("door", DOORS)
def test_one_authentication_for_every_door(start: Start, door: str) -> None:
    """The same approaches at each door, with the same outcome."""
    relay = start("--grpc", "127.0.0.1:0", "--origin", "https://app.example")
    good, bad = relay.token(), relay.token()
    relay.ask("token.revoke", id=_id(bad))
    refused: list[dict[str, Any]] = [
        {"token": bad},
        {"token": "hfr_" + "A" * 43},
        {"token": ""} | {"headers": {"Authorization": "Bearer "}},
        {"headers": {"Authorization": "Basic Zm9v"}},
        {"headers": {"Authorization": good}},
        {"token": good + "x"},
        {"token": good, "headers": {"Origin": "https://evil.example"}},
        {"headers": {"Origin": "null"}},
        {"headers": {"Origin": "https://app.example.evil.example"}},
        {"headers": {"Origin": "http://app.example"}},
    ]

    async def tried(**how: Any) -> bool:
        try:
            async with host(relay.urls[door], **how) as end:
                await end.no_more_frames()
                return True
        except InvalidStatus as e:
            assert e.response.status_code in (401, 403)
        except Closed as e:
            assert e.frame is None and e.code in (16, 7)  # UNAUTHENTICATED, PERMISSION_DENIED
        return False

    async def body() -> None:
        assert [await tried(**how) for how in refused] == [False] * len(refused)
        assert (
            await tried(token=good)
            and await tried()
            and await tried(token=good, headers={"Origin": "https://app.example"})
        )

    script(body)


def _id(token: str) -> str:
    return admin.digest(token).hex()[:12]


def test_a_host_without_token_or_known_key_is_refused(start: Start) -> None:
    relay = start()

    async def body() -> None:
        async with host(relay.url) as h:
            await h.send(h.registration())
            ended = await h.ended()
            assert (
                ended.frame is not None
                and ended.frame.code == outer.UNAUTHORIZED
                and ended.code == 1008
            )

    script(body)


def test_a_registration_for_another_relay_is_refused(start: Start) -> None:
    relay = start("--name", "relay.example")

    async def body() -> None:
        token = relay.token()
        async with host(relay.url, token) as h:
            await h.send(
                h.registration(name="relay.example")
            )  # one of its names, but not the called name
            assert (await h.ended()).frame == outer.Close(
                0,
                outer.UNAUTHORIZED,
                "the signature does not fit this key, this relay's name and this connection",
            )
        async with host(
            f"ws://relay.example:{relay.port}", token, host="127.0.0.1", port=relay.port
        ) as h:
            await h.register()

    script(body)


def test_wrong_pass_and_unknown_route(start: Start) -> None:
    relay = start()

    async def body() -> None:
        async with host(relay.url, relay.token()) as h, client(relay.url) as c:
            await h.register()
            await c.send(outer.Open(1, h.route, b"w" * 32), outer.Open(2, b"?" * 16, h.passes[0]))
            assert [f.code for f in [await c.expect(outer.Close), await c.expect(outer.Close)]] == [
                outer.REFUSED
            ] * 2
            await h.no_more_frames()

    script(body)


def test_a_token_can_expire_without_locking_its_hosts_out_and_revoking_it_does(
    start: Start,
) -> None:
    relay = start()
    token = relay.token(expires=int(time.time()) + 2)

    async def body() -> None:
        async with host(relay.url, token) as h:
            secret = h.secret
            await h.register()
        while relay.ask("token.ls")[0]["state"] != "expired":
            await asyncio.sleep(0.1)  # poll
        async with (
            host(relay.url, token) as again,
            host(relay.url, token) as other,
            client(relay.url) as c,
        ):
            again.secret = secret
            await again.register()
            await other.send(other.registration())
            assert (await other.ended()).frame == outer.Close(
                0, outer.UNAUTHORIZED, "the token has expired"
            )
            await c.open(again)
            relay.ask("token.revoke", id=_id(token)[:6])
            assert (await again.ended()).frame == outer.Close(
                0, outer.UNAUTHORIZED, "the token was revoked"
            )
            assert (await c.expect(outer.Close)).code == outer.OFFLINE
        async with host(relay.url) as last:
            last.secret = secret
            await last.send(last.registration())
            assert (await last.ended()).frame is not None
        with pytest.raises(InvalidStatus):
            await dial(relay.url, token)

    script(body)


def test_a_key_that_was_admitted_needs_no_token(start: Start) -> None:
    relay = start()
    secret = signing.generate()
    relay.ask("admit", key=signing.show(signing.public(secret)), tenant="acme")

    async def body() -> None:
        async with host(relay.url) as h:
            h.secret = secret
            await h.register()

    script(body)


# ------------------------------------------------------------ coming and going


def test_a_replaced_host_is_told_and_its_clients_are(start: Start) -> None:
    relay = start()

    async def body() -> None:
        token = relay.token()
        async with (
            host(relay.url, token) as old,
            host(relay.url, token) as new,
            host(relay.url, token) as stale,
            client(relay.url) as c,
        ):
            new.secret = stale.secret = old.secret
            new.passes = old.passes
            await old.register(generation=5)
            here, _ = await c.open(old)
            await new.register(generation=6)
            ended = await old.ended()
            assert ended.frame is not None and ended.frame.code == outer.REPLACED
            assert (await c.expect(outer.Close)) == outer.Close(
                here, outer.REPLACED, "the host's connection has ended"
            )
            await stale.send(stale.registration(generation=5))
            refused = (await stale.ended()).frame
            assert refused is not None and refused.code == outer.REPLACED
            await c.open(new)

    script(body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_token_admits_also_after_the_relay_has_started_anew(start: Start, number: int) -> None:
    relay = start()
    token = relay.token()
    relay.stop(number)
    relay.restart()

    async def body() -> None:
        async with host(relay.url, token) as h:
            assert await h.register()

    script(body)


def test_watchers_hear_of_coming_and_going_also_over_a_restart(start: Start) -> None:
    relay = start()

    async def body() -> None:
        token = relay.token()
        async with host(relay.url, token) as h:
            await h.register()
            route, pass_, secret = h.route, h.passes[0], h.secret
            async with client(relay.url) as c:
                await c.send(outer.Watch(route, pass_))
                assert (await c.expect(outer.Presence)).online
                await h.carrier.close()
                away = await c.expect(outer.Presence)
                assert not away.online and away.since > 1_600_000_000
                relay.restart()
                assert (await c.ended()).frame == outer.Close(
                    0, outer.AWAY, "the relay restarts; come again"
                )
        async with (
            client(relay.url) as c,
            host(relay.url) as h,
        ):  # by its key; no peer was there when the relay began
            h.secret, h.passes = secret, [pass_]
            await c.send(outer.Watch(route, pass_), outer.Open(1, route, pass_))
            assert not (await c.expect(outer.Presence)).online
            assert (await c.expect(outer.Close)).code == outer.OFFLINE
            await h.register()
            assert (await c.expect(outer.Presence)).online

    script(body)


def test_a_restart_is_told_to_both_sides_and_everything_comes_again(start: Start) -> None:
    relay = start("--grpc", "127.0.0.1:0")

    async def body() -> None:
        token = relay.token()
        async with (
            host(relay.url, token) as h,
            client(relay.url) as c,
            client(relay.urls["grpc"]) as g,
        ):
            await h.register()
            await c.open(h)
            relay.stop()
            for end in (h, c, g):
                ended = await end.ended()
                assert ended.frame == outer.Close(0, outer.AWAY, "the relay restarts; come again")
                assert end is g or ended.code == 1012

    script(body)


def test_a_stopped_peer_is_noticed_though_its_socket_lives(start: Start, tmp_path: Path) -> None:
    """Half-open: the kernel still acknowledges, the peer does not answer."""
    relay = start(RELAY_PING_S=1)
    peer = tmp_path / "peer.py"
    peer.write_text("""
import asyncio, sys
from tests.support.relays import host
async def main():
    async with host(sys.argv[1], sys.stdin.readline().strip()) as h:
        h.secret, h.passes = b"s" * 32, [b"p" * 32]
        await h.register()
        print(h.route.hex(), flush=True)
        await h.ended()
asyncio.run(main())
""")

    async def body() -> None:
        process = subprocess.Popen(
            [sys.executable, str(peer), relay.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(relay.token() + "\n")
            process.stdin.flush()
            route = bytes.fromhex(process.stdout.readline())
            async with client(relay.url) as c:
                await c.send(outer.Watch(route, b"p" * 32))
                assert (await c.expect(outer.Presence)).online
                process.send_signal(signal.SIGSTOP)
                assert not (await c.expect(outer.Presence)).online
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    script(body)


# ------------------------------------------------------------ misbehaviour


@pytest.mark.parametrize("by", ("host", "client"))
def test_more_data_than_credit_ends_that_stream_only(start: Start, by: str) -> None:
    relay = start()

    async def body() -> None:
        async with host(relay.url, relay.token()) as h, client(relay.url) as c:
            await h.register()
            here, there = await c.open(h)
            other_here, other_there = await c.open(h)
            sender, receiver = (h, c) if by == "host" else (c, h)
            at, to = (there, here) if by == "host" else (here, there)
            for _ in range(4):
                await sender.send(outer.Data(at, b"x" * 65535))
            await sender.send(outer.Data(at, b"x" * 5))
            for _ in range(4):
                assert (await receiver.expect(outer.Data)).stream == to
            assert await receiver.next() == outer.Close(to, outer.FLOW, "more DATA than credit")
            assert await sender.next() == outer.Close(at, outer.FLOW, "more DATA than credit")
            await c.send(outer.Data(other_here, b"fine"))
            assert await h.next() == outer.Data(other_there, b"fine")

    script(body)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "garbage",
    (
        b"",
        b"\xff" * 40,
        b"GET / HTTP/1.1",
        outer.encode(outer.Ping(b"12345678")) * 2,
        outer.encode(outer.Registered(b"r" * 16)),
    ),
)
def test_garbage_ends_the_connection_that_sent_it(start: Start, door: str, garbage: bytes) -> None:
    relay = start("--grpc", "127.0.0.1:0")

    async def body() -> None:
        async with client(relay.urls[door]) as c, client(relay.urls[door]) as other:
            await c.raw(garbage)
            ended = await c.ended()
            assert ended.frame is not None and ended.frame.code == outer.PROTOCOL
            await other.no_more_frames()

    script(body)


def test_oversized_fragmented_and_text_messages(start: Start) -> None:
    relay = start()

    async def body() -> None:
        async with (
            host(relay.url, relay.token()) as h,
            client(relay.url) as c,
            client(relay.url) as big,
            client(relay.url) as texts,
            client(relay.url) as pieces,
        ):
            await h.register()
            await c.open(h)
            await big.raw(b"x" * (limits.OUTER_BYTES + 1))
            assert (await big.ended()).code == 1009
            assert isinstance(texts.carrier, WebSocketCarrier) and isinstance(
                pieces.carrier, WebSocketCarrier
            )
            await texts.carrier.ws.send("words")
            assert (await texts.ended()).frame == outer.Close(
                0, outer.PROTOCOL, "frames are binary messages"
            )
            whole = outer.encode(outer.Ping(b"anything"))
            await pieces.carrier.ws.send(
                [whole[:3], whole[3:5], whole[5:]]
            )  # one message in fragments
            assert await pieces.next() == outer.Pong(b"anything")

            async def endless() -> Any:
                for _ in range(3):
                    yield b"x" * 60_000

            await pieces.carrier.ws.send(endless())
            assert (await pieces.ended()).code == 1009
            await h.no_more_frames()

    script(body)


def test_pings_and_fragments_below_the_frames_are_bounded(start: Start) -> None:
    relay = start(RELAY_QUEUE_BYTES=256 * 1024)

    def opened(token: str) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(WAIT_S)
        sock.connect(("127.0.0.1", relay.port))
        sock.sendall(
            "\r\n".join(
                [
                    "GET / HTTP/1.1",
                    f"Host: 127.0.0.1:{relay.port}",
                    f"Authorization: Bearer {token}",
                    *UPGRADE,
                    "",
                    "",
                ]
            ).encode()
        )
        assert sock.recv(12) == b"HTTP/1.1 101"
        hello = outer.encode(outer.Hello(1, 1, outer.CLIENT, ""))
        sock.sendall(bytes((0x82, 0x80 | len(hello))) + b"\0\0\0\0" + hello)
        return sock

    token = relay.token()
    with (
        opened(token) as sock,
        pytest.raises(OSError),
    ):  # pings whose answers the peer does not read: not for ever
        while True:
            sock.sendall((b"\x89\xfd\0\0\0\0" + b"p" * 125) * 500)
    with opened(token) as sock:
        sock.sendall(
            b"\x02\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 200
        )  # an empty message, in ever more pieces
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        assert b"too many fragments" in answer
    assert "too much waits for this connection" in relay.logged()
    assert relay.get("/healthz", f"Host: 127.0.0.1:{relay.port}")[0] == 200


def test_a_client_that_does_not_read_is_evicted_and_delays_no_other(start: Start) -> None:
    relay = start(RELAY_QUEUE_BYTES=256 * 1024)

    async def body() -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", relay.port))
        async with (
            host(relay.url, relay.token()) as h,
            client(relay.url, sock=sock) as slow,
            client(relay.url) as quick,
        ):
            await h.register()
            here, there = await quick.open(h)
            streams = [(await slow.open(h))[1] for _ in range(60)]
            assert isinstance(slow.carrier, WebSocketCarrier)
            slow.carrier.ws.transport.pause_reading()
            closed: set[int] = set()
            for stream in streams:
                for _ in range(4):
                    await h.send(outer.Data(stream, b"x" * 65000))
                await h.send(outer.Data(there, b"q"))
                assert await quick.next() == outer.Data(here, b"q")  # and other streams flow
                await h.send(outer.Ping(b"anything"))
                while not isinstance(frame := await h.next(), outer.Pong):
                    assert isinstance(frame, outer.Close) and frame.code == outer.AWAY
                    closed.add(frame.stream)
                if closed:
                    break
            assert closed == set(streams)
            slow.carrier.ws.transport.abort()

    script(body)


@pytest.mark.parametrize("door", DOORS)
def test_a_flood_with_a_valid_pass_waits_and_does_not_throw_the_host_out(
    start: Start, door: str
) -> None:
    relay = start(
        "--grpc",
        "127.0.0.1:0",
        RELAY_QUEUE_BYTES=1024 * 1024,
        RELAY_PRESSURE_BYTES=256 * 1024,
        RELAY_CLIENT_STREAMS=256,
    )

    async def body() -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", relay.port))
        async with (
            host(relay.url, relay.token(), sock=sock) as h,
            client(relay.urls[door]) as flood,
        ):
            await h.register()
            streams = dict([await flood.open(h) for _ in range(100)])
            assert isinstance(h.carrier, WebSocketCarrier)
            h.carrier.ws.transport.pause_reading()

            async def push() -> None:
                for number in streams:
                    for _ in range(4):
                        await flood.send(outer.Data(number, b"x" * 65000))

            pushing = asyncio.create_task(push())
            before, now = -1, 0
            while (
                now != before
            ):  # until no byte moves: the flood stands, in the kernel's buffers and ours
                before = now
                await asyncio.sleep(0.3)  # poll
                now = (
                    flood.carrier.ws.transport.get_write_buffer_size()
                    if isinstance(flood.carrier, WebSocketCarrier)
                    else before
                )
            h.carrier.ws.transport.resume_reading()
            got = 0
            while got < 400:  # all of it arrives, and both are still there
                got += len((await h.expect(outer.Data)).payload) == 65000
            await pushing
            await flood.no_more_frames()
            await h.no_more_frames()

    script(body)
    assert "slow" not in relay.logged()


def test_a_socket_that_takes_nothing_for_too_long_is_closed(start: Start) -> None:
    relay = start(RELAY_SLOW_READER_S=1.0, RELAY_PING_S=60)

    async def body() -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", relay.port))
        async with host(relay.url, relay.token()) as h, client(relay.url, sock=sock) as slow:
            await h.register()
            streams = [(await slow.open(h))[1] for _ in range(60)]
            assert isinstance(slow.carrier, WebSocketCarrier)
            slow.carrier.ws.transport.pause_reading()
            for stream in streams:
                for _ in range(4):
                    await h.send(outer.Data(stream, b"x" * 65000))
            assert {(await h.expect(outer.Close)).stream for _ in streams} == set(streams)
            slow.carrier.ws.transport.abort()

    script(body)
    assert "slow: this connection takes nothing" in relay.logged()


def test_a_tenant_over_its_rate_is_slowed_not_cut(start: Start) -> None:
    relay = start(
        "--metrics", "127.0.0.1:0", RELAY_TENANT_BYTES_S=500_000, RELAY_TENANT_BURST_S=0.2
    )

    async def body() -> None:
        async with host(relay.url, relay.token()) as h, client(relay.url) as c:
            await h.register()
            _, there = await c.open(h)
            for _ in range(10):
                await h.send(outer.Data(there, b"x" * 26_000))
            for _ in range(10):
                assert len((await c.expect(outer.Data)).payload) == 26_000

    script(body)
    status, page = relay.get(
        "/metrics", f"Host: {relay.urls['metrics'][7:]}", url=relay.urls["metrics"]
    )
    assert status == 200 and int(page.split("\nholdfast_relay_pauses_total ")[1].split()[0]) > 0


# ------------------------------------------------------------ strangers


def test_strangers_are_few_and_do_not_stay(start: Start) -> None:
    relay = start(RELAY_STRANGERS_PER_ADDRESS=3, RELAY_ADMIT_S=1.0, RELAY_HELLO_S=1.0)

    async def body() -> None:
        token = relay.token()
        async with host(relay.url, token) as h, client(relay.url) as known:
            await h.register()
            await known.open(h)
            idle = [socket.create_connection(("127.0.0.1", relay.port), WAIT_S) for _ in range(3)]
            with socket.create_connection(("127.0.0.1", relay.port), WAIT_S) as fourth:
                assert fourth.recv(1) == b""  # turned away without a word
            for sock in idle:
                assert sock.recv(1) == b""  # silent for a second
                sock.close()
            async with client(relay.url) as stranger:  # there is room again
                ended = await stranger.ended()
                assert ended.frame == outer.Close(
                    0, outer.UNAUTHORIZED, "nothing was shown that admits"
                )
            silent = await dial(relay.url)
            with pytest.raises(EOFError):
                while True:
                    assert outer.decode(await silent.receive()) == outer.Close(
                        0, outer.TIMEOUT, "no HELLO"
                    )
            await known.no_more_frames()
            await h.no_more_frames()

    script(body)


def test_bytes_that_are_no_http(start: Start) -> None:
    relay = start()
    for garbage in (
        b"\x16\x03\x01" + os.urandom(200),
        b"GET\r\n\r\n",
        b"A" * 20_000,
        b"GET / HTTP/1.1\r\n"
        + b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 1000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"\0",
    ):
        with socket.create_connection(("127.0.0.1", relay.port), WAIT_S) as sock:
            try:
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := sock.recv(65536):
                    answer += piece
            except ConnectionResetError:
                answer = b""
            assert b"101" not in answer.split(b"\r\n")[0]
    assert relay.get("/healthz", f"Host: 127.0.0.1:{relay.port}")[0] == 200


# ------------------------------------------------------------ HTTP

UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: holdfast.1",
)


def test_host_and_origin_matrix(start: Start) -> None:
    relay = start(
        "--name", "relay.example", "--name", "other.example:99", "--origin", "https://app.example"
    )
    good_hosts = (
        f"127.0.0.1:{relay.port}",
        f"localhost:{relay.port}",
        "relay.example",
        f"relay.example:{relay.port}",
        "RELAY.example",
        "other.example:99",
    )
    bad_hosts = (
        "evil.example",
        f"evil.example:{relay.port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        "other.example",
        "relay.example.evil.example",
        "relay.example.",
        "",
    )
    for host_ in good_hosts:
        assert _upgraded(relay, f"Host: {host_}"), host_
        assert _upgraded(relay, f"Host: {host_}", "Origin: https://app.example"), host_
        for origin in (
            "https://evil.example",
            "null",
            "",
            f"http://127.0.0.1:{relay.port}",
            "https://app.example:443",
            "https://app.example/",
        ):
            assert relay.get("/", f"Host: {host_}", f"Origin: {origin}", *UPGRADE)[0] == 403, (
                host_,
                origin,
            )
        assert (
            relay.get(
                "/",
                f"Host: {host_}",
                "Origin: https://app.example",
                "Origin: https://app.example",
                *UPGRADE,
            )[0]
            == 403
        )
    for host_ in bad_hosts:
        for path in ("/", "/healthz"):
            assert relay.get(path, f"Host: {host_}")[0] == 421, host_
        assert (
            relay.get("/", f"Host: {host_}", "Origin: https://app.example", *UPGRADE)[0] == 421
        ), host_
    assert relay.get("/", *UPGRADE)[0] == 421
    assert relay.get("/", "Host: relay.example", "Host: relay.example", *UPGRADE)[0] == 421


def _upgraded(relay: RelayProcess, *headers: str) -> bool:
    with socket.create_connection(("127.0.0.1", relay.port), WAIT_S) as sock:
        sock.sendall("\r\n".join(["GET / HTTP/1.1", *headers, *UPGRADE, "", ""]).encode())
        return sock.recv(65536).startswith(b"HTTP/1.1 101 ")


def test_only_websocket_of_our_kind_is_spoken(start: Start) -> None:
    relay = start()
    here = f"Host: 127.0.0.1:{relay.port}"
    without = [h for h in UPGRADE if "Protocol" not in h]
    assert relay.get("/", here, *without)[0] == 400
    assert relay.get("/", here, *without, "Sec-WebSocket-Protocol: holdfast.9, chat")[0] == 400
    assert (
        relay.get(
            "/", here, *[h for h in UPGRADE if "Version" not in h], "Sec-WebSocket-Version: 8"
        )[0]
        == 400
    )
    assert relay.get("/other", here, *UPGRADE)[0] == 404
    assert relay.get("/index.html", here)[0] == 404
    assert relay.get("/metrics", here)[0] == 404
    status, text = relay.get("/", here)
    assert status == 200 and text.endswith(
        "\r\n\r\nthis is a relay for holdfast; it has no pages\n"
    )
    with socket.create_connection(("127.0.0.1", relay.port), WAIT_S) as sock:
        sock.sendall(
            "\r\n".join(
                [
                    "GET / HTTP/1.1",
                    here,
                    *UPGRADE,
                    "Sec-WebSocket-Extensions: permessage-deflate",
                    "",
                    "",
                ]
            ).encode()
        )
        assert b"extensions" not in sock.recv(65536).lower()


def test_a_token_in_a_query_is_refused_and_not_logged(start: Start) -> None:
    relay = start()
    token = relay.token()
    for path in (f"/?token={token}", f"/?access_token={token}", f"/healthz?{token}", "/?"):
        status, text = relay.get(path, f"Host: 127.0.0.1:{relay.port}", *UPGRADE)
        assert status == 400 and token not in text
    assert token not in relay.logged()


def test_metrics_have_amounts_and_no_identities(start: Start) -> None:
    relay = start("--metrics", "127.0.0.1:0")
    where = relay.urls["metrics"][7:]

    async def body() -> None:
        token = relay.token("secretive")
        async with host(relay.url, token) as h, client(relay.url) as c:
            await h.register()
            here, _ = await c.open(h)
            await c.send(outer.Watch(h.route, h.passes[0]), outer.Data(here, b"content"))
            await h.expect(outer.Data)
            status, page = relay.get("/metrics", f"Host: {where}", url=relay.urls["metrics"])
            assert status == 200
            for line in (
                "holdfast_relay_hosts 1",
                "holdfast_relay_clients 1",
                "holdfast_relay_streams 1",
                "holdfast_relay_payload_bytes_total 7",
                "holdfast_relay_watches 1",
                "holdfast_relay_connections 2",
                "holdfast_relay_registrations_total 1",
            ):
                assert f"\n{line}\n" in page, line
            body_ = page.partition("\r\n\r\n")[2]
            for secret in ("secretive", h.route.hex(), "127.0.0.1", token, "content", "{"):
                assert secret not in body_
        assert relay.get("/metrics", "Host: evil.example", url=relay.urls["metrics"])[0] == 421
        assert (
            relay.get(
                "/metrics",
                f"Host: {where}",
                "Origin: https://app.example",
                url=relay.urls["metrics"],
            )[0]
            == 403
        )
        assert relay.get("/metrics?x", f"Host: {where}", url=relay.urls["metrics"])[0] == 404
        assert relay.get("/healthz", f"Host: {where}", url=relay.urls["metrics"])[0] == 200

    script(body)


def test_nothing_secret_is_logged_or_kept(start: Start, tmp_path: Path) -> None:
    relay = start()
    payload = b"PAYLOAD-THAT-NOBODY-MUST-SEE"

    async def body() -> list[bytes]:
        token = relay.token()
        async with host(relay.url, token) as h, client(relay.url) as c, client(relay.url) as wrong:
            await h.register()
            here, _ = await c.open(h)
            await c.send(outer.Data(here, payload))
            await h.expect(outer.Data)
            await wrong.send(outer.Open(1, h.route, b"W" * 32))
            await wrong.expect(outer.Close)
            await wrong.raw(b"\xff" * 10 + payload)
            await wrong.ended()
            with pytest.raises(InvalidStatus):
                await dial(relay.url, token[:-1] + ("A" if token[-1] != "A" else "B"))
            return [
                token.encode(),
                token[8:].encode(),
                h.passes[0],
                b"W" * 32,
                h.passes[0].hex().encode(),
                h.secret,
                payload,
            ]

    secrets: list[bytes] = []

    async def kept() -> None:
        secrets.extend(await body())

    script(kept)
    relay.stop()
    found = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {p.name for p in found} >= {"relay.log", "relay.db"}
    for path in found:
        content = path.read_bytes()
        for secret in secrets:
            assert secret not in content, f"{secret[:12]!r} in {path.name}"
    assert all(p.stat().st_mode & 0o077 == 0 for p in found if p.parent.name == "relay")
