"""Requests to a relay's webhooks that no honest provider sends, and services that misbehave."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.core.sealed import route as routes
from holdfast.model import base64url, limits
from holdfast.wire import carried, outer
from tests.support.commands.certificates import certificate
from tests.support.relays import WAIT_S, Host, RelayProcess, host


def script(body: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 5 * WAIT_S))


async def service(end: Host) -> str:
    """Registers a route that takes webhooks; gives the path of the webhook `x`."""
    end.passes = [routes.hook_pass(end.route)]
    return f"/hook/{base64url.encode(await end.register())}/x"


class Provider:
    """A connection to the relay, with exactly these bytes."""

    def __init__(self, relay: RelayProcess, tls: ssl.SSLContext | None = None) -> None:
        self._address, self._tls = urlsplit(relay.url), tls
        self.name = self._address.netloc

    async def send(self, data: bytes) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._address.hostname, self._address.port, ssl=self._tls
        )
        self._writer.write(data)
        with suppress(OSError):
            await self._writer.drain()

    async def status(self) -> int:
        try:
            answer = await asyncio.wait_for(self._reader.read(), WAIT_S)
        finally:
            self._writer.close()
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        return int(answer.split(b" ", 2)[1])

    async def post(self, path: str, body: bytes = b"{}", *headers: str, length: int = -1) -> None:
        size = len(body) if length < 0 else length
        lines = (f"POST {path} HTTP/1.1", f"Host: {self.name}", f"Content-Length: {size}", *headers)
        await self.send("\r\n".join((*lines, "", "")).encode("latin-1") + body)


def test_t6_only_a_plain_post_to_a_webhook_gets_a_stream(tmp_path: Path) -> None:
    async def body() -> None:
        async with host(relay.url, relay.token()) as h, host(relay.url, relay.token()) as other:
            path, provider = await service(h), Provider(relay)
            machine = f"/hook/{base64url.encode(await other.register())}/x"
            unknown = f"/hook/{base64url.encode(bytes(16))}/x"
            for wanted, where, headers in (
                (404, machine, ()),
                (404, unknown, ()),
                (404, "/", ()),
                (404, path + "/y", ()),
                (404, path[:-1] + "%2e", ()),
                (400, path + "?token=x", ()),
                (400, path, ("Content-Length: 2",)),
                (400, path, ("broken",)),
                (400, path, (" folded: x",)),
                (411, path, ("Transfer-Encoding: chunked",)),
                (403, path, ("Origin: https://page.example",)),
                (403, path, ("Sec-Fetch-Site: cross-site",)),
                (403, path, ("Cookie: a=b",)),
                (421, path, ("Host: other.example",)),
                (431, path, ("X: " + "y" * 20_000,)),
            ):
                await provider.post(where, b"{}", *headers)
                assert await provider.status() == wanted, (where, headers)
            size = limits.CARRIED_BODY_BYTES + 1
            await provider.post(path, b"", length=size)
            assert await provider.status() == 413
            await provider.send(f"PUT {path} HTTP/1.1\r\nHost: {provider.name}\r\n\r\n".encode())
            assert await provider.status() == 400
            await h.no_more_frames()
            await other.no_more_frames()

    with RelayProcess(str(tmp_path / "relay")) as relay:
        script(body)


def test_t6_a_request_reaches_the_service_without_credentials(tmp_path: Path) -> None:
    async def body() -> None:
        async with host(relay.url, relay.token()) as h:
            path, provider = await service(h), Provider(relay)
            await provider.post(path, b"body", "Authorization: Bearer x", "X-Event: push")
            stream, message = await h.accept(), carried.Incoming()
            while not message.feed((await h.expect(outer.Data)).payload):
                pass
            assert message.head == carried.Request("x", {"x-event": "push"}, 4)
            assert message.body == b"body"
            answer = carried.head(carried.Answer(299, "text/plain", 2)) + b"ok"
            await h.send(*(outer.Data(stream, answer[at : at + 1]) for at in range(len(answer))))
            assert await provider.status() == 299

    with RelayProcess(str(tmp_path / "relay")) as relay:
        script(body)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff" * 8,
        carried.head(carried.Request("x", {}, 0)),
        carried.head(carried.Answer(200, "text/plain", 1)) + b"more",
        carried.head(carried.Answer(200, "a\r\nSet-Cookie: x", 0)),
        carried.head(carried.Answer(101, "text/plain", 0)),
        carried.head(carried.Answer(200, "text/plain", limits.CARRIED_ANSWER_BYTES + 1)),
    ],
)
def test_t6_an_invalid_answer_becomes_502(tmp_path: Path, answer: bytes) -> None:
    async def body() -> None:
        async with host(relay.url, relay.token()) as h:
            provider = Provider(relay)
            await provider.post(await service(h))
            await h.send(outer.Data(await h.accept(), answer))
            assert await provider.status() == 502

    with RelayProcess(str(tmp_path / "relay")) as relay:
        script(body)


def test_t6_slow_peers_are_answered_and_every_stream_ends(tmp_path: Path) -> None:
    async def body() -> None:
        async with host(relay.url, relay.token()) as h:
            path, provider = await service(h), Provider(relay)
            await provider.post(path, b"{", length=2)
            slow = await h.accept()
            assert await provider.status() == 408
            assert (await h.wait_for(outer.Close)).stream == slow
            await provider.post(path)
            silent = await h.accept()
            assert await provider.status() == 504, "the service does not answer"
            assert (await h.wait_for(outer.Close)).stream == silent
            for code, wanted in ((outer.LIMIT, 429), (outer.FAILED, 502), (outer.DONE, 502)):
                await provider.post(path)
                await h.send(outer.Close(await h.accept(), code, ""))
                assert await provider.status() == wanted
        await provider.post(path)
        assert await provider.status() == 503, "the service is away"

    few = {"RELAY_HOOK_BODY_S": 1.0, "RELAY_HOOK_ANSWER_S": 1.0}
    with RelayProcess(str(tmp_path / "relay"), limits=few) as relay:
        script(body)


def test_t6_a_relay_holds_no_more_of_a_body_than_the_credit(tmp_path: Path) -> None:
    async def body() -> None:
        async with host(relay.url, relay.token()) as h:
            provider, size = Provider(relay), limits.CARRIED_BODY_BYTES
            sending = asyncio.create_task(provider.post(await service(h), bytes(size)))
            stream, message, got = await h.accept(), carried.Incoming(), 0
            while got < limits.STREAM_WINDOW_BYTES:
                payload = (await h.expect(outer.Data)).payload
                got += len(payload)
                assert not message.feed(payload)
            await h.no_more_frames()
            whole = False
            await h.send(outer.Credit(stream, got))
            while not whole:
                payload = (await h.expect(outer.Data)).payload
                whole = message.feed(payload)
                await h.send(outer.Credit(stream, len(payload)))
            assert message.body == bytes(size)
            await h.send(outer.Data(stream, carried.head(carried.Answer(200, "a/b", 0))))
            assert await provider.status() == 200
            await sending

    with RelayProcess(str(tmp_path / "relay")) as relay:
        script(body)


def test_t6_a_webhook_comes_by_tls(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path, "localhost", 1, ("127.0.0.1",))
    trusted = ssl.create_default_context(cafile=chain)

    async def body() -> None:
        async with host(relay.url, relay.token(), ssl=trusted) as h:
            provider, size = Provider(relay, trusted), limits.STREAM_WINDOW_BYTES // 2
            sending = asyncio.create_task(provider.post(await service(h), bytes(size)))
            stream, message = await h.accept(), carried.Incoming()
            while not message.feed((await h.expect(outer.Data)).payload):
                pass
            assert message.body == bytes(size)
            answer = carried.head(carried.Answer(202, "a/b", 40_000)) + bytes(40_000)
            await h.send(outer.Data(stream, answer))
            await sending
            assert await provider.status() == 202

    options = ("--tls-cert", str(chain), "--tls-key", str(key), "--name", "127.0.0.1")
    with RelayProcess(str(tmp_path / "relay"), *options) as relay:
        script(body)


def test_t6_a_route_has_a_rate_of_webhooks(tmp_path: Path) -> None:
    async def body() -> None:
        async with host(relay.url, relay.token()) as h:
            path, provider = await service(h), Provider(relay)
            for wanted in (502, 502, 429):
                await provider.post(path)
                if wanted != 429:
                    await h.send(outer.Close(await h.accept(), outer.FAILED, ""))
                assert await provider.status() == wanted
            await h.send(outer.Ping(b"anything"))
            while not isinstance(frame := await h.next(), outer.Pong):
                assert not isinstance(frame, outer.Incoming), "a stream beyond the rate"

    few = {"RELAY_HOOKS_BURST": 2.0, "RELAY_HOOKS_PER_S": 0.0001}
    with RelayProcess(str(tmp_path / "relay"), limits=few) as relay:
        script(body)
