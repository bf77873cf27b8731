"""The plaintext of a sealed message after the handshake: `Body` of proto/holdfast.proto, by hand.

    DATA    0a LENGTH bytes     the next bytes of the stream, at least one
    REKEY   12 00               the sender's next message is under the next key
    END     1a 00               the stream is complete in this direction; nothing follows
    ASK     22 00               asks whether the peer is alive
    YES     2a 00               answers ASK

Each of the five has exactly one encoding. The protobuf runtime is not needed to read them, and
would accept other encodings; a test compares both.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.errors import PeerFault
from holdfast.model.limits import BODY_BYTES

REKEY: Final = b"\x12\x00"
END: Final = b"\x1a\x00"
ASK: Final = b"\x22\x00"
YES: Final = b"\x2a\x00"
WORDS: Final = frozenset((REKEY, END, ASK, YES))


def data(plain: bytes) -> bytes:
    if not 0 < len(plain) <= BODY_BYTES:
        raise ValueError(f"a body of {len(plain)} bytes; between 1 and {BODY_BYTES}")
    return _header(len(plain)) + plain


def read(body: bytes) -> bytes | None:
    """Return the bytes of DATA, or None for the other four, which the caller compares.

    Raises PeerFault for any other bytes.
    """
    if body in WORDS:
        return None
    size = 2 if len(body) < 0x80 + 2 else 3 if len(body) < 0x4000 + 3 else 4
    length = len(body) - size
    if not 0 < length <= BODY_BYTES or body[:size] != _header(length):
        raise PeerFault("a sealed message that says nothing known")
    return body[size:]


def _header(length: int) -> bytes:
    if length < 0x80:
        return bytes((0x0A, length))
    if length < 0x4000:
        return bytes((0x0A, length & 0x7F | 0x80, length >> 7))
    return bytes((0x0A, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14))
