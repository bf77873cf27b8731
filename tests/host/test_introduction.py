"""The time limit of an introduction counts while the host waits for the client, and only then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.link import Link
from holdfast.home import Home
from holdfast.host.engine import Engine
from holdfast.host.requests.host import Host
from holdfast.host.runtime import connection
from holdfast.host.runtime.hot_loop import HotLoop
from holdfast.host.server import Server
from holdfast.model import signing
from holdfast.transport import unix
from holdfast.wire import frames
from tests.support.installed_copy import engine, eventually

LIMIT_S = 0.3


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HELLO_WAIT_S", LIMIT_S)


def serve(path: Path, story: Callable[[Engine, Server], Awaitable[None]]) -> None:
    async def main() -> None:
        async with engine(path) as made:
            host = Host(made, lambda how: None)
            server = Server(made, host, unix.listen(made.home.host_socket))
            try:
                await story(made, server)
            finally:
                server.close("restart", "the test is over")

    with asyncio.Runner(loop_factory=HotLoop) as runner:
        runner.run(main())


class Newcomer:
    """A client that sends the frames of an introduction one by one."""

    def __init__(self, home: Home) -> None:
        self._sock = unix.connect(home.host_socket, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._splitter = frames.Splitter(frames.FROM_HOST)

    async def hello(self) -> None:
        words: dict[str, Any] = {
            "version": frames.VERSION,
            "lowest": frames.LOWEST,
            "client": 7,
            "operator": "ann",
            "modality": "test",
            "key": signing.show(signing.public(signing.generate())),
        }
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._sock, frames.pack_json(frames.HELLO, words))

    async def receive(self) -> tuple[int, bytes]:
        while True:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 1 << 16)
            assert data, "the host closed the connection without a word"
            for kind, payload in self._splitter.feed(data):
                return kind, bytes(payload)

    async def sent_away(self) -> None:
        kind, payload = await self.receive()
        assert kind == frames.BYE and frames.read_json(payload)["reason"] == "protocol"
        self._sock.close()


def test_t4_a_client_that_says_nothing_is_sent_away(tmp_path: Path) -> None:
    async def story(made: Engine, server: Server) -> None:
        await Newcomer(made.home).sent_away()
        assert not server.connections

    serve(tmp_path, story)


def test_t4_a_client_has_the_same_time_for_its_proof_and_no_more(tmp_path: Path) -> None:
    async def story(made: Engine, server: Server) -> None:
        newcomer = Newcomer(made.home)
        await eventually(lambda: server.connections, "the host to accept the connection")
        [one] = server.connections
        due = one._hello_timer.when()
        await newcomer.hello()
        assert (await newcomer.receive())[0] == frames.CHALLENGE
        assert one._hello_timer.when() > due, "the time before the host read the hello is counted"
        await newcomer.sent_away()

    serve(tmp_path, story)


def test_a_client_that_has_proved_its_key_waits_for_a_busy_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk takes long to make a new operator durable."""

    async def story(made: Engine, server: Server) -> None:
        at_once = made.authority.first_identity

        async def slow(*args: Any) -> Any:
            await Newcomer(made.home).sent_away()  # came later, and its time is over
            return await at_once(*args)

        monkeypatch.setattr(made.authority, "first_identity", slow)
        link = Link(made.home, "ann", autostart=False)
        await asyncio.to_thread(link.connect)
        assert link.welcome
        link.close()

    serve(tmp_path, story)
