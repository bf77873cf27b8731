"""Who a client is: proved with its key when it connects, over every carrier in the same way.

    client -> host   HELLO      {version, lowest, client, operator, modality, key}
    host -> client   CHALLENGE  {version, machine, nonce}
    client -> host   PROOF      {signature, recovery?}      over the statement below
    host -> client   WELCOME    ... or BYE with reason "admission"

The statement names both sides, the nonce and all that was said, so a proof is worth nothing for another machine, connection, name or
version. Its hash binds what is signed later on this channel to it (`binding`). On the local socket the kernel has said before
whether this account may connect at all; the key says who it is. A `recovery` {statement, signature} is signed with the machine's own key
(core/recovery.py) and lets a key in that nobody there could let in any more.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.model.canonical import encode

DOMAIN: Final = "hello/1"
NONCE_BYTES: Final = 32


def statement(hello: dict[str, Any], challenge: dict[str, Any]) -> bytes:
    """The exact bytes that the client signs and the host verifies."""
    return encode({"version": challenge["version"], "lowest": hello["lowest"], "offered": hello["version"], "machine": challenge["machine"],
                   "nonce": challenge["nonce"], "client": hello["client"], "operator": hello["operator"], "modality": hello["modality"],
                   "key": hello["key"]})


def binding(statement: bytes, signature: bytes) -> str:
    """Names this channel in whatever is signed on it."""
    from hashlib import blake2b

    return blake2b(b"holdfast/binding/1\0" + signature + statement, digest_size=32).hexdigest()
