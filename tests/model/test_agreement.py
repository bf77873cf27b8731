"""X25519 by its published vectors, and derived keys."""

from __future__ import annotations

import pytest

from holdfast.model import agreement

ALICE = b"a" * 32
BOB = bytes.fromhex(
    "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
)  # RFC 7748, 6.1


def test_both_agree() -> None:
    for private in (ALICE, BOB, bytes(32), b"\xff" * 32):
        assert agreement.agree(agreement.load(private), agreement.public(BOB)) == agreement.agree(
            agreement.load(BOB), agreement.public(private)
        )


def test_known_answers() -> None:
    assert (
        agreement.public(BOB).hex()
        == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    )
    # RFC 7748, 5.2: the first vector
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert (
        agreement.agree(agreement.load(scalar), point).hex()
        == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    )


def test_the_documented_way_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = agreement.agree(agreement.load(BOB), agreement.public(ALICE))
    monkeypatch.setattr(agreement, "_library", lambda: None)
    assert agreement.agree(agreement.load(BOB), agreement.public(ALICE)) == quick
    with pytest.raises(agreement.LowOrder):
        agreement.agree(agreement.load(BOB), bytes(32))


def test_a_key_for_each_purpose() -> None:
    seed = bytes(range(32))
    derived = {
        purpose: agreement.derive(seed, purpose)
        for purpose in (
            agreement.STATIC,
            agreement.ROUTE,
            agreement.ROUTE + b"\0a",
            agreement.ROUTE + b"\0b",
            agreement.SPOOL,
        )
    }
    assert len({seed, *derived.values()}) == 6 and all(len(d) == 32 for d in derived.values())
    assert agreement.derive(b"o" * 32, agreement.STATIC) != derived[agreement.STATIC]
    with pytest.raises(ValueError):
        agreement.derive(b"short", agreement.STATIC)
