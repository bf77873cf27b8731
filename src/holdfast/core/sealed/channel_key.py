"""Whose a sealed channel is: the X25519 key of a channel, bound to an identity by a statement that the identity's own key signs.

    STATEMENT ::= {v, key, static}          "static/1", signed by `key`
    static     =  x25519 public of blake2b-256("holdfast/static/1", key: the Ed25519 seed, person: "holdfast/derive")

A client learns a host's static key with its name at pairing and pins both; later the statement is enough to tell it that a channel's key is the machine's that it knows, and
tells a host which operator's device is at the other end. It is no proof that its holder is there now: that is the handshake. And an act is not signed
with the channel's key but with the identity's, over the channel's handshake hash.
Here the static key follows from the identity's seed (model/agreement.py, with the reasons). That is this program's way and nobody can tell: a device whose identity
cannot be exported, a browser for one, makes a static key of its own and signs the same statement.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.core.scope import Malformed, read_key
from holdfast.model import agreement, base64url, canonical, signing

DOMAIN: Final = "static/1"
STATEMENT_BYTES: Final = 256


class Signed(NamedTuple):
    statement: bytes
    signature: bytes


def sign(private: bytes, static: bytes | None = None) -> Signed:
    """For the identity with this private key: its own static key, or another public one that it holds."""
    if static is None:
        static = agreement.public(agreement.derive(private, agreement.STATIC))
    statement = canonical.encode(
        {"v": 1, "key": signing.show(signing.public(private)), "static": base64url.encode(static)}
    )
    return Signed(statement, signing.sign(private, DOMAIN, statement))


def read(key: bytes, statement: bytes, signature: bytes) -> bytes:
    """The static key that this identity says is its own; Malformed otherwise."""
    if len(statement) > STATEMENT_BYTES:
        raise Malformed("the statement about a channel's key is too long", "too_long")
    if not signing.verify(key, DOMAIN, statement, signature):
        raise Malformed(
            "the statement about a channel's key is not signed by that identity", "signature"
        )
    try:
        value: Any = canonical.decode(statement)
        if value.keys() != {"v", "key", "static"} or type(value["v"]) is not int or value["v"] != 1:
            raise Malformed("the statement about a channel's key is malformed")
        said, static = read_key(value["key"]), base64url.decode(value["static"])
    except Malformed:
        raise
    except (AttributeError, TypeError, ValueError) as e:  # NotCanonical is one
        raise Malformed(f"the statement about a channel's key is malformed: {e}") from e
    if said != key or len(static) != agreement.KEY_BYTES:
        raise Malformed("the statement is about another identity", "key")
    return static
