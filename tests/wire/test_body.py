"""The content of sealed messages: five shapes, one spelling each, the same as the contract's."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.model.errors import PeerFault
from holdfast.model.limits import BODY_BYTES, SEALED_BYTES
from holdfast.wire import body, contract_pb2


@given(st.integers(1, 70_000))
@example(127)
@example(128)
@example(16_383)
@example(16_384)
@example(BODY_BYTES)
@example(BODY_BYTES + 1)
def test_data_bodies_equal_those_of_the_contract(length: int) -> None:
    plain = bytes(length)
    if length > BODY_BYTES:
        with pytest.raises(ValueError):
            body.data(plain)
        with pytest.raises(PeerFault):
            body.read(contract_pb2.Body(data=plain).SerializeToString())
        return
    assert body.data(plain) == contract_pb2.Body(data=plain).SerializeToString()
    assert body.read(body.data(plain)) == plain


def test_other_bodies_equal_those_of_the_contract() -> None:
    assert contract_pb2.Body(rekey=contract_pb2.Rekey()).SerializeToString() == body.REKEY
    assert contract_pb2.Body(end=contract_pb2.End()).SerializeToString() == body.END
    assert contract_pb2.Body(ask=contract_pb2.Ask()).SerializeToString() == body.ASK
    assert contract_pb2.Body(yes=contract_pb2.Yes()).SerializeToString() == body.YES
    assert (
        body.read(body.REKEY)
        is body.read(body.END)
        is body.read(body.ASK)
        is body.read(body.YES)
        is None
    )


def test_the_longest_body_fits_exactly() -> None:
    assert len(body.data(bytes(BODY_BYTES))) + 16 == SEALED_BYTES


def test_an_empty_body_is_none() -> None:
    with pytest.raises(ValueError):
        body.data(b"")
    for data in (
        b"",
        b"\x0a\x00",
        contract_pb2.Body().SerializeToString(),
        b"\x0a",
        b"\x0a\x01",
        b"\x0a\x81\x00x",
        b"\x12\x01x",
        b"\x32\x00",
        body.END + body.END,
        body.data(b"x") + body.END,
    ):
        with pytest.raises(PeerFault):
            body.read(data)


@given(
    st.binary(max_size=400)
    | st.builds(
        lambda a, b: a + b,
        st.sampled_from([b"\x0a", b"\x0a\x80\x01", b"\x0a\xff\x7f", b"\x12\x00", b"\x1a\x00"]),
        st.binary(max_size=400),
    )
)
def test_a_decoded_body_has_one_spelling(data: bytes) -> None:
    try:
        plain = body.read(data)
    except PeerFault:
        return
    assert data in body.WORDS if plain is None else body.data(plain) == data
