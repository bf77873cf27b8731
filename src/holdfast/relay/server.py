"""The WebSocket server: HTTP and WebSocket over TCP or TLS.

Each connection is an asyncio protocol around the sans-I/O `websockets.server.ServerProtocol`. The
library's own asyncio server needs tasks, queues and a timer for each connection, and hides the
queue whose length must be bounded. Here a connection is two small objects, and bytes go from one
socket's callback to the other's without a task in between.

The server accepts sockets itself, so that strangers are counted before TLS costs anything, and so
that a certificate can change for the next handshake. It answers `GET /` with a line of text, and
`/healthz`; a POST is a webhook's (webhooks.py). It serves no page, sets no cookie, and refuses any
URL with a query, because a secret there would end up in a log. Compression is off: sealed bytes do
not compress, and the size of other bytes would reveal their content. Fragments are joined up to the
size of a frame; text messages are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdfast.model import limits
from holdfast.relay.admission import Admission, Approach, TurnedAway, by_browser
from holdfast.relay.hub import Hub, Visit
from holdfast.relay.webhooks import Webhook
from holdfast.transport import accepting
from holdfast.transport.messages import Cutter
from holdfast.transport.page import SILENT, at, from_a_page, method, response
from holdfast.wire import outer

SUBPROTOCOL = Subprotocol("holdfast.1")
PATH = "/"
CLOSE_WAIT_S = 2.0  # for the peer to close a connection that we ended
HEAD_BYTES = 16 * limits.KiB  # of a request: the most that a stranger can make us keep
FRAGMENTS_MAX = 128  # of one message
ACCEPT_PAUSE_S = 0.1  # after a failed accept, most likely for lack of descriptors
CLOSE_CODES = {
    outer.DONE: 1000,
    outer.AWAY: 1012,
    outer.SLOW: 1013,
    outer.LIMIT: 1013,
    outer.PROTOCOL: 1002,
    outer.UNSPOKEN: 1002,
    outer.FLOW: 1002,
    outer.FAILED: 1011,
}
POLICY = 1008  # every other reason
log = logging.getLogger("holdfast.relay")


class WebSocket(asyncio.Protocol):
    """A connection from its HTTP request on; a Carrier of the hub once upgraded."""

    def __init__(self, hub: Hub, visit: Visit) -> None:
        self._hub, self._visit = hub, visit
        self._protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL], max_size=limits.OUTER_BYTES, logger=SILENT
        )
        self._cutter = Cutter(self._protocol, limits.OUTER_BYTES)
        self._number = 0  # 0: not upgraded
        self._head = 0  # bytes of the request
        self._out: list[bytes] = []
        self._written = 0
        self._fragments: list[bytes] = []
        self._finished = False
        self._held = False
        self._lost = False
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until TLS is through
        self._pausing: asyncio.TimerHandle | None = None
        self._timer = asyncio.get_running_loop().call_later(limits.RELAY_HELLO_S, self._abort)

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._transport.set_write_buffer_limits(high=limits.RELAY_PRESSURE_BYTES)
        self._hub.sockets.add(self)
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        protocol = self._protocol
        if not self._number:
            if not self._head and data.startswith(b"P"):  # POST; a WebSocket begins with GET
                self._hub.sockets.discard(self)
                self._timer.cancel()
                hook = Webhook(self._hub, self._visit, self._reached())
                return hook.takes_over(self._transport, data)
            self._head += len(data)
            if self._head > HEAD_BYTES:
                return self._transport.abort()
        for event in self._cutter.feed(data):
            if self._finished:
                break
            if type(event) is bytes:
                self._hub.received(self._number, event)
            elif isinstance(event, Frame):
                self._frame(event)
            elif isinstance(event, Request):
                self._request(event)
        if protocol.writes:  # pongs, closes, responses
            self._library()
        self.flush()
        # The library answers pings itself, so the hub does not see these bytes.
        if self.queued() > limits.RELAY_QUEUE_BYTES:
            self._hub.broken(self._number, outer.SLOW, "too much waits for this connection")
        self._hub.flush()

    def pause_writing(self) -> None:
        self._hub.pressed(self._number)

    def resume_writing(self) -> None:
        self._hub.relieved(self._number)

    def eof_received(self) -> bool:
        return False  # half-open connections are of no use here

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._finished = True
        self._timer.cancel()
        self._visit.over()
        self._hub.sockets.discard(self)
        self._hub.gone(self._number)

    # ------------------------------------------------------------ HTTP

    def _request(self, request: Request) -> None:
        try:
            admission = self._admit(request)
        except TurnedAway as refused:
            self._hub.counts["turned_away"] += refused.status != HTTPStatus.OK
            self._respond(refused.status, refused.reason)
            return
        response = self._protocol.accept(request)
        if response.status_code != 101:
            return self._respond(
                response.status_code,
                "this is a relay for holdfast: it speaks WebSocket, subprotocol holdfast.1",
            )
        self._protocol.send_response(response)
        self._library()
        self._timer.cancel()
        self._number = self._hub.connected(self, admission, self._visit)

    def _admit(self, request: Request) -> Admission:
        headers = request.headers
        approach = Approach(
            tuple(headers.get_all("Host")),
            tuple(headers.get_all("Origin")),
            tuple(headers.get_all("Authorization")),
            self._reached(),
            by_browser(name for name, _ in headers.raw_items()),
        )
        path = request.path
        if "?" in path or method(request) != "GET":
            raise TurnedAway(400, "no query, no method but GET")
        if "Upgrade" not in headers:
            self._hub.doorkeeper.called(approach)
            if from_a_page(headers):
                raise TurnedAway(403, "this is not for pages")
            if path in (PATH, "/healthz"):
                raise TurnedAway(
                    200, "ok" if path != PATH else "this is a relay for holdfast; it has no pages"
                )
        if path != PATH:
            raise TurnedAway(404, "nothing is here")
        return self._hub.doorkeeper.admit(approach, time.time())

    def _reached(self) -> tuple[str, ...]:
        """Return the address of our own end, as in a URL."""
        host, port, *_ = self._transport.get_extra_info("sockname") or ("", 0)
        return at(host, port, self._transport.get_extra_info("sslcontext") is not None)

    def _respond(self, status: int, text: str) -> None:
        more = {401: ("WWW-Authenticate", "Bearer"), 426: ("Upgrade", "websocket")}
        headers = [("Server", "holdfast"), *([more[status]] if status in more else ())]
        kind = "text/plain; charset=utf-8"
        self._protocol.send_response(response(HTTPStatus(status), kind, f"{text}\n", headers))
        self._library()

    # ------------------------------------------------------------ WebSocket

    def _frame(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.BINARY and frame.fin:
            self._hub.received(self._number, bytes(frame.data))
        elif opcode is Opcode.BINARY or (opcode is Opcode.CONT and self._fragments):
            self._fragments.append(bytes(frame.data))
            if len(self._fragments) > FRAGMENTS_MAX:  # empty ones would never be too large
                self._hub.broken(self._number, outer.PROTOCOL, "too many fragments")
            elif frame.fin:
                whole, self._fragments = b"".join(self._fragments), []
                self._hub.received(self._number, whole)
        elif opcode is Opcode.TEXT or opcode is Opcode.CONT:
            self._hub.broken(self._number, outer.PROTOCOL, "frames are binary messages")
        elif opcode is not Opcode.CLOSE:
            self._hub.heard(self._number, len(frame.data))

    def _library(self) -> None:
        """Write the library's output, in order with ours."""
        for data in self._protocol.data_to_send():
            if data:
                self._out.append(data)
            else:
                self.flush()
                self._ends()

    def _ends(self) -> None:
        """Finish our side. Bytes that still arrive are discarded for a moment.

        Closing at once could destroy our last bytes.
        """
        self._finished = True
        self._timer.cancel()
        if self._pausing is not None:
            self._pausing.cancel()
        if self._lost or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_WAIT_S, self._abort)
        self._hub.gone(self._number)

    def _abort(self) -> None:
        if not self._lost and self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ Carrier

    def send(self, data: bytes) -> None:
        if not self._finished:
            self._out.append(_header(len(data)))
            self._out.append(data)

    def flush(self) -> None:
        if self._out:
            data, self._out = b"".join(self._out), []
            if not self._transport.is_closing():
                self._written += len(data)
                self._transport.write(data)

    def finish(self, code: int) -> None:
        if self._finished:
            return
        if self._protocol.state is OPEN:
            self._protocol.fail(CLOSE_CODES.get(code, POLICY), outer.CODES[code])
        self._library()

    def pause(self, seconds: float) -> None:
        if not self._finished and not self._transport.is_closing():
            if self._pausing is not None:
                self._pausing.cancel()
            self._transport.pause_reading()
            self._pausing = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pausing = None
        self._read_on()

    def hold(self, held: bool) -> None:
        self._held = held
        if not held:
            self._read_on()
        elif not self._finished and not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if (
            self._pausing is None
            and not self._held
            and not self._lost
            and not self._transport.is_closing()
        ):
            self._transport.resume_reading()

    def queued(self) -> int:
        return 0 if self._lost else self._transport.get_write_buffer_size()

    def taken(self) -> int:
        return self._written - self.queued()


def _header(size: int) -> bytes:
    """Return the header of a whole binary message from a server."""
    if size < 126:
        return bytes((0x82, size))
    return (
        b"\x82\x7e" + size.to_bytes(2, "big")
        if size < 65536
        else b"\x82\x7f" + size.to_bytes(8, "big")
    )


class Door:
    """The listening socket: accepts connections while there is room."""

    def __init__(
        self,
        hub: Hub,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext | None],
        protocol: Callable[[Hub, Visit], asyncio.Protocol] = WebSocket,
    ) -> None:
        self._hub, self._listener, self._context, self._protocol = hub, listener, context, protocol
        self._greeting: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._accept())
        self._task.add_done_callback(lambda _: listener.close())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await accepting.accept(self._listener)
            except OSError as e:
                if e.errno != errno.ECONNABORTED:
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            visit = self._hub.knock(address[0])
            if visit is None:
                sock.close()
                continue
            task = loop.create_task(self._greet(sock, visit))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, sock: socket.socket, visit: Visit) -> None:
        loop, context = asyncio.get_running_loop(), self._context()
        made = self._protocol(self._hub, visit)
        try:
            if context is None:
                await loop.connect_accepted_socket(lambda: made, sock)
            else:
                await loop.connect_accepted_socket(
                    lambda: made,
                    sock,
                    ssl=context,
                    ssl_handshake_timeout=limits.RELAY_HELLO_S,
                    ssl_shutdown_timeout=CLOSE_WAIT_S,
                )
        except (OSError, asyncio.CancelledError):
            sock.close()
            visit.over()

    def stop(self) -> None:
        """Accept no new connections; existing ones stay."""
        self._task.cancel()
        for task in self._greeting:
            task.cancel()


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(limits.RELAY_STRANGERS_MAX)
    except BaseException:
        sock.close()
        raise
    return sock
