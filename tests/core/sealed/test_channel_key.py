"""The identity of a channel key: only a canonical statement that this identity signed counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.people.scope import Malformed
from holdfast.core.sealed import channel_key
from holdfast.model import agreement, base64url, canonical, signing

VECTORS = Path(__file__).parents[2] / "vectors" / "static.json"
SEED = bytes(range(32))
KEY = signing.public(SEED)
STATIC = agreement.public(agreement.derive(SEED, agreement.STATIC))


def test_a_signed_statement_is_read_back() -> None:
    assert channel_key.read(KEY, *channel_key.sign(SEED)) == STATIC
    other = agreement.public(b"\x07" * 32)
    assert channel_key.read(KEY, *channel_key.sign(SEED, other)) == other, (
        "a device may have a static key of its own"
    )


def test_t6_golden_bytes_do_not_change() -> None:
    """Includes the derivation: a change would lock out all clients with a pinned key."""
    stored = json.loads(VECTORS.read_text())
    signed = channel_key.sign(bytes.fromhex(stored["seed"]))
    assert signed == (stored["statement"].encode(), bytes.fromhex(stored["signature"]))
    assert (
        agreement.derive(SEED, agreement.STATIC).hex() == stored["static_private"]
        and STATIC.hex() == stored["static_public"]
    )
    assert channel_key.read(signing.read(stored["key"]), *signed).hex() == stored["static_public"]


def test_any_flipped_bit_is_refused() -> None:
    statement, signature = channel_key.sign(SEED)
    for bit in range(8 * (len(statement) + len(signature))):
        whole = bytearray(statement + signature)
        whole[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            channel_key.read(KEY, bytes(whole[: len(statement)]), bytes(whole[len(statement) :]))


def test_another_identity_cannot_claim_a_channel_key() -> None:
    statement, signature = channel_key.sign(SEED)
    with pytest.raises(Malformed):
        channel_key.read(signing.public(b"o" * 32), statement, signature)
    with pytest.raises(Malformed, match="another identity"):  # about a different identity
        channel_key.read(
            signing.public(b"o" * 32),
            statement,
            signing.sign(b"o" * 32, channel_key.DOMAIN, statement),
        )


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"static": "AA"},
        {"static": 5},
        {"key": None},
        {"key": "x"},
        {"more": 1},
        {"static": None},
    ],
    ids=str,
)
def test_signatures_over_other_statements_are_refused(change: dict[str, Any]) -> None:
    said = {"v": 1, "key": signing.show(KEY), "static": base64url.encode(STATIC), **change}
    statement = (
        canonical.encode(said)
        if change != {"v": True}
        else canonical.encode({**said, "v": 1}).replace(b'"v":1', b'"v":true')
    )
    with pytest.raises(Malformed):
        channel_key.read(KEY, statement, signing.sign(SEED, channel_key.DOMAIN, statement))


@pytest.mark.parametrize("statement", [b"", b"[]", b"1", b"{}", b"x" * 300, b'{"v": 1}'])
def test_malformed_statements_are_refused(statement: bytes) -> None:
    with pytest.raises(Malformed):
        channel_key.read(KEY, statement, signing.sign(SEED, channel_key.DOMAIN, statement))


def test_a_signature_for_another_purpose_is_worth_nothing() -> None:
    statement = channel_key.sign(SEED).statement
    with pytest.raises(Malformed):
        channel_key.read(KEY, statement, signing.sign(SEED, "act/1", statement))
