from __future__ import annotations

import socket

import pytest
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from holdfast.model.limits import OUTER_BYTES
from holdfast.transport.messages import Cutter
from holdfast.transport.websocket import WebSocket


def made(sock: socket.socket) -> WebSocket:
    protocol = ClientProtocol(parse_uri("ws://localhost"))
    return WebSocket(sock, protocol, Cutter(protocol, OUTER_BYTES))


class Moved(socket.socket):
    """A machine that had an address for documentation (RFC 5737), which no real machine has."""

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.77", 4711


@pytest.mark.parametrize("kind, stranded", [(socket.socket, False), (Moved, True)])
def test_a_connection_from_an_address_that_is_gone_is_known(
    kind: type[socket.socket], stranded: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, kind() as sock:
        sock.connect(server.getsockname())
        assert made(sock).stranded() is stranded


def test_a_socket_without_an_address_is_not_stranded() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert not made(one).stranded()
