"""Which session is meant by a name, an id or the beginning of an id; and a name for one that was given none."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from holdfast.model.errors import Usage

BASE_CHARS = 40


def match(text: str, names: Mapping[str, str]) -> str | None:
    """The id, of sessions by id with their names: an id, a name, or the beginning of exactly one id."""
    if text in names:
        return text
    exact = [i for i, n in names.items() if n == text]
    if exact:
        return exact[0]
    prefixed = [i for i in names if text and i.startswith(text)]
    if len(prefixed) > 1:
        raise Usage(f"{text!a} is the beginning of {len(prefixed)} sessions", "give more of the id")
    return prefixed[0] if prefixed else None


def free(argv: list[str], taken: Collection[str]) -> str:
    """A name after its program that nobody has."""
    base = os.path.basename(argv[0]) if argv else "shell"
    base = (
        "".join(c if (c.isalnum() and c.isascii()) or c in "._-" else "-" for c in base).lstrip(
            "-"
        )[:BASE_CHARS]
        or "session"
    )
    return next(n for i in range(1, len(taken) + 2) if (n := f"{base}-{i}") not in taken)
