"""Recovery when no operator is left who may grant: a statement signed by the machine's own key.

No operator owns a machine, so the last operator who could admit operators may leave or lose the
key. A user who controls the machine's account can read the machine's key. With that key the user
states "this key, by this name, shall have admin". The host obeys and records it.

The statement is not an envelope, although the same key could sign one: an old first link, long
revoked, must not work as a recovery after the list of revocations was lost. The statement is bound
to the present time. The nonce becomes the nonce of the resulting link, so the statement works once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.core.people.scope import Malformed, read_key
from holdfast.model import base64url, canonical, signing
from holdfast.model.ids import OPERATOR_KINDS

DOMAIN: Final = "recovery/1"
FRESH_S: Final = 300  # between signing and arrival, and between two clocks of one machine
NONCE_BYTES: Final = 16
STATEMENT_BYTES: Final = 1024


class Recovery(NamedTuple):
    machine: bytes
    name: str
    kind: str
    key: bytes
    at: int
    nonce: bytes


def sign(
    machine_private: bytes, name: str, kind: str, key: bytes, at: int, nonce: bytes
) -> tuple[bytes, bytes]:
    """Return the statement and its signature by the machine's key."""
    statement = canonical.encode(
        {
            "v": 1,
            "machine": signing.show(signing.public(machine_private)),
            "name": name,
            "kind": kind,
            "key": signing.show(key),
            "at": at,
            "nonce": base64url.encode(nonce),
        }
    )
    return statement, signing.sign(machine_private, DOMAIN, statement)


def read(machine: bytes, statement: bytes, signature: bytes, now: float) -> Recovery:
    """Return the recovery if this machine's key signed it just now; Malformed otherwise."""
    if len(statement) > STATEMENT_BYTES:
        raise Malformed("the recovery is too long", "too_long")
    if not signing.verify(machine, DOMAIN, statement, signature):
        raise Malformed("the recovery is not signed by this machine's key", "signature")
    try:
        value: Any = canonical.decode(statement)
        if (
            value.keys() != {"v", "machine", "name", "kind", "key", "at", "nonce"}
            or value["v"] != 1
            or value["kind"] not in OPERATOR_KINDS
        ):
            raise Malformed("the recovery is malformed")
        if type(value["name"]) is not str or type(value["at"]) is not int:
            raise Malformed("the recovery is malformed")
        found = Recovery(
            read_key(value["machine"]),
            value["name"],
            value["kind"],
            read_key(value["key"]),
            value["at"],
            base64url.decode(value["nonce"]),
        )
    except Malformed:
        raise
    except (AttributeError, TypeError, ValueError) as e:  # NotCanonical is one
        raise Malformed(f"the recovery is malformed: {e}") from e
    if found.machine != machine or len(found.nonce) != NONCE_BYTES:
        raise Malformed("the recovery is for another machine", "machine")
    if not -FRESH_S <= now - found.at <= FRESH_S:
        raise Malformed(
            f"the recovery is not fresh: it was signed {int(now) - found.at} s ago", "expired"
        )
    return found
