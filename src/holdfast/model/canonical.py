"""Canonical JSON for hashing and signing: sorted keys, no spaces, integers only, UTF-8.

The format is readable in a trace and parseable by any language's JSON library. Signed values are
stored and sent as the exact bytes that were signed. `decode` refuses bytes that are not canonical,
so two different byte strings never mean the same value. Fractions are refused because languages
print them differently; times are integers.
"""

from __future__ import annotations

from holdfast.model import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final, NoReturn

    Canonical = (
        None | bool | int | str | Sequence["Canonical"] | Mapping[str, "Canonical"]
    )  # a value that `encode` takes

MAX_DEPTH: Final = 8
MAX_INT: Final = 1 << 63  # fits a 64-bit integer or bigint of every language


class NotCanonical(ValueError):
    """The bytes are not canonical JSON, or the value has no canonical form."""


def encode(value: object) -> bytes:
    _check(value, 0)
    try:
        return _write(value).encode("utf-8")
    except UnicodeEncodeError as e:
        raise NotCanonical("half of a character") from e


def decode(data: bytes) -> Any:
    try:
        value = _read(data.decode("utf-8"))
        if data.count(b"{") + data.count(b"[") > MAX_DEPTH:  # with fewer it cannot be too deep
            _check(value, 0)
        again = _write(value).encode("utf-8")
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


_write: Final = jsontext.encoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_read: Final = jsontext.decoder(parse_float=_no, parse_int=_int, parse_constant=_no)


def _check(value: object, depth: int) -> None:
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
