"""One live connection: sends frames, and hands each received frame to the answered request.

The queue of a request is bounded by the credit that the request gives the host: a caller that does
not read its parts delays no other request. An older host takes no credit; then the whole connection
pauses until the caller reads. Bytes for the host (STDIN frames) are sent as far as the host allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final

from holdfast.client.engine.parts import Data, Event, Gap, Part, Reply
from holdfast.client.gone import HostGone, parting_error
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError, PeerFault, TimedOut, Usage, from_wire
from holdfast.model.limits import DOWNSTREAM_WINDOW_BYTES, REQUEST_BYTES
from holdfast.wire import frames

QUEUE_BYTES: Final = 4 << 20  # of a request, before the connection pauses
EVENT_BYTES: Final = 512  # what an event counts for
PIECE_BYTES: Final = 64 * 1024  # of a STDIN frame: between two, other requests can send


class NoAnswer(TimedOut):
    """The connection stands, and no answer came in time."""


class Exchange:
    """A request under way: its parts, then a reply or an error."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire, self.number = wire, number
        self._parts: deque[Part | Exception] = deque()
        self._woken = asyncio.Event()
        self._bytes = 0
        self.over = False  # the host has answered, or the connection ended
        self._read, self._credit = 0, DOWNSTREAM_WINDOW_BYTES  # bytes of DATA
        self._sent = self._allowed = 0  # bytes of STDIN
        self._may_send = asyncio.Event()
        self.complete = False  # the host has said that the receiver can read all of it

    def put(self, part: Part | HoldfastError) -> None:
        self.over = self.over or isinstance(part, Reply | HoldfastError)
        self._parts.append(part)
        self._bytes += _size(part)
        if self._bytes > QUEUE_BYTES:
            self._wire.pause(self)
        self._woken.set()
        if self.over:
            self._may_send.set()

    async def next(self) -> Part:
        while not self._parts:
            self._woken.clear()
            await self._woken.wait()
        part = self._parts.popleft()
        self._bytes -= _size(part)
        if self._bytes <= QUEUE_BYTES // 2:
            self._wire.go_on(self)
        if isinstance(part, Exception):
            raise part
        if isinstance(part, Data):
            self._give_credit(len(part.data))
        return part

    def _give_credit(self, count: int) -> None:
        self._read += count
        if self._credit - self._read <= DOWNSTREAM_WINDOW_BYTES // 2 and not self.over:
            self._credit = self._read + DOWNSTREAM_WINDOW_BYTES
            self._wire.credit(self.number, self._credit)

    # ------------------------------------------------------------ out

    def allow(self, event: dict[str, Any]) -> None:
        """The host takes bytes up to an offset, or has passed on all of them."""
        self.complete = self.complete or bool(event.get("done"))
        self._allowed = int(event["until"])
        self._may_send.set()

    async def send(self, data: bytes | memoryview) -> bool:
        """Sends bytes when the host is ready; False if the request is over. None: the end."""
        left = memoryview(data)
        while not self.over:
            if left and self._allowed <= self._sent:
                self._may_send.clear()
                await self._may_send.wait()
                continue
            piece = left[: min(PIECE_BYTES, self._allowed - self._sent)]
            if not await self._wire.send_bytes(self, self._sent, bytes(piece)):
                return False
            self._sent += len(piece)
            left = left[len(piece) :]
            if not left:
                return True
        return False

    def failed(self, why: Exception) -> None:
        """The source of the bytes failed: the caller gets the error, and the request is left."""
        self._parts.append(why)
        self._woken.set()


def _size(part: Part | Exception) -> int:
    return len(part.data) if isinstance(part, Data) else EVENT_BYTES


Feed = Callable[[Exchange], Awaitable[None]]  # sends the bytes for a request, anew on each wire


class Wire(asyncio.Protocol):
    """`attached`: gets the frames of an attachment, and events that belong to no request."""

    def __init__(self, link: Link, attached: Callable[[int, bytes], None] | None = None) -> None:
        self._link, self._attached = link, attached
        self.changed = asyncio.Event()  # set when the connection is lost
        self._credited = "credit" in (link.welcome.get("takes") or ())
        self._exchanges: dict[int, Exchange] = {}
        self._number = 0
        self._paused: set[object] = set()
        self._writable = asyncio.Event()
        self._writable.set()
        self.transport: asyncio.Transport | None = None
        self.gone: HoldfastError | None = None

    @classmethod
    async def over(cls, link: Link, attached: Callable[[int, bytes], None] | None = None) -> Wire:
        """Takes the socket of a connected link."""
        assert link.sock is not None
        sock, link.sock = socket.socket(fileno=link.sock.detach()), None
        sock.setblocking(False)
        wire = cls(link, attached)
        wire.transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: wire, sock=sock
        )
        wire._take(link.take_ready())
        return wire

    # ------------------------------------------------------------ requests

    async def ask(self, body: dict[str, Any], wait_s: float | None) -> dict[str, Any]:
        """The reply to a request."""
        async with contextlib.aclosing(self.parts(body, wait_s)) as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    return part.body
        raise PeerFault("an answer without a reply")

    async def parts(
        self, body: dict[str, Any], wait_s: float | None, feed: Feed | None = None
    ) -> AsyncGenerator[Part, None]:
        """Sends a request and gives the parts of the answer. Closing it early cancels the request.

        `wait_s`: for each part; without limit once an approver has to decide. `feed`: sends bytes
        for the request meanwhile.
        """
        exchange = self._send(body)
        feeding = None if feed is None else asyncio.create_task(_fed(feed, exchange))
        try:
            await self._writable.wait()
            while True:
                try:
                    async with asyncio.timeout(wait_s):
                        part = await exchange.next()
                except TimeoutError as e:
                    raise NoAnswer(
                        "the host does not answer", "it may be stopped; sessions are not affected"
                    ) from e
                if isinstance(part, Event) and part.name == "held":
                    wait_s = None
                yield part
                if isinstance(part, Reply):
                    return
        finally:
            if feeding is not None:
                feeding.cancel()
            self._leave(exchange)

    def _send(self, body: dict[str, Any]) -> Exchange:
        if self.gone is not None or self.transport is None:
            raise self.gone or HostGone("not connected")
        request = frames.request(self._number + 1, body)
        if len(request) > REQUEST_BYTES:
            raise Usage(
                f"the request has {len(request)} bytes; at most {REQUEST_BYTES} are accepted",
                "shorten the environment, the command or the text",
            )
        self._number += 1
        exchange = self._exchanges[self._number] = Exchange(self, self._number)
        self.transport.write(request)
        return exchange

    def _leave(self, exchange: Exchange) -> None:
        """Forgets a request, and cancels a request that the host has not answered."""
        self._exchanges.pop(exchange.number, None)
        self.go_on(exchange)
        if not exchange.over and self.gone is None and self.transport is not None:
            self.transport.write(frames.cancel(exchange.number))

    def write(self, frame: bytes) -> None:
        if self.gone is None and self.transport is not None:
            self.transport.write(frame)

    def credit(self, number: int, until: int) -> None:
        if self._credited:
            self.write(frames.credit(number, until))

    async def send_bytes(self, exchange: Exchange, start: int, data: bytes) -> bool:
        """Sends bytes for a request; False if the request is over."""
        await self._writable.wait()
        if exchange.over or self.gone is not None or self.transport is None:
            return False
        self.transport.write(frames.stdin(exchange.number, start, data))
        return True

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    # ------------------------------------------------------------ in

    def pause(self, reader: object) -> None:
        if self.transport is not None and not self._paused:
            self.transport.pause_reading()
        self._paused.add(reader)

    def go_on(self, reader: object) -> None:
        if reader in self._paused:
            self._paused.discard(reader)
            if self.transport is not None and not self._paused:
                self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            self._take(self._link.splitter.feed(data))
        except PeerFault as e:
            self._end(e)

    def _take(self, received: Iterable[tuple[int, bytes]]) -> None:
        for kind, payload in received:
            if kind == frames.REPLY:
                number, ok, body = frames.read_reply(payload)
                self._give(
                    number, Reply(body) if ok else self._link.seen_from_here(from_wire(body))
                )
            elif kind == frames.DATA:
                number, start, end, data = frames.read_data(memoryview(payload))
                self._give(number, Data(start, end, bytes(data)))
            elif kind == frames.GAP:
                number, start, end, _ = frames.read_data(memoryview(payload))
                self._give(number, Gap(start, end))
            elif kind == frames.EVENT:
                body = frames.read_json(payload)
                event = Event(str(body.get("event")), body)
                request = body.get("request")
                if event.name == "stdin" and (asked := self._exchanges.get(request or 0)):
                    asked.allow(body)
                elif isinstance(request, int):
                    self._give(request, event)
                elif self._attached is not None:
                    self._attached(kind, payload)
            elif kind in (frames.OUTPUT, frames.SCREEN) and self._attached is not None:
                self._attached(kind, payload)
            elif kind == frames.BYE:
                self._end(parting_error(frames.read_json(payload)))

    def _give(self, number: int, part: Part | HoldfastError) -> None:
        if (exchange := self._exchanges.get(number)) is not None:
            exchange.put(part)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(HostGone(self._link.line_error(0) or "the connection to the host ended"))

    def _end(self, why: HoldfastError) -> None:
        if self.gone is None:
            self.gone = why
            self.changed.set()
            self._writable.set()
            for exchange in self._exchanges.values():
                if not exchange.over:
                    exchange.put(why)
            self.close()


async def _fed(feed: Feed, exchange: Exchange) -> None:
    try:
        await feed(exchange)
    except Exception as e:
        exchange.failed(e)
