"""`POST /hook/ROUTE/NAME`: a provider's HTTP request, carried to the service behind a route.

The request comes in plain text, as providers know no key of ours: TLS ends at this relay. The
service checks the provider's signature, so a relay can read, drop or delay a request and cannot
forge one. A `Webhook` is a client of the hub with a single stream, so the registry's rules hold:
the pass (core/sealed/route.py), credit, quotas and the tenant's rate. The body is read only after
the service has accepted the stream, and no faster than its credit allows.

A refused request gets a status of this relay: 404 for an unknown route, 429 over a rate, 503 while
the service is away, 504 without an answer in time, 502 for an invalid answer. Every connection ends
after one answer.
"""

from __future__ import annotations

import asyncio
import re
import time
from http.client import responses
from typing import TYPE_CHECKING, Final

from holdfast.core.sealed import route as routes
from holdfast.model import base64url, limits
from holdfast.model.errors import PeerFault
from holdfast.relay.admission import Admission, Approach, TurnedAway, by_browser
from holdfast.transport.page import GUARDED
from holdfast.wire import carried, outer

if TYPE_CHECKING:
    from holdfast.relay.hub import Hub, Visit
    from holdfast.relay.state import Route

STREAM: Final = 1
HEAD_BYTES: Final = 16 * limits.KiB
HEAD_END: Final = b"\r\n\r\n"
PATH: Final = re.compile(r"/hook/([A-Za-z0-9_-]{22})/([A-Za-z0-9._-]{1,64})", re.ASCII)
HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*", re.ASCII)
# Headers of the connection, and credentials that no service needs from a provider.
KEPT_BACK: Final = frozenset(
    ("host", "connection", "content-length", "authorization", "cookie", "expect", "keep-alive")
)
STATUS: Final = {
    outer.REFUSED: (404, "nothing is here"),
    outer.OFFLINE: (503, "the service is not connected"),
    outer.REPLACED: (503, "the service is not connected"),
    outer.AWAY: (503, "the relay or the service restarts"),
    outer.LIMIT: (429, "too many requests"),
    outer.TIMEOUT: (504, "the service did not answer"),
}
FAILED: Final = (502, "the service did not answer this request")


class Webhook(asyncio.Protocol):
    """A connection with one request; a Carrier of the hub once the request is admitted."""

    def __init__(self, hub: Hub, visit: Visit, reached: tuple[str, ...]) -> None:
        self._hub, self._visit, self._reached = hub, visit, reached
        self._number = 0  # 0: not admitted
        self._in = bytearray()  # the head of the request; then bytes that wait for credit
        self._body_left = -1  # bytes to come; -1: the head is not whole
        self._credit = 0
        self._answer = carried.Incoming()
        self._came: list[outer.Frame] = []
        self._blocks: set[str] = set()  # reasons not to read
        self._finished = self._lost = False
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(
            limits.RELAY_HOOK_BODY_S, self._respond, 408, "the request did not come in time"
        )

    # ------------------------------------------------------------ asyncio

    def takes_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Continues a connection whose first bytes are `data`."""
        self._transport = transport
        self._hub.sockets.add(self)
        transport.set_protocol(self)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        if self._body_left >= 0:
            self._take(data)
            return
        self._in += data
        end = self._in.find(HEAD_END)
        if end < 0 and len(self._in) <= HEAD_BYTES:
            return
        try:
            if end < 0 or end > HEAD_BYTES:
                raise TurnedAway(431, "the head of the request is too large")
            head, rest = bytes(self._in[:end]), bytes(self._in[end + len(HEAD_END) :])
            self._in.clear()
            self._admit(head, rest)
        except TurnedAway as refused:
            self._hub.counts["turned_away"] += 1
            self._respond(refused.status, refused.reason)

    def eof_received(self) -> bool:
        return False  # a provider waits for the answer with its connection open

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._finished = True
        self._timer.cancel()
        self._visit.over()
        self._hub.sockets.discard(self)
        self._hub.gone(self._number)

    # ------------------------------------------------------------ the request

    def _admit(self, head: bytes, rest: bytes) -> None:
        """Opens a stream for the request. Raises TurnedAway without one."""
        path, headers = _parsed(head)
        approach = Approach(
            tuple(value for name, value in headers if name == "host"), (), (), self._reached
        )
        names = self._hub.doorkeeper.called(approach)
        if by_browser(name for name, _ in headers) or any(name == "origin" for name, _ in headers):
            raise TurnedAway(403, "this is not for pages")
        found = PATH.fullmatch(path)
        if found is None:
            raise TurnedAway(404, "nothing is here")
        length = _length(headers)
        try:
            route = base64url.decode(found[1])
        except ValueError:
            raise TurnedAway(404, "nothing is here") from None
        known = self._hub.registry.route_table.get(route)
        if known is not None and not _within_rate(known, time.monotonic()):
            raise TurnedAway(429, "too many requests")
        given = {name: value for name, value in headers if name not in KEPT_BACK}
        try:
            self._in += carried.head(carried.Request(found[2], given, length))
        except ValueError:
            raise TurnedAway(431, "the head of the request is too large") from None
        self._body_left = length
        self._block("accept")
        self._take(rest)
        self._number = self._hub.connected(self, Admission(names, None), self._visit)
        self._say(outer.Hello(outer.LOWEST, outer.VERSION, outer.CLIENT, "webhook"))
        self._say(outer.Open(STREAM, route, routes.hook_pass(route)))
        self._hub.flush()

    def _take(self, data: bytes) -> None:
        """Keeps bytes of the body; bytes beyond its length are dropped."""
        data = data[: self._body_left]
        self._in += data
        self._body_left -= len(data)
        if not self._body_left and "answer" not in self._blocks:
            self._block("answer")
            self._wait(limits.RELAY_HOOK_ANSWER_S, 504, "the service did not answer")
        self._pass_on()

    def _pass_on(self) -> None:
        """Sends what credit allows; reads no more while bytes wait."""
        while self._in and self._credit and not self._finished:
            piece = bytes(self._in[: min(self._credit, limits.SEALED_BYTES)])
            del self._in[: len(piece)]
            self._credit -= len(piece)
            self._say(outer.Data(STREAM, piece))
        (self._block if self._in else self._unblock)("credit")
        self._hub.flush()

    def _say(self, frame: outer.Frame) -> None:
        if self._number:
            self._hub.received(self._number, outer.encode(frame))

    # ------------------------------------------------------------ Carrier

    def send(self, data: bytes) -> None:
        self._came.append(outer.decode(data))

    def flush(self) -> None:
        came, self._came = self._came, []
        for frame in came:
            if not self._finished:
                self._handle(frame)

    def finish(self, code: int) -> None:
        self.flush()
        self._respond(*STATUS.get(code, FAILED))

    def pause(self, seconds: float) -> None:
        self._block("rate")
        self._loop.call_later(seconds, self._unblock, "rate")

    def hold(self, held: bool) -> None:
        (self._block if held else self._unblock)("held")

    def queued(self) -> int:
        return 0

    def taken(self) -> int:
        return 0

    # ------------------------------------------------------------ the answer

    def _handle(self, frame: outer.Frame) -> None:
        match frame:
            case outer.Accept():
                self._credit = limits.STREAM_WINDOW_BYTES
                self._unblock("accept")
                self._pass_on()
            case outer.Credit(_, amount):
                self._credit += amount
                self._pass_on()
            case outer.Data(_, payload):
                self._answered(payload)
            case outer.Close(_, code, _):
                self._respond(*STATUS.get(code, FAILED))
            case outer.Ping(mark):
                self._say(outer.Pong(mark))

    def _answered(self, payload: bytes) -> None:
        try:
            whole = self._answer.feed(payload)
        except PeerFault:
            return self._respond(*FAILED)
        if whole:
            told = self._answer.head
            if isinstance(told, carried.Answer):
                self._write(told.status, told.type, self._answer.body)
            else:
                self._respond(*FAILED)

    def _respond(self, status: int, text: str) -> None:
        self._write(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _write(self, status: int, kind: str, body: bytes) -> None:
        """Answers, and ends the connection soon; bytes that still arrive are discarded."""
        if self._finished:
            return
        self._finished = True
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *GUARDED,
            *((("Retry-After", "2"),) if status in (429, 503) else ()),
        ]
        lines = (f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} {responses.get(status, 'Other')}\r\n{''.join(lines)}\r\n"
        self._timer.cancel()
        if self._transport.is_closing():
            return
        self._blocks.clear()
        self._transport.resume_reading()
        self._transport.write(head.encode("latin-1") + body)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        self._timer = self._loop.call_later(limits.RELAY_STOP_S, self._transport.abort)
        self._loop.call_soon(self._hub.gone, self._number)

    # ------------------------------------------------------------ reading

    def _wait(self, seconds: float, status: int, text: str) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._respond, status, text)

    def _block(self, why: str) -> None:
        self._blocks.add(why)
        if not self._finished and not self._transport.is_closing():
            self._transport.pause_reading()

    def _unblock(self, why: str) -> None:
        self._blocks.discard(why)
        if not self._blocks and not self._finished and not self._transport.is_closing():
            self._transport.resume_reading()


def _within_rate(route: Route, now: float) -> bool:
    """Counts a request: a burst, then a steady rate."""
    passed = (now - route.hooks_at) * limits.RELAY_HOOKS_PER_S
    route.hooks_left = min(limits.RELAY_HOOKS_BURST, route.hooks_left + passed)
    route.hooks_at = now
    if route.hooks_left < 1:
        return False
    route.hooks_left -= 1
    return True


def _parsed(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    """The path, and the headers in order with names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise TurnedAway(400, "this is not a request")
    if words[0] != "POST" or "?" in words[1]:
        raise TurnedAway(400, "no query, and POST to a webhook only")
    headers = list[tuple[str, str]]()
    for line in lines:
        found = HEADER.fullmatch(line)
        if found is None:
            raise TurnedAway(400, "this is not a header")
        headers.append((found[1].lower(), found[2]))
    return words[1], headers


def _length(headers: list[tuple[str, str]]) -> int:
    given = [value for name, value in headers if name == "content-length"]
    if any(name == "transfer-encoding" for name, _ in headers) or not given:
        raise TurnedAway(411, "the length of the body has to be stated")
    if len(given) != 1 or not given[0].isascii() or not given[0].isdigit() or len(given[0]) > 9:
        raise TurnedAway(400, "this is not a length")
    if int(given[0]) > limits.CARRIED_BODY_BYTES:
        raise TurnedAway(413, f"a body has at most {limits.CARRIED_BODY_BYTES} bytes")
    return int(given[0])
