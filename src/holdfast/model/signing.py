"""Ed25519 signatures. The only importer of Ed25519.

Every signature covers `holdfast/DOMAIN\\0` and the exact bytes that were sent or stored. A
signature made for one purpose is therefore invalid for another, and a value is never serialized
again to be verified. The library's high-level import takes 18 ms, its compiled part 6 ms; a command
signs once, so it imports the compiled part. If that part is not where it is expected, the
documented import is used.
"""

from __future__ import annotations

import os

from holdfast.model import base64url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Final

    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PREFIX: Final = "ed25519:"


def _library() -> ModuleType | None:
    try:
        from cryptography.hazmat.bindings._rust import openssl

        library: ModuleType = openssl.ed25519
        return library
    except (ImportError, AttributeError):
        return None


def _private(private: bytes) -> Ed25519PrivateKey:
    library = _library()
    if library is not None:
        key: Ed25519PrivateKey = library.from_private_bytes(private)
        return key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private)


def _public(public: bytes) -> Ed25519PublicKey:
    library = _library()
    if library is not None:
        key: Ed25519PublicKey = library.from_public_bytes(public)
        return key
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
    """Tell whether the holder of `public` signed `message` for `domain`. False if malformed."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        _public(public).verify(signature, _bytes(domain, message))
    except (_invalid_signature(), ValueError):
        return False
    return True


def _invalid_signature() -> type[Exception]:
    """The library's exception. Its import takes 6 ms, and a valid signature does not need it."""
    from cryptography.exceptions import InvalidSignature

    return InvalidSignature


def _bytes(domain: str, message: bytes) -> bytes:
    return b"holdfast/" + domain.encode("ascii") + b"\0" + message


def show(public: bytes) -> str:
    """Write a public key as text, as people and files see it."""
    return PREFIX + base64url.encode(public)


def read(text: str) -> bytes:
    """Parse the output of `show`.

    Raises ValueError for any other text, other spellings included.
    """
    if not text.startswith(PREFIX):
        raise ValueError("a key begins with ed25519:")
    try:
        key = base64url.decode(text[len(PREFIX) :])
    except ValueError as e:
        raise ValueError("not a key") from e
    if len(key) != KEY_BYTES:
        raise ValueError("not a key")
    return key
