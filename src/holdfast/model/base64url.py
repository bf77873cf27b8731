"""Strict base64url without padding, for bytes inside text that is signed, hashed or compared.

The standard decoder skips unknown characters and ignores stray bits at the end, so several texts
would decode to the same bytes. Here exactly one text stands for each byte string.
"""

from __future__ import annotations

import binascii

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")


def encode(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URL).decode("ascii")


def decode(text: object) -> bytes:
    """Decode the output of `encode`. Raises ValueError for any other text or type."""
    if type(text) is not str or text.strip(_ALPHABET) or len(text) % 4 == 1:
        raise ValueError("not base64url")
    data = binascii.a2b_base64((text + "=" * (-len(text) % 4)).encode().translate(_FROM_URL))
    if encode(data) != text:
        raise ValueError("not the one spelling in base64url")
    return data
