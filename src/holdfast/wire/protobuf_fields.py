"""Messages of Protocol Buffers as lists of fields, without a schema.

CRIU's images have hundreds of fields. An edit of a few must keep the others, known or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}

Value = int | bytes
Field = tuple[int, int, Value]  # number, wire type, value; a fixed-size value stays bytes


def decode(data: bytes) -> list[Field]:
    fields: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == VARINT:
            value, at = _read_varint(data, at)
        else:
            if kind == BYTES:
                size, at = _read_varint(data, at)
            else:
                size = _FIXED[kind]
            if at + size > len(data):
                raise ValueError("a field is longer than its message")
            value, at = data[at : at + size], at + size
        fields.append((number, kind, value))
    return fields


def encode(fields: Iterable[Field]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        out += _varint(number << 3 | kind)
        if isinstance(value, int):
            out += _varint(value)
        else:
            out += (_varint(len(value)) if kind == BYTES else b"") + value
    return bytes(out)


def field(number: int, value: bool | int | str | bytes) -> Field:
    if isinstance(value, int):
        return number, VARINT, int(value)
    return number, BYTES, value.encode() if isinstance(value, str) else value


def number_of(fields: Iterable[Field], number: int, default: int = 0) -> int:
    """Return the last value of a field of integers; int32 values come with their sign."""
    for found, _, value in fields:
        if found == number and isinstance(value, int):
            default = value - (1 << 64) if value >= 1 << 63 else value
    return default


def bytes_of(fields: Iterable[Field], number: int) -> bytes:
    """Return the last value of a field of bytes, text or a message."""
    out = b""
    for found, _, value in fields:
        if found == number and isinstance(value, bytes):
            out = value
    return out


def varints(packed: bytes) -> list[int]:
    """Return the numbers of a packed field."""
    found, at = list[int](), 0
    while at < len(packed):
        value, at = _read_varint(packed, at)
        found.append(value)
    return found


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative number takes ten bytes
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
