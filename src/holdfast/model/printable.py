"""Untrusted text for a terminal: characters that could act on the terminal are escaped.

Text that an approver decides about is shown more closely by core/policy/shown.py.
"""

from __future__ import annotations


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
