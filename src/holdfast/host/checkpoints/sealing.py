"""The key of a session's checkpoints, and what is sealed with it.

    object ::= MAGIC (8 bytes) NONCE (12) AES-256-GCM(zstd(content))
    facts  ::= NONCE (12) AES-256-GCM(zstd(JSON))
    wrap   ::= EPHEMERAL X25519 key (32) AES-256-GCM(SECRET)

A mark is a keyed hash of content (GMAC; HMAC-SHA-256 in format 2). By its mark an object is found
again, so equal contents of one session share one object; a mark is also bound to the seal. Marks
are always stored sealed: GMAC with a constant nonce is a universal hash, whose collisions are found
only with the key or with its values. The stored file has the SHA-256 of its bytes as its name: it
never changes, and a disk or a machine without the key can check it. Nonces are random: a release
with another zstd may compress the same content to other bytes.

A wrap gives the secret to one machine. The key of a wrap comes from an agreement of a fresh key
with the machine's key, bound to both keys, the session and the id of the secret; it is used once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import sys
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.core.checkpoint.manifest import Damaged
from holdfast.core.checkpoint.pieces import CONTENT_MAX
from holdfast.model import agreement

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC: Final = b"HFOBJ\0\0\1"
SECRET_BYTES: Final = 32
FACTS_MAX: Final = 256 << 20  # bytes of JSON, of a session with terabytes
LEVEL: Final = 1  # of zstd: 1.1 GB/s on text; level 3 saves 3% and takes a fifth longer
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
WRAP_BYTES: Final = agreement.KEY_BYTES + SECRET_BYTES + _TAG_BYTES
_ID_BYTES: Final = 8
Bytes = bytes | memoryview
_NAME = re.compile(r"[0-9a-f]{64}")


def is_name(text: str) -> bool:
    """Whether a stored object may have that name."""
    return _NAME.fullmatch(text) is not None


class ImageKey:
    """The secret of a session's checkpoints. `id` names it, and reveals nothing of it."""

    __slots__ = ("_aead", "_marking", "id", "secret", "session")

    def __init__(self, session: str, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise Damaged("a secret of another length")
        self.session, self.secret = session, secret
        self._aead, self._marking = AESGCM(self._derived(b"seal")), AESGCM(self._derived(b"gmac"))
        self.id = self._derived(b"id")[:_ID_BYTES].hex()

    @classmethod
    def fresh(cls, session: str) -> ImageKey:
        return cls(session, os.urandom(SECRET_BYTES))

    def _derived(self, purpose: bytes) -> bytes:
        text = b"holdfast/images/1\0" + purpose + b"\0" + self.session.encode()
        return hmac.digest(self.secret, text, "sha256")

    # ------------------------------------------------------------ objects

    def mark(self, content: Bytes) -> str:
        return self._marking.encrypt(bytes(_NONCE_BYTES), b"", content).hex()

    def seal(self, mark: str, content: Bytes) -> bytes:
        return self._sealed(content, mark, MAGIC)

    def open(self, mark: str, stored: bytes) -> bytes:
        """The content of the object with that mark. Raises Damaged.

        The caller has compared the stored bytes with the object's name.
        """
        if stored[: len(MAGIC)] != MAGIC:
            raise Damaged("it is no object of a checkpoint")
        return self._opened(stored[len(MAGIC) :], mark, CONTENT_MAX)

    # ------------------------------------------------------------ facts, and other small data

    def seal_facts(self, purpose: str, data: bytes) -> bytes:
        return self._sealed(data, purpose)

    def open_facts(self, purpose: str, sealed: bytes) -> bytes:
        return self._opened(sealed, purpose, FACTS_MAX)

    def _sealed(self, data: Bytes, beside: str, head: bytes = b"") -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        packed = zstd.compress(data, level=LEVEL)
        return b"".join((head, nonce, self._aead.encrypt(nonce, packed, beside.encode())))

    def _opened(self, sealed: bytes, beside: str, most: int) -> bytes:
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            packed = self._aead.decrypt(nonce, rest, beside.encode())
            data = zstd.ZstdDecompressor().decompress(packed, most + 1)
        except (InvalidTag, ValueError, zstd.ZstdError) as e:
            raise Damaged("its seal is broken") from e
        if len(data) > most:
            raise Damaged("it is too large")
        return data

    # ------------------------------------------------------------ wraps

    def wrap(self, machine: bytes) -> bytes:
        """The secret, sealed to the X25519 key of a machine."""
        private = agreement.generate()
        ephemeral = agreement.public(private)
        try:
            shared = agreement.agree(agreement.load(private), machine)
        except ValueError as e:  # includes LowOrder
            raise Damaged("the key of that machine is no X25519 key") from e
        aead = _wrapper(shared, ephemeral, machine, self.session, self.id)
        return ephemeral + aead.encrypt(bytes(_NONCE_BYTES), self.secret, b"")


def unwrap(private: bytes, session: str, key_id: str, wrapped: bytes) -> ImageKey:
    """The key that was sealed to this machine. Raises Damaged."""
    if len(wrapped) != WRAP_BYTES:
        raise Damaged("a sealed key of another length")
    ephemeral, sealed = wrapped[: agreement.KEY_BYTES], wrapped[agreement.KEY_BYTES :]
    try:
        shared = agreement.agree(agreement.load(private), ephemeral)
        aead = _wrapper(shared, ephemeral, agreement.public(private), session, key_id)
        found = ImageKey(session, aead.decrypt(bytes(_NONCE_BYTES), sealed, b""))
    except (InvalidTag, ValueError) as e:
        raise Damaged("it was sealed to another machine") from e
    if found.id != key_id:
        raise Damaged("it is the key of other checkpoints")
    return found


def _wrapper(shared: bytes, ephemeral: bytes, machine: bytes, session: str, key_id: str) -> AESGCM:
    beside = b"holdfast/images/wrap/1\0" + session.encode() + b"\0" + key_id.encode()
    return AESGCM(HKDF(SHA256(), 32, ephemeral + machine, beside).derive(shared))


def name(stored: bytes) -> str:
    """The name of a stored object."""
    return hashlib.sha256(stored).hexdigest()
