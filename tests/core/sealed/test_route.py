"""Registrations: bound to relay, connection and generation, signed by the route's key."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.sealed import route
from holdfast.model import signing
from holdfast.wire import outer

PRIVATE = bytes(range(32))
KEY = signing.public(PRIVATE)
GOOD: dict[str, Any] = {
    "route_key": KEY,
    "relay": "relay.example:443",
    "nonce": b"n" * 32,
    "generation": 7,
}


def test_the_holder_of_the_key_registers() -> None:
    assert route.verify(**GOOD, signature=route.sign(PRIVATE, "relay.example:443", b"n" * 32, 7))


@pytest.mark.parametrize(
    "change",
    [
        {"route_key": signing.public(b"o" * 32)},
        {"relay": "other.example:443"},
        {"nonce": b"m" * 32},
        {"generation": 8},
    ],
    ids=str,
)
def test_t4_a_registration_is_worth_nothing_elsewhere(change: dict[str, Any]) -> None:
    signature = route.sign(PRIVATE, "relay.example:443", b"n" * 32, 7)
    assert not route.verify(**{**GOOD, **change}, signature=signature)
    assert not route.verify(**GOOD, signature=signature[:-1])


def test_names_of_relays_are_bounded() -> None:
    for name in ("", "x" * 256):
        with pytest.raises(ValueError):
            route.sign(PRIVATE, name, b"n" * 32, 7)


def test_t6_golden_bytes_do_not_change() -> None:
    assert route.route(KEY).hex() == "adcbac98d618d358938bb01ec2a04bbf"
    assert (
        route.digest(b"p" * 32).hex()
        == "46cf5a0864d1380ab2b1a87cc58436c27a4ebb5a7cc3ada35ef35d7dcec8ab15"
    )
    assert route.statement(**GOOD) == (
        b'{"generation":7,"key":"ed25519:A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg","nonce":"bm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm4",'
        b'"relay":"relay.example:443","v":1}'
    )
    assert (
        len(route.route(KEY)) == route.ROUTE_BYTES == outer.ROUTE_BYTES
        and len(route.digest(b"p" * 32)) == outer.DIGEST_BYTES
    )
