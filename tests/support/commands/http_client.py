"""A server of `holdfast http` and a client without manners: any header, any bytes."""

from __future__ import annotations

import http.client
import json
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from tests.support.installation import DEADLINE_S, Installation

OPERATOR = "web"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> str:
        return str(self.json["error"]["name"])


class Told(NamedTuple):
    """A server-sent event."""

    name: str
    id: str | None
    body: Any


@dataclass
class Server:
    """A server under test. `token`: the header of each request, unless another is given."""

    hf: Installation
    process: subprocess.Popen[bytes]
    url: str
    token: str = ""
    opened: list[http.client.HTTPConnection] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    def ask(
        self,
        op: str,
        act: dict[str, Any] | bytes | None = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
        **query: Any,
    ) -> Answer:
        """A GET, or with `act` a POST of a JSON object."""
        with closing(http.client.HTTPConnection(*self.address, timeout=DEADLINE_S)) as connection:
            self._send(connection, op, act, token, headers, method, query)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def _send(
        self,
        connection: http.client.HTTPConnection,
        op: str,
        act: dict[str, Any] | bytes | None,
        token: str | None,
        headers: dict[str, str] | None,
        method: str | None,
        query: dict[str, Any],
    ) -> None:
        path = (op if op.startswith("/") else f"/v1/{op}") + (
            f"?{urlencode({k.rstrip('_'): v for k, v in query.items()}, True)}" * bool(query)
        )
        given = {"Authorization": f"Bearer {self.token if token is None else token}"}
        body = None if act is None else act if isinstance(act, bytes) else json.dumps(act).encode()
        if body is not None:
            given["Content-Type"] = "application/json"
        method = method or ("GET" if body is None else "POST")
        connection.request(method, path, body, {**given, **(headers or {})})

    def stream(
        self,
        op: str,
        act: dict[str, Any] | None = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Iterator[Told]:
        """Server-sent events, until the server ends the stream or the caller leaves."""
        connection = http.client.HTTPConnection(*self.address, timeout=DEADLINE_S)
        with closing(connection):
            more = {"Accept": "text/event-stream", **(headers or {})}
            self._send(connection, op, act, token, more, None, query)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield from _events(answer)

    def raw(self, data: bytes) -> bytes:
        """All that the server says to these bytes, until it closes the connection."""
        with socket.create_connection(self.address, DEADLINE_S) as made:
            made.sendall(data)
            return read_all(made)


def read_all(made: socket.socket) -> bytes:
    found = b""
    while select.select([made], [], [], DEADLINE_S)[0] and (piece := made.recv(65536)):
        found += piece
    return found


def _events(answer: http.client.HTTPResponse) -> Iterator[Told]:
    name, id, data = "", None, ""
    for line in answer:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "id":
            id = value
        elif key == "data":
            data = value
        elif not key and name:
            yield Told(name, id, json.loads(data))
            name, id, data = "", None, ""


def make_token(hf: Installation, name: str, *args: str) -> str:
    made = json.loads(hf.quick("--as", OPERATOR, "http", "token", "add", name, "--json", *args))
    return str(made["token"])


def start(hf: Installation, *args: str) -> Server:
    """The operator `web` serves; the token `all` has all its rights."""
    process = hf.start("--as", OPERATOR, "http", "--listen", "127.0.0.1:0", "--json", *args)
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return Server(hf, process, json.loads(line)["url"])
