"""Recovery: only with the machine's key, only now, only for the stated operator."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.people import recovery
from holdfast.core.people.scope import Malformed
from holdfast.model import base64url, canonical, signing

MACHINE, OTHER = b"m" * 32, b"o" * 32
KEY = signing.public(OTHER)
HERE = signing.public(MACHINE)
NOW = 1_000_000


def test_a_signed_statement_is_read_back() -> None:
    statement, signature = recovery.sign(MACHINE, "ann", "human", KEY, NOW, b"n" * 16)
    assert recovery.read(HERE, statement, signature, NOW + 300) == recovery.Recovery(
        HERE, "ann", "human", KEY, NOW, b"n" * 16
    )


def test_any_flipped_bit_is_refused() -> None:
    statement, signature = recovery.sign(MACHINE, "ann", "human", KEY, NOW, b"n" * 16)
    for bit in range(8 * (len(statement) + len(signature))):
        whole = bytearray(statement + signature)
        whole[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            recovery.read(HERE, bytes(whole[: len(statement)]), bytes(whole[len(statement) :]), NOW)


@pytest.mark.parametrize("now", [NOW - 301, NOW + 301, 0])
def test_an_old_recovery_is_refused(now: float) -> None:
    with pytest.raises(Malformed, match="not fresh"):
        recovery.read(HERE, *recovery.sign(MACHINE, "ann", "human", KEY, NOW, b"n" * 16), now)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"kind": "machine"},
        {"kind": []},
        {"name": 5},
        {"at": True},
        {"at": "1"},
        {"key": "x"},
        {"nonce": "AA"},
        {"machine": signing.show(KEY)},
        {"more": 1},
    ],
    ids=str,
)
def test_the_machine_s_key_alone_does_not_make_nonsense_valid(change: dict[str, Any]) -> None:
    fields = {
        "v": 1,
        "machine": signing.show(HERE),
        "name": "ann",
        "kind": "human",
        "key": signing.show(KEY),
        "at": NOW,
        "nonce": base64url.encode(b"n" * 16),
    }
    good = canonical.encode(fields)
    assert recovery.read(HERE, good, signing.sign(MACHINE, recovery.DOMAIN, good), NOW)
    statement = canonical.encode({**fields, **change})
    with pytest.raises(Malformed):
        recovery.read(HERE, statement, signing.sign(MACHINE, recovery.DOMAIN, statement), NOW)
    for data in (b"[]", b"7", b"{}", b"\xff", b" " * 2000):
        with pytest.raises(Malformed):
            recovery.read(HERE, data, signing.sign(MACHINE, recovery.DOMAIN, data), NOW)


def test_an_envelope_of_the_machine_is_no_recovery() -> None:
    statement, _ = recovery.sign(MACHINE, "ann", "human", KEY, NOW, b"n" * 16)
    with pytest.raises(Malformed):
        recovery.read(HERE, statement, signing.sign(MACHINE, "envelope/1", statement), NOW)
