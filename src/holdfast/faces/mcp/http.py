"""MCP over streamable HTTP on loopback. Every request carries the token of the agent's operator.

The token is a file of the home, mode 0600: a process that can read it could also read the key of
the operator. The library refuses foreign values of the headers Host and Origin, and long bodies.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from typing import TYPE_CHECKING, Any, Final

from holdfast.faces.http import server as http
from holdfast.home import Home, private
from holdfast.model.address import endpoint
from holdfast.model.ids import check_name

if TYPE_CHECKING:
    import socket

    from mcp.server.lowlevel import Server

    from holdfast.faces.mcp.calls import Calls

PATH: Final = "/mcp"
TOKEN_BYTES: Final = 32
FILE_BYTES: Final = 256
REFUSED: Final = b'{"error": "the header Authorization has not the token of this server"}'


def token(home: Home, operator: str) -> tuple[str, str]:
    """The token of an operator, made with the first call, and the path of its file."""
    directory = f"{home.state}/mcp"
    path = f"{directory}/{check_name(operator)}.token"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if (found := private.read(path, FILE_BYTES)) is None:
        fresh = f"{path}.{os.getpid()}"
        private.write(fresh, f"hf_{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode())
        with contextlib.suppress(FileExistsError):  # another server was faster
            os.link(fresh, path)
        os.unlink(fresh)
        found = private.read(path, FILE_BYTES)
    return (found or b"").decode().strip(), path


class Guard:
    """Passes on requests that carry the token."""

    def __init__(self, app: http.Application, token: str) -> None:
        self._app, self._wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": REFUSED})
                return
        await self._app(scope, receive, send)


def listening(address: str) -> tuple[socket.socket, str]:
    """A listening socket on loopback, and the address for clients."""
    made = http.listening(endpoint(address), tls=False, plain=False)
    host, port = made.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return made, f"http://{shown}:{port}{PATH}"


def serve(made: socket.socket, server: Server[Calls], token: str) -> None:
    """Serves until SIGINT or SIGTERM."""
    app = server.streamable_http_app(streamable_http_path=PATH)
    http.serve(made, Guard(app, token), None)
