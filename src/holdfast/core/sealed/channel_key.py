"""The identity behind a sealed channel: a signed statement binds the channel's X25519 key to it.

    STATEMENT ::= {v, key, static}          "static/1", signed by `key`
    static     =  x25519 public of blake2b-256("holdfast/static/1", key: the Ed25519 seed,
                  person: "holdfast/derive")

A client learns a host's static key together with its name at pairing, and pins both. Later the
statement proves to the client that a channel key belongs to the known machine. It also tells a host
which operator's device is at the other end. The statement does not prove that the holder is present
now: the handshake does. An act is not signed with the channel key but with the key of the identity,
over the channel's handshake hash.

Here the static key is derived from the seed of the identity (model/agreement.py has the reasons).
No other party can observe this choice. A device whose identity cannot be exported, such as a
browser, generates a separate static key and signs the same statement.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.core.people.scope import Malformed, read_key
from holdfast.model import agreement, base64url, canonical, signing

DOMAIN: Final = "static/1"
STATEMENT_BYTES: Final = 256


class Signed(NamedTuple):
    statement: bytes
    signature: bytes


def sign(private: bytes, static: bytes | None = None) -> Signed:
    """Sign a statement for the derived static key, or for another public key of the identity."""
    if static is None:
        static = agreement.public(agreement.derive(private, agreement.STATIC))
    statement = canonical.encode(
        {"v": 1, "key": signing.show(signing.public(private)), "static": base64url.encode(static)}
    )
    return Signed(statement, signing.sign(private, DOMAIN, statement))


def read(key: bytes, statement: bytes, signature: bytes) -> bytes:
    """Return the static key that this identity states; Malformed if the statement is wrong."""
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
