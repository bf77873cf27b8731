"""Ids of sessions, checkpoints and contents, and names.

A session id has 12 characters of lower-case Crockford base32 (60 random bits): short enough to
type, never reused, and never confused with a path or an option. Every command loads this module, so
no heavy module is imported here; references are in model/references.py.
"""

from __future__ import annotations

from holdfast.model.errors import Usage
from holdfast.model.limits import NAME_CHARS, ONCE_CHARS

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_CHARS = 12
ID_PREFIX_CHARS = 4
"""Characters of an id that a reference needs at least. Fewer are a name."""
CHECKPOINT_PREFIX = "cp-"
CHECKPOINT_DIGITS = 12
DIGEST_DIGITS = 64
_HEX = "0123456789abcdef"
OPERATOR_KINDS = ("human", "agent", "service")
_NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


def session_id(random_bytes: bytes) -> str:
    """Make an id from at least 8 random bytes."""
    n = int.from_bytes(random_bytes[:8], "little")
    return "".join(ALPHABET[(n >> (5 * i)) & 31] for i in range(ID_CHARS))


def is_session_id(text: str) -> bool:
    return len(text) == ID_CHARS and not text.strip(ALPHABET)


def is_checkpoint_id(text: str) -> bool:
    digits = text.removeprefix(CHECKPOINT_PREFIX)
    return digits != text and len(digits) == CHECKPOINT_DIGITS and not digits.strip(_HEX)


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 in hexadecimal."""
    return len(text) == DIGEST_DIGITS and not text.strip(_HEX)


def check_name(name: str) -> str:
    """Return a valid session or operator name. Raises Usage for an invalid one."""
    if not 0 < len(name) <= NAME_CHARS or name.strip(_NAME) or name[0] == "-":
        raise Usage(
            f"bad name {name[:80]!a}",
            f"use at most {NAME_CHARS} letters, digits, '.', '_' and '-', not starting with '-'",
        )
    if is_session_id(name):
        raise Usage(f"the name {name!a} looks like a session id", "choose another name")
    return name


def is_once(text: object) -> bool:
    """Whether this is a valid idempotency key: printable ASCII, at most ONCE_CHARS."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= ONCE_CHARS
        and text.isascii()
        and text.isprintable()
    )


def clean_name(text: str, instead: str) -> str:
    """Make a name of the text: `instead` replaces characters that a name cannot have."""
    return "".join(c if c in _NAME else instead for c in text).lstrip("-")
