"""A secret under a passphrase: only the passphrase opens it, and only where it was sealed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import sealing
from tests.support.examples import examples


def test_every_changed_bit_and_every_other_passphrase_is_refused() -> None:
    sealed = sealing.seal(b"secret", "word", b"beside", sealing.COST_MIN)
    assert sealing.unseal(sealed, "word", b"beside") == b"secret"
    for other in (
        sealed._replace(data=bytes([sealed.data[0] ^ 1]) + sealed.data[1:]),
        sealed._replace(salt=bytes(16)),
        sealed._replace(nonce=bytes(12)),
    ):
        with pytest.raises(sealing.WrongPassphrase):
            sealing.unseal(other, "word", b"beside")
    for word, beside in (("Word", b"beside"), ("word", b"besides"), ("", b"beside")):
        with pytest.raises(sealing.WrongPassphrase):
            sealing.unseal(sealed, word, beside)


@pytest.mark.parametrize("cost", [0, 3, 1 << 13, 1 << 21, (1 << 14) + 1, -(1 << 14)])
def test_a_cost_out_of_bounds_is_refused_before_any_work(cost: int) -> None:
    sealed = sealing.seal(b"secret", "word", b"", sealing.COST_MIN)
    with pytest.raises(ValueError, match="bounds"):
        sealing.unseal(sealed._replace(cost=cost), "word", b"")


@settings(max_examples=examples(5), deadline=None)
@given(st.binary(max_size=100), st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable()))
def test_a_sealed_secret_opens_to_itself(secret: bytes, word: str) -> None:
    sealed = sealing.seal(secret, word, b"x", sealing.COST_MIN)
    assert sealing.unseal(sealed, word, b"x") == secret and (
        not secret or secret not in sealed.data or len(secret) < 4
    )
