"""X25519 key agreement, and keys that are derived from an identity. The only importer of X25519.

`derive` makes a key for another purpose from an operator's or machine's Ed25519 seed: blake2b keyed
with the seed, over the purpose. The derivation is one-way and separates purposes: a derived key
reveals neither the identity nor the key of another purpose. A derived key needs no file, so it
cannot be lost or copied, and the passphrase of the identity protects it too. As in `signing`, only
the compiled part of the library is imported, and only when needed.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Final

    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

KEY_BYTES: Final = 32
STATIC: Final = b"static/1"  # the X25519 key of a sealed channel
ROUTE: Final = b"route/1"  # the Ed25519 key at one relay; the relay's name follows
REMEMBERED: Final = b"remembered/1"  # seals descriptions of sessions in the store
IMAGES: Final = b"images/1"  # the X25519 key to which keys of checkpoints are sealed
SPOOL: Final = b"spool/1"  # the key from which the keys of the spool's files are derived


class LowOrder(ValueError):
    """A public key that would give every peer the same shared secret."""


def _library() -> ModuleType | None:
    try:
        from cryptography.hazmat.bindings._rust import openssl

        library: ModuleType = openssl.x25519
        return library
    except (ImportError, AttributeError):
        return None


def load(private: bytes) -> X25519PrivateKey:
    """Load a private key into the library's own form, for use in several agreements."""
    library = _library()
    if library is not None:
        key: X25519PrivateKey = library.from_private_bytes(private)
        return key
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


def generate() -> bytes:
    """A new private key."""
    return os.urandom(KEY_BYTES)


def public(private: bytes) -> bytes:
    return public_of(load(private))


def public_of(loaded: X25519PrivateKey) -> bytes:
    return bytes(loaded.public_key().public_bytes_raw())


def agree(loaded: X25519PrivateKey, public: bytes) -> bytes:
    """Return the shared secret. Raises LowOrder for the few public keys that have none."""
    library = _library()
    if library is not None:
        other = library.from_public_bytes(public)
    else:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        other = X25519PublicKey.from_public_bytes(public)
    try:
        secret = bytes(loaded.exchange(other))
    except ValueError as e:
        raise LowOrder("a public key of low order") from e
    if not any(secret):  # in case the library does not check
        raise LowOrder("a public key of low order")
    return secret


def derive(seed: bytes, purpose: bytes) -> bytes:
    """Derive the private key for one purpose from an identity's seed."""
    if len(seed) != KEY_BYTES:
        raise ValueError(f"a seed has {KEY_BYTES} bytes")
    return blake2b(
        b"holdfast/" + purpose, key=seed, digest_size=KEY_BYTES, person=b"holdfast/derive"
    ).digest()
