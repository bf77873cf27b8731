"""The route of a host at a relay, and the pass of a client; both are opaque to the relay.

    route      =   sha256("holdfast/route/1" route_key)[:16]
    STATEMENT ::= {v, key, relay, nonce, generation}          "route/1", signed by route_key
    digest     =   sha256("holdfast/pass/1" pass)              what the relay knows of a pass
    hook pass  =   sha256("holdfast/hook/1" route)             of a route that takes webhooks

A host has a separate route key for each relay, so two relays cannot see that they serve the same
host. The statement names the relay as the host dialled it, and the nonce of this connection. So a
relay can neither forward a registration to another relay nor reuse it.

The generation only grows, independent of the calendar, and the newer of two registrations wins. A
returning host therefore does not wait for its own dead connection to time out. A copied host cannot
alternate with the original unnoticed.

A pass is not a key. It admits a client to the relay's line and nothing more. The client still has
to prove its identity to the host (in the sealed channel, then in the HELLO inside it).

The hook pass follows from the route, which is part of a webhook's address. A route that lists this
pass takes requests from any peer that knows the address. Routes of hosts do not list it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from holdfast.model import base64url, canonical, signing
from holdfast.model.limits import RELAY_NAME_CHARS

DOMAIN: Final = "route/1"
ROUTE_BYTES: Final = 16


def route(route_key: bytes) -> bytes:
    """Return the id of the route, from the host's public key at this relay."""
    return sha256(b"holdfast/route/1" + route_key).digest()[:ROUTE_BYTES]


def digest(pass_: bytes) -> bytes:
    """Return the digest by which a relay knows a pass."""
    return sha256(b"holdfast/pass/1" + pass_).digest()


def hook_pass(route: bytes) -> bytes:
    """Return the pass with which a relay opens a route for a webhook."""
    return sha256(b"holdfast/hook/1" + route).digest()


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
    """Sign a registration."""
    return signing.sign(
        private, DOMAIN, statement(signing.public(private), relay, nonce, generation)
    )


def verify(route_key: bytes, relay: str, nonce: bytes, generation: int, signature: bytes) -> bool:
    """Say whether the holder of this key registers at this relay, on this connection."""
    return signing.verify(
        route_key, DOMAIN, statement(route_key, relay, nonce, generation), signature
    )
