"""Whose a channel's key is: only what that identity signed, for that purpose, in the one spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import static
from holdfast.core.scope import Malformed
from holdfast.model import agreement, base64url, canonical, signing

VECTORS = Path(__file__).parents[1] / "vectors" / "static.json"
SEED = bytes(range(32))
KEY = signing.public(SEED)
STATIC = agreement.public(agreement.derive(SEED, agreement.STATIC))


def test_what_was_said_is_read() -> None:
    assert static.read(KEY, *static.sign(SEED)) == STATIC
    other = agreement.public(b"\x07" * 32)
    assert static.read(KEY, *static.sign(SEED, other)) == other, (
        "a device may have a static key of its own"
    )


def test_t6_golden_bytes_do_not_change() -> None:
    """With the derivation: a changed one would lock out everybody who has pinned a key."""
    stored = json.loads(VECTORS.read_text())
    signed = static.sign(bytes.fromhex(stored["seed"]))
    assert signed == (stored["statement"].encode(), bytes.fromhex(stored["signature"]))
    assert (
        agreement.derive(SEED, agreement.STATIC).hex() == stored["static_private"]
        and STATIC.hex() == stored["static_public"]
    )
    assert static.read(signing.read(stored["key"]), *signed).hex() == stored["static_public"]


def test_any_flipped_bit_is_refused() -> None:
    statement, signature = static.sign(SEED)
    for bit in range(8 * (len(statement) + len(signature))):
        whole = bytearray(statement + signature)
        whole[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            static.read(KEY, bytes(whole[: len(statement)]), bytes(whole[len(statement) :]))


def test_another_identity_cannot_claim_it() -> None:
    statement, signature = static.sign(SEED)
    with pytest.raises(Malformed):
        static.read(signing.public(b"o" * 32), statement, signature)
    with pytest.raises(Malformed, match="another identity"):  # signed by one, about another
        static.read(
            signing.public(b"o" * 32), statement, signing.sign(b"o" * 32, static.DOMAIN, statement)
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
def test_whatever_else_was_signed_is_refused(change: dict[str, Any]) -> None:
    said = {"v": 1, "key": signing.show(KEY), "static": base64url.encode(STATIC), **change}
    statement = (
        canonical.encode(said)
        if change != {"v": True}
        else canonical.encode({**said, "v": 1}).replace(b'"v":1', b'"v":true')
    )
    with pytest.raises(Malformed):
        static.read(KEY, statement, signing.sign(SEED, static.DOMAIN, statement))


@pytest.mark.parametrize("statement", [b"", b"[]", b"1", b"{}", b"x" * 300, b'{"v": 1}'])
def test_what_is_no_statement_is_refused(statement: bytes) -> None:
    with pytest.raises(Malformed):
        static.read(KEY, statement, signing.sign(SEED, static.DOMAIN, statement))


def test_a_signature_for_another_purpose_is_worth_nothing() -> None:
    statement = static.sign(SEED).statement
    with pytest.raises(Malformed):
        static.read(KEY, statement, signing.sign(SEED, "act/1", statement))
