"""Text of others that is written to a terminal: what could act there is escaped. (What somebody decides about is shown more closely: core/shown.py.)"""

from __future__ import annotations


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
