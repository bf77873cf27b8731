"""The line to another machine: data before the end is handed on, in any pieces (T3)."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest

from holdfast.client.remote import STREAM, Line
from holdfast.core.sealed import channel
from holdfast.core.sealed.tunnel import Tunnel
from holdfast.model.agreement import public
from holdfast.wire import outer

ROUTE, HOST, CLIENT = bytes(16), bytes(range(32)), bytes(range(1, 33))


class Nowhere:
    """Takes the frames for a relay."""

    pending = 0

    def send(self, message: bytes) -> None:
        assert outer.decode(message, outer.FROM_CLIENT)


def line() -> tuple[Line, Tunnel, socket.socket]:
    here, there = (
        Tunnel(channel.initiator(ROUTE, CLIENT, public(HOST), 0.0)),
        Tunnel(channel.responder(ROUTE, HOST, 0.0)),
    )
    for payload in here.start(0.0):
        for answer in there.data(payload, 0.0).send:
            here.data(answer, 0.0)
    for payload in here.put(b"hello", 0.0):
        there.data(payload, 0.0)
    theirs, ours = socket.socketpair()
    theirs.settimeout(20.0)
    return Line("box", cast(Any, Nowhere()), here, ours), there, theirs


@pytest.mark.parametrize("said", [True, False])
def test_t3_the_last_words_come_before_the_end_also_in_one_piece(said: bool) -> None:
    made, there, user = line()
    payloads = [*there.put(b"the last words", 1.0), *(there.end(1.0) if said else ())]
    made._from_relay(
        [
            *(outer.encode(outer.Data(STREAM, payload)) for payload in payloads),
            outer.encode(outer.Close(STREAM, outer.AWAY)),
        ]
    )
    assert user.recv(100) == b"the last words" and made._over
    assert made.why == ("" if said else "box went away")
    user.close()
    made._sock.close()
