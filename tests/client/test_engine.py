"""The engine's requests on one connection, against a host that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.client.engine.lane import Lane
from holdfast.client.engine.parts import Data, Reply
from holdfast.client.engine.wire import Exchange
from holdfast.client.signing import SigningTarget
from holdfast.core.record.record import MACHINE
from holdfast.model.limits import DOWNSTREAM_WINDOW_BYTES
from holdfast.wire import frames
from tests.support.installation import DEADLINE_S
from tests.support.peers import scripted_host
from tests.support.peers.scripted_host import Peer

CHUNK = bytes(64 * 1024)
HALF = DOWNSTREAM_WINDOW_BYTES // 2


def sends(peer: Peer, number: int, count: int) -> None:
    for start in range(0, count, len(CHUNK)):
        header = frames.data_header(number, start, start + len(CHUNK), len(CHUNK))
        peer.sock.sendall(header + CHUNK)


@contextmanager
def taking(*words: str) -> Iterator[None]:
    """WELCOME of hosts in this block names these words."""
    before = dict(scripted_host.WELCOME)
    scripted_host.WELCOME["takes"] = list(words)
    yield
    scripted_host.WELCOME.clear()
    scripted_host.WELCOME.update(before)


@pytest.mark.parametrize("takes", [("stdin",), ("stdin", "credit")])
def test_s4_credit_goes_to_hosts_that_take_it_and_to_no_older_host(
    tmp_path: Path, takes: tuple[str, ...]
) -> None:
    def play(peer: Peer) -> None:
        peer.welcome()
        number, _ = peer.request()
        sends(peer, number, HALF)
        if "credit" in takes:
            kind, payload = peer.next()
            assert kind == frames.CREDIT
            assert frames.read_credit(payload) == (number, HALF + DOWNSTREAM_WINDOW_BYTES)
        peer.sock.sendall(frames.reply(number, {}))
        number, body = peer.request()  # an older host gets no frame that it does not know
        assert body["op"] == "ping"
        peer.sock.sendall(frames.reply(number, {}))

    async def work() -> None:
        lane = Lane(link)
        read = 0
        async for part in lane.stream("read", {"session": "s", "from": 0}):
            read += len(part.data) if isinstance(part, Data) else 0
        assert read == HALF
        assert [type(part) async for part in lane.stream("ping", {})] == [Reply]
        await lane.close()

    with taking(*takes), scripted_host.host(tmp_path, play) as link:
        asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_s2_bytes_for_a_request_wait_for_the_host(tmp_path: Path) -> None:
    sent = bytes(range(256)) * 1024

    def play(peer: Peer) -> None:
        peer.welcome()
        number, _ = peer.request()
        got, allowed = b"", 0
        while len(got) < len(sent):
            allowed += 100_000
            event = {"event": "stdin", "request": number, "until": allowed}
            peer.sock.sendall(frames.pack_json(frames.EVENT, event))
            while len(got) < min(allowed, len(sent)):
                kind, payload = peer.next()
                at, start, data = frames.read_stdin(payload)
                assert (kind, at, start) == (frames.STDIN, number, len(got))
                got += data
                assert len(got) <= allowed
        assert frames.read_stdin(peer.next()[1]) == (number, len(sent), b"")
        assert got == sent
        peer.sock.sendall(frames.reply(number, {}))

    async def feed(exchange: Exchange) -> None:
        assert await exchange.send(sent)
        assert await exchange.send(b"")

    async def work() -> None:
        lane = Lane(link)
        assert [type(part) async for part in lane.stream("ping", {}, feed=feed)] == [Reply]
        await lane.close()

    with scripted_host.host(tmp_path, play) as link:
        asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_a9_the_failure_of_a_source_reaches_the_caller(tmp_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.welcome()
        number, _ = peer.request()
        kind, payload = peer.next()
        assert (kind, frames.read_cancel(payload)) == (frames.CANCEL, number)

    async def feed(exchange: Exchange) -> None:
        raise FileNotFoundError("gone")

    async def work() -> None:
        lane = Lane(link)
        with pytest.raises(FileNotFoundError):
            async for _ in lane.stream("ping", {}, feed=feed):
                pass
        await lane.close()

    with scripted_host.host(tmp_path, play) as link:
        asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_r1_an_answer_about_another_session_changes_no_incarnation() -> None:
    """`new` of a name that exists is an act on the machine, and answers with a session's epoch."""
    machine = SigningTarget(MACHINE, 1, None)
    machine.acknowledged({"id": "e866w0pqdvxe", "epoch": 2})
    assert machine.epoch == 1
    session = SigningTarget("e866w0pqdvxe", 1, None)
    session.acknowledged({"id": "e866w0pqdvxe", "epoch": 2})
    assert session.epoch == 2
