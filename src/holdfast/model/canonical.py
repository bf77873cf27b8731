"""One spelling for everything that is hashed or signed: JSON with sorted keys, no spaces, whole numbers, UTF-8.

Readable in a trace, describable in a `.proto`, parseable by any language's library. What is signed is kept and sent as
the bytes that were signed; `decode` refuses bytes that are not the one spelling of what they say, so two different byte
strings never mean the same thing. Fractions are refused because languages print them differently; a time is a whole number.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 8
MAX_INT: Final = 1 << 63  # what every language's number or bigint holds


class NotCanonical(ValueError):
    """These bytes are not the one spelling of anything."""


def encode(value: Any) -> bytes:
    _check(value, 0)
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError as e:
        raise NotCanonical("half of a character") from e


def decode(data: bytes) -> Any:
    try:
        value = _DECODER.decode(data.decode("utf-8"))
        if data.count(b"{") + data.count(b"[") > MAX_DEPTH:  # otherwise it cannot be too deep
            _check(value, 0)
        again = _ENCODER.encode(value).encode("utf-8")
    except (ValueError, RecursionError, TypeError) as e:
        raise NotCanonical(f"not canonical: {str(e)[:100]}") from e
    if again != data:
        raise NotCanonical("not the canonical spelling")
    return value


def _no(text: str) -> NoReturn:
    raise NotCanonical(f"{text[:20]} is not a whole number")


def _int(text: str) -> int:
    value = int(text)
    if not -MAX_INT <= value < 2 * MAX_INT:
        raise NotCanonical("a number beyond 64 bits")
    return value


_ENCODER: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DECODER: Final = json.JSONDecoder(parse_float=_no, parse_int=_int, parse_constant=_no)


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotCanonical("a key is not text")
            _check(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, int):
        if not -MAX_INT <= value < 2 * MAX_INT:
            raise NotCanonical("a number beyond 64 bits")
    elif value is not None and not isinstance(value, str):
        raise NotCanonical(f"{type(value).__name__} has no canonical spelling")
