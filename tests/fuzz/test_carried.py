"""Bytes of a relay at a service, and of a service at a relay: a carried message or a PeerFault."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import canonical
from holdfast.model.errors import PeerFault
from holdfast.wire import carried

VALUES = st.none() | st.booleans() | st.integers(-1, 700) | st.text(max_size=5)
FIELDS = st.sampled_from(["v", "name", "headers", "length", "status", "type", "more"])
HEADS = st.dictionaries(FIELDS, VALUES | st.dictionaries(st.text(max_size=5), VALUES, max_size=2))


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(carried.LENGTH_BYTES, "big") + text


@given(
    st.binary(max_size=40)
    | st.binary(max_size=40).map(framed)
    | HEADS.map(lambda head: framed(canonical.encode({"v": 1, **head}))),
    st.integers(1, 60),
)
def test_any_bytes_are_a_message_or_refused(data: bytes, step: int) -> None:
    message = carried.Incoming()
    try:
        for at in range(0, len(data), step):
            message.feed(data[at : at + step])
    except PeerFault:
        return
    if message.head is not None:
        assert carried.head(message.head) + message.body == data
