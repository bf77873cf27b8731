"""X25519, and the one place that imports it; and the keys that follow from an identity.

A key for one more purpose follows from an operator's or machine's Ed25519 seed (`derive`): blake2b keyed with the seed, over the purpose. One way, and each purpose
apart: who learns a derived key learns neither the identity nor another purpose's key. It needs no file of its own, so it cannot be lost, copied
or left without the passphrase that protects the identity. As in `signing` the compiled part of the library is imported, when it is needed.
"""

from __future__ import annotations

import os
from typing import Any, Final

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

KEY_BYTES: Final = 32
STATIC: Final = b"static/1"  # the X25519 key of a sealed channel
ROUTE: Final = b"route/1"  # the Ed25519 key at one relay; the relay's name follows


class LowOrder(ValueError):
    """A public key with which everybody would agree on the same secret."""


def _library() -> Any:
    try:
        from cryptography.hazmat.bindings._rust import openssl

        return openssl.x25519
    except (ImportError, AttributeError):
        return None


def load(private: bytes) -> Any:
    """The private key as the library has it: for several agreements."""
    library = _library()
    if library is not None:
        return library.from_private_bytes(private)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


def generate() -> bytes:
    """A new private key."""
    return os.urandom(KEY_BYTES)


def public(private: bytes) -> bytes:
    return public_of(load(private))


def public_of(loaded: Any) -> bytes:
    return bytes(loaded.public_key().public_bytes_raw())


def agree(loaded: Any, public: bytes) -> bytes:
    """The common secret; LowOrder for the few public keys with which there is none."""
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
    if not any(secret):  # should a library not look by itself
        raise LowOrder("a public key of low order")
    return secret


def derive(seed: bytes, purpose: bytes) -> bytes:
    """The private key for a purpose that follows from this identity's."""
    if len(seed) != KEY_BYTES:
        raise ValueError(f"a seed has {KEY_BYTES} bytes")
    return blake2b(
        b"holdfast/" + purpose, key=seed, digest_size=KEY_BYTES, person=b"holdfast/derive"
    ).digest()
