"""Bytes inside text that is signed, hashed or compared: base64url without padding, one spelling only.

The library's decoder skips what it does not know and ignores stray bits at the end, so several texts would mean the same bytes.
"""

from __future__ import annotations

import base64
import re
from typing import Any

_TEXT = re.compile(r"[A-Za-z0-9_-]*\Z", re.ASCII)


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: Any) -> bytes:
    """The bytes that `encode` wrote like this; ValueError for everything else, other types included."""
    if type(text) is not str or not _TEXT.match(text) or len(text) % 4 == 1:
        raise ValueError("not base64url")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(data) != text:
        raise ValueError("not the one spelling in base64url")
    return data
