"""Encryption of a secret with a passphrase: scrypt, then AES-256-GCM.

The ciphertext is bound to the plain text stored beside it (`beside`), so that moving a sealed key
into the file of another name is noticed. The scrypt cost is stored with the ciphertext and checked
when read, so that a file cannot demand all memory. Both primitives are imported on use: a client
with an unencrypted key does not pay for them.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
COST: Final = 1 << 17  # scrypt's n with r = 8: 128 MiB and about 0.4 s for each guess
COST_MIN: Final = 1 << 14
COST_MAX: Final = 1 << 20  # 1 GiB
BLOCK: Final = 8  # scrypt's r; p is 1


class WrongPassphrase(ValueError):
    """The passphrase is wrong, or the sealed bytes or the text beside them were changed."""


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
    text = unicodedata.normalize("NFC", passphrase)  # keyboards compose accents differently
    return Scrypt(salt=salt, length=32, n=cost, r=BLOCK, p=1).derive(
        text.encode("utf-8", "surrogateescape")
    )
