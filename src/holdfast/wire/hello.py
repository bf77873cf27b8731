"""The handshake by which a client proves its identity, the same over every carrier.

    client -> host   HELLO      {version, lowest, client, operator, modality, key, about?,
                                announce?, credit?}
    host -> client   CHALLENGE  {version, machine, nonce}
    client -> host   PROOF      {signature, recovery?, invitation?}      over the statement below
    host -> client   WELCOME    {version, host, home, pid, release, device, takes?, place?,
                                recovered?, joined?}, or BYE with reason "admission"

    STATEMENT ::= {version, lowest, offered, machine, nonce, client, operator, modality, key
                   [, channel]}                                             "hello/1"
    binding    =   blake2b-256("holdfast/binding/1" NUL signature STATEMENT), in hex
    origin     =   blake2b-64("holdfast/origin/1" NUL client key) as a big-endian number, | 2

The statement is canonical JSON. `version`, `machine` and `nonce` are those of CHALLENGE, `offered`
is the `version` of HELLO, and the other fields are those of HELLO. In `origin`, `client` is 8
bytes, big-endian, and `key` is the text of the key. `origin`, as 16 hex digits, is the `client` of
signed acts and of the record.

The statement names both sides, the nonce and all fields of HELLO and CHALLENGE, so a proof is
invalid for another machine, connection, name or version. Its hash binds later signatures on this
connection to the statement (`binding`). On the local socket the kernel's credentials decide whether
the account may connect; the key identifies the operator. `about` names a session: its `place` {id,
epoch, seen} goes into the signature of an act on the session, and saves a request.

A client is known by key and `client`. If it repeats an act on a newer connection while the act is
under way on an older one, the host ends the older connection (BYE, "replaced"). The repeated
request then follows the act.

Through a relay the handshake runs inside a sealed channel (core/sealed/channel.py). The statement
then contains each side's own hash of that channel (`channel`), so a proof made on one channel is
invalid on another. A remote client can neither be the first operator nor recover a machine.

`recovery` {statement, signature} is signed with the machine's own key (core/people/recovery.py). It
admits a key when no operator is left who could. A client that shows recoveries to its operator
sends `announce` true. Its WELCOME then has `recovered`, a list of {operator, at}, once per key.

`device` is the name of the device with this key on that machine. `invitation` {id, proof, device?}
admits a newcomer with a one-time code. `proof` is a signature over the same statement with a key
derived from the code (core/people/join_code.py), so it is invalid on another connection or for
another key; `device` is a suggested device name. If the inviter must confirm, EVENT {event:
"waiting", by, fingerprint, expires} precedes WELCOME. WELCOME then has `joined` {name, kind, by,
rights, scope, device, of, again}: `again` says that this key was admitted with this code before,
and `of` names the operator if the key is another device of an existing operator, else null.
"""

from __future__ import annotations

from holdfast.model.canonical import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

DOMAIN: Final = "hello/1"
NONCE_BYTES: Final = 32


def statement(
    hello: Mapping[str, object], challenge: Mapping[str, object], channel: str = ""
) -> bytes:
    """Return the exact bytes that the client signs and the host verifies.

    `channel` is the hash of the sealed channel, or empty on the local socket.
    """
    return encode(
        {
            "version": challenge["version"],
            "lowest": hello["lowest"],
            "offered": hello["version"],
            "machine": challenge["machine"],
            "nonce": challenge["nonce"],
            "client": hello["client"],
            "operator": hello["operator"],
            "modality": hello["modality"],
            "key": hello["key"],
            **({"channel": channel} if channel else {}),
        }
    )


def origin(key: str, client: int) -> int:
    """Combine a client's own number with its key into the id used in the record and by the keeper.

    No other key can have the same id. An operator therefore cannot pass off an input as a repeat of
    another operator's input, or ask for its answer.
    """
    return (
        int.from_bytes(
            blake2b(
                b"holdfast/origin/1\0" + client.to_bytes(8, "big") + key.encode(), digest_size=8
            ).digest(),
            "big",
        )
        | 2
    )


def binding(statement: bytes, signature: bytes) -> str:
    """Return the name of this connection that later signatures contain."""
    return blake2b(b"holdfast/binding/1\0" + signature + statement, digest_size=32).hexdigest()
