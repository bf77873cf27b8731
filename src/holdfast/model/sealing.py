"""A secret under a passphrase: scrypt, then AES-256-GCM. With `signing`, the only use of the library for it.

What is sealed is bound to what stands beside it in the clear (`beside`), so that a sealed key cannot be put under another name's file without
being noticed. The cost of guessing is stored with the seal and bounded when read: a file must not be able to ask for all memory.
Both primitives are imported when they are used: nobody who attaches with a plain key pays for them.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
COST: Final = 1 << 17  # scrypt's n with r = 8: 128 MiB and some 0.4 s for each guess
COST_MIN: Final = 1 << 14
COST_MAX: Final = 1 << 20  # 1 GiB
BLOCK: Final = 8  # scrypt's r; p is 1


class WrongPassphrase(ValueError):
    """Or the sealed bytes, or what stands beside them, were changed: one cannot tell which."""


class Sealed(NamedTuple):
    cost: int
    salt: bytes
    nonce: bytes
    data: bytes


def seal(secret: bytes, passphrase: str, beside: bytes, cost: int = COST) -> Sealed:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    salt, nonce = os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES)
    return Sealed(
        cost, salt, nonce, AESGCM(_key(passphrase, salt, cost)).encrypt(nonce, secret, beside)
    )


def unseal(sealed: Sealed, passphrase: str, beside: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(sealed.nonce) != NONCE_BYTES or len(sealed.salt) != SALT_BYTES or len(sealed.data) < 16:
        raise ValueError("not sealed like this")
    try:
        return AESGCM(_key(passphrase, sealed.salt, sealed.cost)).decrypt(
            sealed.nonce, sealed.data, beside
        )
    except InvalidTag as e:
        raise WrongPassphrase("wrong passphrase") from e


def _key(passphrase: str, salt: bytes, cost: int) -> bytes:
    import unicodedata

    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    if not COST_MIN <= cost <= COST_MAX or cost & (cost - 1):
        raise ValueError(f"a cost of {cost} is out of bounds")
    text = unicodedata.normalize("NFC", passphrase)  # the same word from another keyboard
    return Scrypt(salt=salt, length=32, n=cost, r=BLOCK, p=1).derive(
        text.encode("utf-8", "surrogateescape")
    )
