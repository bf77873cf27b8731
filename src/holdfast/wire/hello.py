"""Who a client is: proved with its key when it connects, over every carrier in the same way.

    client -> host   HELLO      {version, lowest, client, operator, modality, key, about?}
    host -> client   CHALLENGE  {version, machine, nonce}
    client -> host   PROOF      {signature, recovery?, invitation?}      over the statement below
    host -> client   WELCOME    {version, host, home, pid, release, device, place?} or BYE with reason "admission"

The statement names both sides, the nonce and all that was said, so a proof is worth nothing for another machine, connection, name or
version. Its hash binds what is signed later on this channel to it (`binding`). On the local socket the kernel has said before
whether this account may connect at all; the key says who it is. A `recovery` {statement, signature} is signed with the machine's own key
(core/recovery.py) and lets a key in that nobody there could let in any more. `about` names a session: its `place` {id, epoch, seen} is what an
act on it is signed for, and need not be asked for then.

Through a relay all this is inside a sealed channel (core/channel.py), and the statement has that channel's hash in it as well (`channel`), each side's own: a proof made
on one channel is worth nothing on another, whoever carries it. There nobody is the first, and nobody recovers.

`device` is what the device with this key is called there. An `invitation` {id, proof, device?} lets a newcomer in with a one-time code: `proof` is a signature over the same statement, made with the key that follows
from the code (core/joincode.py), so it is worth nothing on another connection or for another key; `device` is what it suggests to be called. If the inviter is asked first, EVENT
{event: "waiting", by, fingerprint, expires} comes before WELCOME. WELCOME then has `joined` {name, kind, by, rights, scope, device, of, again}; `again` says
that this key had come in with this code before, `of` is the operator if this is another device of theirs, else null.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.model.canonical import encode

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

DOMAIN: Final = "hello/1"
NONCE_BYTES: Final = 32


def statement(hello: dict[str, Any], challenge: dict[str, Any], channel: str = "") -> bytes:
    """The exact bytes that the client signs and the host verifies. `channel`: the hash of the sealed channel, if there is one."""
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
    """What a client is called from then on, in the record and by a keeper that remembers which inputs it took: its own number, made one that no
    other key can have. So nobody can pass off an input as a repeat of somebody else's, or ask for the answer to it."""
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
    """Names this channel in whatever is signed on it."""
    return blake2b(b"holdfast/binding/1\0" + signature + statement, digest_size=32).hexdigest()
