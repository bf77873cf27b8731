"""Where a host is found at a relay, and what lets a client through: both opaque to the relay.

    route      =   sha256("holdfast/route/1" route_key)[:16]
    STATEMENT ::= {v, key, relay, nonce, generation}          "route/1", signed by route_key
    digest     =   sha256("holdfast/pass/1" pass)              what the relay is told of a pass

A host has one route key for each relay, so two relays cannot see that they serve the same host. The statement names the relay as the host dialled it and the
nonce of this connection: a relay cannot pass a registration on to another relay, or use it again. The generation only grows, whatever the calendar says: of two
registrations the newer one stands, so a host that comes back does not wait for its own dead connection to time out, and one that was copied
cannot silently take turns with it. A pass is no key: it admits to the relay's line, nothing more; whoever comes through it still has to prove itself
to the host (the sealed channel, then the HELLO inside it).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from holdfast.model import base64url, canonical, signing
from holdfast.model.limits import RELAY_NAME_CHARS

DOMAIN: Final = "route/1"
ROUTE_BYTES: Final = 16
PASS_BYTES: Final = 32


def route(route_key: bytes) -> bytes:
    """The route's id, from the host's public key at this relay."""
    return sha256(b"holdfast/route/1" + route_key).digest()[:ROUTE_BYTES]


def digest(pass_: bytes) -> bytes:
    """What a relay is told of a pass."""
    return sha256(b"holdfast/pass/1" + pass_).digest()


def statement(route_key: bytes, relay: str, nonce: bytes, generation: int) -> bytes:
    if not 0 < len(relay) <= RELAY_NAME_CHARS:
        raise ValueError("the relay's name is empty or too long")
    return canonical.encode(
        {
            "v": 1,
            "key": signing.show(route_key),
            "relay": relay,
            "nonce": base64url.encode(nonce),
            "generation": generation,
        }
    )


def sign(private: bytes, relay: str, nonce: bytes, generation: int) -> bytes:
    """The signature of a registration."""
    return signing.sign(
        private, DOMAIN, statement(signing.public(private), relay, nonce, generation)
    )


def verify(route_key: bytes, relay: str, nonce: bytes, generation: int, signature: bytes) -> bool:
    """Whether the holder of this key registers here, now."""
    return signing.verify(
        route_key, DOMAIN, statement(route_key, relay, nonce, generation), signature
    )
