"""A stream that has lost its connection harms no other stream of the line (S4)."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, cast

from holdfast.core.sealed import channel
from holdfast.core.sealed.meeting import Meeting
from holdfast.core.sealed.tunnel import Tunnel
from holdfast.host.relays.uplink import Stream, Uplink
from holdfast.model.agreement import public
from holdfast.wire import outer

ROUTE, HOST, CLIENT = bytes(16), bytes(range(32)), bytes(range(1, 33))


class Line:
    """The line as a stream sees it; keeps the connection's end of the pair, and the sent frames."""

    full = spent = unsure = False
    tried = 0
    password: bytes | None = None

    def __init__(self) -> None:
        self.server, self.sent, self.ended = self, list[outer.Frame](), 0
        self.theirs: socket.socket

    def channel(self) -> channel.Channel:
        return (
            channel.responder(ROUTE, HOST, time.monotonic())
            if self.password is None
            else Meeting(False, ROUTE, HOST, self.password, time.monotonic())
        )

    def admit(self, sock: socket.socket, name: str, on_the_way: Any) -> bool:
        self.theirs = sock
        return True

    def send(self, frame: outer.Frame) -> None:
        self.sent.append(frame)

    def gone(self, stream: Stream, code: int | None, reason: str) -> None:
        self.ended += 1

    def begun(self) -> None:
        self.tried += 1
        self.spent = self.spent or self.unsure  # the host could not record the attempt

    def failed(self) -> None:
        assert self.password is not None and not self.spent, (
            "the handshake was sound, or was looked at though the guess was used"
        )
        self.spent = True


def test_s4_data_for_a_closed_connection_ends_only_its_stream() -> None:
    async def body() -> None:
        line = Line()
        stream, client = (
            Stream(cast(Uplink, line), 1),
            Tunnel(channel.initiator(ROUTE, CLIENT, public(HOST), time.monotonic())),
        )
        for payload in client.start(0.0):
            stream.data(payload)
        for frame in list(line.sent):
            assert isinstance(frame, outer.Data)
            client.data(frame.payload, 0.0)
        for payload in client.put(b"hello", 0.0):
            stream.data(payload)
        assert line.theirs.recv(100) == b"hello" and stream._reading
        line.theirs.close()
        for payload in client.put(b"too late", 0.0):
            # The host has closed the connection; this stream does not know that yet.
            stream.data(payload)
        assert stream.closed and line.ended == 1
        stream.data(b"whatever")
        stream.credit(1)
        assert line.ended == 1

    asyncio.run(body())


def test_t2_of_simultaneously_prepared_guesses_only_the_first_counts() -> None:
    """Wrong, wrong and right, each a single message before the answer: only the first counts."""

    async def body() -> None:
        line, ready = Line(), list[tuple[Stream, bytes]]()
        line.password = b"p" * 32
        for number, guess in enumerate((b"a" * 32, b"b" * 32, b"p" * 32), 1):
            stream, joiner = (
                Stream(cast(Uplink, line), number),
                Meeting(True, ROUTE, CLIENT, guess, time.monotonic()),
            )
            said = list(joiner.start().send)
            for _ in range(2):
                seen = len(line.sent)
                for message in said:
                    stream.data(message)
                said = [
                    answer
                    for frame in line.sent[seen:]
                    if isinstance(frame, outer.Data)
                    for answer in joiner.receive(frame.payload, 0.0).send
                ]
            ready.append((stream, said[0]))
        for stream, last in ready:
            stream.data(last)
        assert line.spent and line.ended == 3 and all(stream.closed for stream, _ in ready)
        assert not any(stream._tunnel.channel.established for stream, _ in ready)

    asyncio.run(body())


def test_t2_an_attempt_is_stored_before_it_is_answered() -> None:
    async def body() -> None:
        line = Line()
        line.password, line.unsure = b"p" * 32, True
        stream, joiner = (
            Stream(cast(Uplink, line), 1),
            Meeting(True, ROUTE, CLIENT, line.password, time.monotonic()),
        )
        for message in joiner.start().send:
            stream.data(message)
        assert stream.closed and line.tried == 1 and line.sent == []

    asyncio.run(body())
