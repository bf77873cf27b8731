"""Frames of a stranger at a relay, and of a relay at a host or client.

The decoder gives the typed error or exactly one frame.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import limits
from holdfast.model.errors import PeerFault
from holdfast.wire import contract_pb2, outer
from tests.support.examples import examples
from tests.support.peers.outer_frames import GOOD

NUMBERS = (
    st.integers(0, 3)
    | st.integers(0, 2**32 - 1)
    | st.sampled_from([limits.STREAM_WINDOW_BYTES, 2**31, 2**32 - 1])
)
BYTES = st.sampled_from([0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]).flatmap(
    lambda n: st.binary(min_size=n, max_size=n)
)
TEXT = st.text(max_size=10) | st.integers(60, 210).map(lambda n: "x" * n)


def values(field: Any) -> st.SearchStrategy[Any]:
    kinds = {
        field.CPPTYPE_UINT32: NUMBERS,
        field.CPPTYPE_UINT64: NUMBERS | st.integers(0, 2**64 - 1),
        field.CPPTYPE_BOOL: st.booleans(),
        field.CPPTYPE_ENUM: st.integers(-1, 20),
    }
    one = kinds.get(field.cpp_type, BYTES if field.type == field.TYPE_BYTES else TEXT)
    return st.lists(one, max_size=4) if repeated(field) else one


def repeated(field: Any) -> bool:
    """Protobuf 7 has an attribute for this, protobuf 4 has the label."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Any message that the contract's library can write."""
    kind: Any = draw(st.sampled_from(list(contract_pb2.Frame.DESCRIPTOR.fields)))
    fields = {f.name: draw(values(f)) for f in kind.message_type.fields if draw(st.booleans())}
    return bytes(
        contract_pb2.Frame(
            **{kind.name: getattr(contract_pb2, kind.message_type.name)(**fields)}
        ).SerializeToString()
    )


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A sound frame with bytes changed, cut out, repeated or put in."""
    data = bytearray(outer.encode(draw(st.sampled_from(list(GOOD.values())))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        what = draw(st.integers(0, 3))
        if what == 0 and at < len(data):
            data[at] ^= draw(st.integers(1, 255))
        elif what == 1:
            del data[at : at + draw(st.integers(1, 8))]
        elif what == 2:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 20))]
    return bytes(data)


def judged(data: bytes) -> outer.Frame | None:
    try:
        frame = outer.decode(data)
    except PeerFault as e:
        assert e.message and len(e.message) < 500
        return None
    again = outer.encode(frame)  # a decoded frame can be encoded, is as long, and says the same
    assert len(again) == len(data) and outer.decode(again) == frame
    return frame


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda a, b: a + b,
        st.sampled_from([b"\x4a", b"\x4a\x05\x08", b"\x0a\x04"]),
        st.binary(max_size=60),
    )
)
def test_noise(data: bytes) -> None:
    judged(data)


@settings(max_examples=examples(400))
@given(messages())
def test_any_message_of_the_contract_is_a_frame_or_malformed(data: bytes) -> None:
    frame = judged(data)
    if frame is not None:
        assert contract_pb2.Frame.FromString(outer.encode(frame)) == contract_pb2.Frame.FromString(
            data
        )


@settings(max_examples=examples(400))
@given(mangled())
def test_mangled_frames(data: bytes) -> None:
    judged(data)


@given(
    st.integers(1, 2**32 - 1),
    st.integers(1, 300) | st.sampled_from([16_383, 16_384, limits.SEALED_BYTES]),
)
def test_data_is_written_as_the_library_would(stream: int, length: int) -> None:
    payload = bytes(length)
    data = contract_pb2.Frame(
        data=contract_pb2.Data(stream=stream, payload=payload)
    ).SerializeToString()
    assert outer.encode(outer.Data(stream, payload)) == data
    assert outer.decode(data) == outer.Data(stream, payload)
