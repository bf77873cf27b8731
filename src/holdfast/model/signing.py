"""Ed25519, and the one place that imports it.

Every signature is over `holdfast/DOMAIN\\0` and the exact bytes that were sent or stored: a signature made for one purpose is worth nothing
for another, and nothing is ever serialized again to be verified. The library's high-level import takes 18 ms, its
compiled part 6: a command that attaches signs once, so it pays the 6. Should that part not be where it is expected, the
documented way is taken.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any, Final

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PREFIX: Final = "ed25519:"


def _library() -> Any:
    try:
        from cryptography.hazmat.bindings._rust import openssl

        return openssl.ed25519
    except (ImportError, AttributeError):
        return None


def _private(private: bytes) -> Any:
    library = _library()
    if library is not None:
        return library.from_private_bytes(private)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private)


def _public(public: bytes) -> Any:
    library = _library()
    if library is not None:
        return library.from_public_bytes(public)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public)


def generate() -> bytes:
    """A new private key."""
    return os.urandom(KEY_BYTES)


def public(private: bytes) -> bytes:
    return bytes(_private(private).public_key().public_bytes_raw())


def sign(private: bytes, domain: str, message: bytes) -> bytes:
    return bytes(_private(private).sign(_bytes(domain, message)))


def verify(public: bytes, domain: str, message: bytes, signature: bytes) -> bool:
    """Whether the holder of this key signed exactly that, for this purpose. False for whatever is malformed."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    from cryptography.exceptions import InvalidSignature

    try:
        _public(public).verify(signature, _bytes(domain, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def _bytes(domain: str, message: bytes) -> bytes:
    return b"holdfast/" + domain.encode("ascii") + b"\0" + message


def show(public: bytes) -> str:
    """A public key as people and files have it."""
    return PREFIX + base64.urlsafe_b64encode(public).rstrip(b"=").decode()


def read(text: str) -> bytes:
    """The key that `show` wrote; ValueError for anything else, other spellings of the same key included."""
    if not text.startswith(PREFIX):
        raise ValueError("a key begins with ed25519:")
    try:
        key = base64.b64decode(text[len(PREFIX) :] + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise ValueError("not a key") from e
    if len(key) != KEY_BYTES or show(key) != text:
        raise ValueError("not a key")
    return key
