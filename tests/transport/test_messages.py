"""Messages cut without the library equal the library's own, in any pieces, on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import Protocol, State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri
from websockets.utils import apply_mask

from holdfast.transport import messages
from holdfast.transport.messages import Cutter, masked
from tests.support.examples import examples

LARGEST = 70_000
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def server() -> tuple[Protocol, bytes]:
    """A server that waits for a request, and the bytes of a request."""
    return ServerProtocol(max_size=LARGEST), REQUEST


def client() -> tuple[Protocol, bytes]:
    """A client that waits for a response, and the bytes of a response."""
    made, other = ClientProtocol(parse_uri("ws://relay/"), max_size=LARGEST), ServerProtocol()
    made.send_request(made.connect())
    other.receive_data(b"".join(made.data_to_send()))
    [request] = other.events_received()
    other.send_response(other.accept(request))  # type: ignore[arg-type]
    return made, b"".join(other.data_to_send())


def answered(protocol: Protocol, event: Any) -> None:
    if (
        isinstance(protocol, ServerProtocol)
        and protocol.state is State.CONNECTING
        and hasattr(event, "headers")
    ):
        protocol.send_response(protocol.accept(event))
        protocol.data_to_send()


def by_library(protocol: Protocol, head: bytes, frames: bytes) -> list[Any]:
    protocol.receive_data(head)
    for event in protocol.events_received():
        answered(protocol, event)
    protocol.receive_data(frames)
    return [seen(event) for event in protocol.events_received()]


def by_cutter(protocol: Protocol, data: bytes, cuts: Sequence[int]) -> list[Any]:
    cutter, found, at = Cutter(protocol, LARGEST), [], 0
    for cut in [*sorted(cuts), len(data)]:
        for event in cutter.feed(data[at:cut]):
            if hasattr(event, "headers"):
                answered(protocol, event)
            else:
                found.append(seen(event))
        at = cut
    return found


def seen(event: Any) -> Any:
    return (
        (Opcode.BINARY, event, True)
        if isinstance(event, bytes)
        else (event.opcode, bytes(event.data), event.fin)
    )


def frames(mask: bool) -> st.SearchStrategy[bytes]:
    data = st.one_of(
        st.binary(max_size=200), st.integers(100, LARGEST + 10).map(lambda n: b"x" * n)
    )
    opcodes = st.sampled_from(
        (Opcode.BINARY, Opcode.BINARY, Opcode.BINARY, Opcode.CONT, Opcode.TEXT)
    )
    plain = st.builds(
        lambda o, d, fin: Frame(o, d if o is not Opcode.TEXT else b"text", fin).serialize(
            mask=mask
        ),
        opcodes,
        data,
        st.sampled_from((True, True, False)),
    )
    control = st.builds(
        lambda o, d: Frame(o, d).serialize(mask=mask),
        st.sampled_from((Opcode.PING, Opcode.PONG)),
        st.binary(max_size=125),
    )
    end = st.just(
        Frame(Opcode.CLOSE, Close(CloseCode.NORMAL_CLOSURE, "").serialize()).serialize(mask=mask)
    )
    unmasked = st.just(Frame(Opcode.BINARY, b"of the wrong side").serialize(mask=not mask))
    return st.one_of(plain, plain, plain, control, end, unmasked, st.binary(max_size=20))


@pytest.mark.parametrize("side", [server, client])
@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_messages_equal_those_of_the_library(side: Any, data: st.DataObject) -> None:
    sent = b"".join(data.draw(st.lists(frames(side is server), max_size=8)))
    (here, head), (there, same) = side(), side()
    cuts = data.draw(st.lists(st.integers(0, len(head) + len(sent)), max_size=12))
    assert by_cutter(here, head + sent, cuts) == by_library(there, same, sent)
    assert here.state is there.state and here.close_sent == there.close_sent


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, LARGEST])
def test_a_packed_message_is_one_for_the_library(size: int) -> None:
    protocol, head = server()
    message = bytes(range(256)) * (size // 256 + 1)
    [frame] = by_library(protocol, head, masked(message[:size]))
    assert frame == (Opcode.BINARY, message[:size], True)


def test_a_message_that_arrives_byte_by_byte_is_one_message() -> None:
    protocol, head = server()
    assert by_cutter(protocol, head + masked(b"slowly" * 100), range(len(head) + 608)) == [
        (Opcode.BINARY, b"slowly" * 100, True)
    ]


def test_the_slower_mask_does_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library was installed without its compiled part."""
    monkeypatch.setattr(messages, "apply_mask", apply_mask)
    protocol, head = server()
    assert by_cutter(protocol, head + masked(b"slowly" * 100), (len(head) + 100,)) == [
        (Opcode.BINARY, b"slowly" * 100, True)
    ]
