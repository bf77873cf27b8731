"""The HTTP server: a listening socket, and uvicorn with time limits on it.

uvicorn limits the time between requests, not the time that a request line and its headers take.
`Patience` adds that limit, so that slow clients cannot keep all connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.model.address import loopback
from holdfast.model.errors import Refused, Unavailable

HEAD_BYTES: Final = 32 * 1024  # of an unfinished request line with its headers
HEAD_S: Final = 10.0  # until they have come as a whole
IDLE_S: Final = 15  # between two requests
CONNECTIONS_MAX: Final = 256
LEAVE_S: Final = 2  # for requests under way when the server stops
BACKLOG: Final = 64

Application = Callable[..., Awaitable[None]]


class Patience(H11Protocol):
    """Closes a connection whose request does not come as a whole within HEAD_S."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.trailing_data[0]:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Counts the time unless a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self._too_slow)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def listening(address: tuple[str, int], tls: bool, plain: bool) -> socket.socket:
    """A listening socket. Beyond loopback a token must not cross the network in clear."""
    host, port = address
    if not loopback(host) and not tls and not plain:
        raise Refused(
            f"{host} can be reached from other machines, and tokens would cross the network "
            "in clear",
            "give --tls-cert and --tls-key, or --plain behind a proxy that adds TLS",
        )
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as e:
        made.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {e.strerror}",
            "--listen 127.0.0.1:0 takes any free port",
        ) from e
    return made


def names(made: socket.socket, more: Iterable[str]) -> frozenset[str]:
    """The values of the Host header that mean this server."""
    host, port = made.getsockname()[:2]
    own = [f"[{host}]" if ":" in host else host, *more]
    if loopback(host):
        own += ["localhost", "127.0.0.1", "[::1]"]
    default = (80, 443)
    found = {f"{name}:{port}" for name in own} | set(more)
    return frozenset(one.lower() for one in found | (set(own) if port in default else set()))


def uvicorn_server(app: Application, tls: tuple[str, str] | None) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=Patience,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,  # an address may contain a secret that a client put there by mistake
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=LEAVE_S,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ssl_certfile=None if tls is None else tls[0],
        ssl_keyfile=None if tls is None else tls[1],
    )
    return uvicorn.Server(config)


def run(server: uvicorn.Server, made: socket.socket) -> None:
    asyncio.run(server.serve(sockets=[made]))


def serve(made: socket.socket, app: Application, tls: tuple[str, str] | None) -> None:
    """Serves until SIGINT or SIGTERM."""
    try:
        run(uvicorn_server(app, tls), made)
    except (ssl.SSLError, FileNotFoundError) as e:
        raise Unavailable(f"cannot use the certificate: {e}", "--tls-cert and --tls-key") from e
    except KeyboardInterrupt:
        pass
