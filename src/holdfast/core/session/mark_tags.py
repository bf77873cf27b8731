"""The tag that authenticates a shell's mark, computed by the shell and by the host alike.

A tag is SipHash-1-3 with the session's key over seven bytes: the mark's number, kind and exit
status. Everybody may see a tag. It is valid for this one mark: a tag for another number, kind or
status needs the key. SipHash was chosen because a shell can compute it without starting a process:
a few additions, rotations and exclusive-ors on 64-bit integers, the integers of shell arithmetic.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

_WORD: Final = (1 << 64) - 1
_CONSTANTS: Final = (
    *(0x736F6D6570736575, 0x646F72616E646F6D),
    *(0x6C7967656E657261, 0x7465646279746573),
)
_LENGTH: Final = 7 << 56  # the last byte of the only block is the length of the message
SEQ_MAX: Final = (1 << 32) - 1
_STATUS: Final = (1 << 16) - 1

_Words = tuple[int, int, int, int]


class MarkKey:
    """The key of one session's marks, derived from the secret in the session's label."""

    def __init__(self, secret: str) -> None:
        key = hashlib.blake2b(
            secret.encode("ascii"), digest_size=16, person=b"shell marks"
        ).digest()
        halves = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        self._start: _Words = (
            halves[0] ^ _CONSTANTS[0],
            halves[1] ^ _CONSTANTS[1],
            halves[0] ^ _CONSTANTS[2],
            halves[1] ^ _CONSTANTS[3],
        )

    @cached_property
    def start(self) -> str:
        """The four words from which every tag starts, as the shell reads them."""
        return " ".join(str(_signed(word)) for word in self._start)

    def tag(self, seq: int, kind: int, status: int) -> int:
        """The tag as a signed number. `kind` is the letter of the mark."""
        block = _LENGTH | seq << 24 | kind << 16 | (status & _STATUS)
        a, b, c, d = self._start
        a, b, c, d = _round((a, b, c, d ^ block))
        a, c = a ^ block, c ^ 0xFF
        a, b, c, d = _round(_round(_round((a, b, c, d))))
        return _signed(a ^ b ^ c ^ d)


def _round(words: _Words) -> _Words:
    a, b, c, d = words
    a = (a + b) & _WORD
    b = ((b << 13 | b >> 51) & _WORD) ^ a
    a = (a << 32 | a >> 32) & _WORD
    c = (c + d) & _WORD
    d = ((d << 16 | d >> 48) & _WORD) ^ c
    a = (a + d) & _WORD
    d = ((d << 21 | d >> 43) & _WORD) ^ a
    c = (c + b) & _WORD
    b = ((b << 17 | b >> 47) & _WORD) ^ c
    c = (c << 32 | c >> 32) & _WORD
    return a, b, c, d


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
