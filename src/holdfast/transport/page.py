"""A single page over HTTP on a loopback address, for Prometheus: one request, one answer, close.

The page answers only requests for its own address, and none that come from another web page: a name
that points at 127.0.0.1 or a person's browser cannot read the page. The caller makes sure that the
address is a loopback address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, cast

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from holdfast.model import limits

GUARDED: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
# The library would log headers, and tokens are headers
SILENT: Final = logging.Logger("holdfast.websockets", logging.CRITICAL + 1)


def from_a_page(headers: Headers) -> bool:
    """Tell whether a web page made the request, rather than a person or a program."""
    return bool(headers.get_all("Origin")) or any(
        site.lower() != "none" for site in headers.get_all("Sec-Fetch-Site")
    )


def method(request: Request) -> str:
    """The method of an HTTP request; before release 17 the library accepts and names GET only."""
    return getattr(request, "method", "GET")


def at(host: str, port: int, secure: bool) -> tuple[str, ...]:
    """List the spellings of an address and port as an authority, without a default port too."""
    name = f"[{host.partition('%')[0]}]" if ":" in host else host
    names = (f"{name}:{port}", *((f"localhost:{port}",) if host in ("127.0.0.1", "::1") else ()))
    if port == (443 if secure else 80):
        names += tuple(n.rpartition(":")[0] for n in names)
    return names


def response(
    status: HTTPStatus, kind: str, text: str, more: Sequence[tuple[str, str]] = ()
) -> Response:
    """Make an answer that ends the connection."""
    body = text.encode()
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *GUARDED,
        *more,
    ]
    return Response(status, status.phrase, Headers(headers), body)


class Page(asyncio.Protocol):
    """`text` renders the page for each request; `over` is called once the connection is gone."""

    def __init__(
        self, text: Callable[[], str], kind: str, over: Callable[[], None] = lambda: None
    ) -> None:
        self._text, self._kind, self._over = text, kind, over
        self._protocol = ServerProtocol(max_size=0, logger=SILENT)
        self._transport: asyncio.Transport | None = None
        self._timer = asyncio.get_running_loop().call_later(limits.RELAY_HELLO_S, self._abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's class does not derive from it

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
        for out in self._protocol.data_to_send():
            if out and self._transport is not None:
                self._transport.write(out)
            else:
                self._close()

    def _answer(self, request: Request) -> None:
        assert self._transport is not None
        host, port, *_ = self._transport.get_extra_info("sockname")
        headers = request.headers
        body = ""
        if [h.lower() for h in headers.get_all("Host")] not in [
            [name] for name in at(host, port, False)
        ]:
            status = HTTPStatus.MISDIRECTED_REQUEST
        elif from_a_page(headers):
            status = HTTPStatus.FORBIDDEN
        elif method(request) != "GET" or request.path not in ("/metrics", "/healthz"):
            status = HTTPStatus.NOT_FOUND
        else:
            status = HTTPStatus.OK
            body = self._text() if request.path == "/metrics" else "ok\n"
        self._protocol.send_response(response(status, self._kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._over()

    def _abort(self) -> None:
        """Abort a connection whose peer does not read the answer in time."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
