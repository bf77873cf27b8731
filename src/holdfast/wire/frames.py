"""The wire between a client and a host: one contract for every carrier.

    frame ::= length u32 (of the payload), kind u8, payload        little endian

Hot frames (keys, output) are fixed binary, so that attaching needs no parser. Every other frame is
one JSON object: the standard library reads it in microseconds, a person can read it in a trace, and
the JSON mapping of a `.proto` describes it. Unknown kinds, oversize frames and unknown fields in a
request are refused, never skipped.

    code | frame   | payload                                                        | direction
    -----|---------|----------------------------------------------------------------|---------------
    0x01 | HELLO   | JSON {version, lowest, client, operator, modality, key}        | client -> host
    0x02 | REQUEST | id u32, JSON {op, ...}                                         | client -> host
    0x03 | INPUT   | sequence u64, flags u8, bytes                                  | client -> host
    0x04 | RESIZE  | sequence u64, cols u16, rows u16                               | client -> host
    0x05 | CANCEL  | id u32                                                         | client -> host
    0x06 | SEEN    | offset u64 (position of a viewer that reads the ring directly) | client -> host
    0x07 | PROOF   | JSON {signature, recovery?, invitation?}                       | client -> host
    0x08 | STDIN   | id u32, start u64, bytes (for a request; none: their end)      | client -> host
    0x09 | CREDIT  | id u32, until u64 (DATA bytes of a request that may come)      | client -> host
    0x81 | WELCOME | JSON {version, host, home, pid, release, joined?}              | host -> client
    0x82 | REPLY   | id u32, ok u8, JSON (result or error)                          | host -> client
    0x83 | OUTPUT  | start u64, end u64, acked u64, bytes                           | host -> client
    0x84 | SCREEN  | offset u64, acked u64, reason u8, cols u16, rows u16, bytes    | host -> client
    0x85 | EVENT   | JSON {event, ...}                                              | host -> client
    0x86 | DATA    | id u32, start u64, end u64, bytes                              | host -> client
    0x87 | GAP     | id u32, start u64, end u64 (output that rolled off)            | host -> client
    0x88 | BYE     | JSON {reason, message}                                         | host -> client
    0x89 | CHALLENGE | JSON {version, machine, nonce}                               | host -> client

OUTPUT covers the raw range [start, end). It may have fewer bytes, because queries that the host
answers are removed. SCREEN replaces the viewer's display; output continues at its offset. `acked`
is the highest input sequence of this client that the session has accepted, so keys need no answer
of their own. A client numbers its inputs from 1, per client id; a repeated number is the same input
and is applied once. The client chooses its id, which is not secret: the id counts together with the
key that the client proved (wire/hello.py), so the same id with another key is another client.

A viewer on the same machine may ask to read the session's ring directly (`direct`). The reply to
`attach` then carries descriptors of the ring and of a bell (SCM_RIGHTS). SCREEN frames still say
where to continue; output comes from shared memory, independently of the host's load, and SEEN tells
the host the viewer's position.

A client sends bytes for a request in STDIN frames: the input of a `run` with `stdin`. It sends only
up to the offset that the host's event `stdin` allows (`until`), so the host holds a bounded part.
The event with `done` says that the receiver can read all of it. WELCOME names `stdin` in `takes`.

A client whose HELLO has `credit` takes that many bytes of DATA for each request. The host begins a
DATA frame only while it has sent fewer bytes of the request than `credit`, or than `until` of the
last CREDIT frame. So an answer that is read slowly delays no other answer on the connection.
WELCOME names `credit` in `takes`; other hosts refuse CREDIT.
"""

from __future__ import annotations

import struct

from holdfast.model import jsontext
from holdfast.model.errors import PeerFault
from holdfast.model.limits import FRAME_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, Final

VERSION: Final = 2
LOWEST: Final = 2  # clients of version 1 did not prove their identity

HELLO, REQUEST, INPUT, RESIZE, CANCEL, SEEN, PROOF, STDIN, CREDIT = range(1, 10)
WELCOME, REPLY, OUTPUT, SCREEN, EVENT, DATA, GAP, BYE, CHALLENGE = range(0x81, 0x8A)
FROM_CLIENT: Final = frozenset((HELLO, REQUEST, INPUT, RESIZE, CANCEL, SEEN, PROOF, STDIN, CREDIT))
FROM_HOST: Final = frozenset((WELCOME, REPLY, OUTPUT, SCREEN, EVENT, DATA, GAP, BYE, CHALLENGE))

SCREEN_ATTACH, SCREEN_LAG, SCREEN_RESIZE, SCREEN_RESUME, SCREEN_FOREIGN = range(5)

INPUT_ACK: Final = 1  # answer soon, even if the program stays silent
# A paste: never split, and bracketed by the host if the program asked for bracketed paste.
INPUT_PASTE: Final = 2

HEADER = struct.Struct("<IB")
_REQUEST = struct.Struct("<I")
_INPUT = struct.Struct("<QB")
_RESIZE = struct.Struct("<QHH")
_SEEN = struct.Struct("<Q")
_STDIN = struct.Struct("<IQ")
_REPLY = struct.Struct("<IB")
_OUTPUT = struct.Struct("<QQQ")
_SCREEN = struct.Struct("<QQBHH")
_DATA = struct.Struct("<IQQ")
_FRAME_OUTPUT = struct.Struct("<IBQQQ")
_FRAME_DATA = struct.Struct("<IBIQQ")


_write = jsontext.encoder(separators=(",", ":"), ensure_ascii=False)


def frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def pack_json(kind: int, body: Mapping[str, object], head: bytes = b"") -> bytes:
    return frame(kind, head + _write(body).encode("utf-8", "surrogatepass"))


def request(number: int, body: Mapping[str, object]) -> bytes:
    return pack_json(REQUEST, body, _REQUEST.pack(number))


def cancel(number: int) -> bytes:
    return frame(CANCEL, _REQUEST.pack(number))


def seen(offset: int) -> bytes:
    return frame(SEEN, _SEEN.pack(offset))


def read_seen(payload: bytes) -> int:
    offset: int = _fields(_SEEN, payload, True)[0]
    return offset


def stdin(number: int, start: int, data: bytes) -> bytes:
    return frame(STDIN, _STDIN.pack(number, start) + data)


def read_stdin(payload: bytes) -> tuple[int, int, bytes]:
    number, start = _fields(_STDIN, payload, False)
    return number, start, payload[_STDIN.size :]


def credit(number: int, until: int) -> bytes:
    return frame(CREDIT, _STDIN.pack(number, until))


def read_credit(payload: bytes) -> tuple[int, int]:
    number, until = _fields(_STDIN, payload, True)
    return number, until


def input_(sequence: int, data: bytes, flags: int = 0) -> bytes:
    return frame(INPUT, _INPUT.pack(sequence, flags) + data)


def resize(sequence: int, cols: int, rows: int) -> bytes:
    return frame(RESIZE, _RESIZE.pack(sequence, cols, rows))


def reply(number: int, body: Mapping[str, object], ok: bool = True) -> bytes:
    return pack_json(REPLY, body, _REPLY.pack(number, ok))


def output_header(start: int, end: int, acked: int, length: int) -> bytes:
    """Make the header of an OUTPUT frame whose `length` bytes follow without a copy."""
    return _FRAME_OUTPUT.pack(_OUTPUT.size + length, OUTPUT, start, end, acked)


def data_header(number: int, start: int, end: int, length: int) -> bytes:
    return _FRAME_DATA.pack(_DATA.size + length, DATA, number, start, end)


def screen(offset: int, acked: int, reason: int, cols: int, rows: int, paint: bytes) -> bytes:
    return frame(SCREEN, _SCREEN.pack(offset, acked, reason, cols, rows) + paint)


def gap(number: int, start: int, end: int) -> bytes:
    return frame(GAP, _DATA.pack(number, start, end))


def _fields(layout: struct.Struct, payload: bytes | memoryview, exact: bool) -> tuple[Any, ...]:
    if len(payload) < layout.size or (exact and len(payload) != layout.size):
        raise PeerFault(f"a frame of {len(payload)} bytes where {layout.size} belong")
    return layout.unpack_from(payload)


def read_json(payload: bytes | memoryview) -> dict[str, Any]:
    try:
        body = jsontext.load(bytes(payload))
    except (ValueError, RecursionError) as e:
        raise PeerFault(f"unreadable JSON in a frame: {e}") from e
    if not isinstance(body, dict):
        raise PeerFault("a frame's JSON is not an object")
    return body


def read_request(payload: bytes) -> tuple[int, dict[str, Any]]:
    number = _fields(_REQUEST, payload, False)[0]
    return number, read_json(payload[_REQUEST.size :])


def read_cancel(payload: bytes) -> int:
    number: int = _fields(_REQUEST, payload, True)[0]
    return number


def read_input(payload: bytes) -> tuple[int, int, bytes]:
    sequence, flags = _fields(_INPUT, payload, False)
    return sequence, flags, payload[_INPUT.size :]


def read_resize(payload: bytes) -> tuple[int, int, int]:
    sequence, cols, rows = _fields(_RESIZE, payload, True)
    return sequence, cols, rows


def read_reply(payload: bytes | memoryview) -> tuple[int, bool, dict[str, Any]]:
    number, ok = _fields(_REPLY, payload, False)
    return number, bool(ok), read_json(payload[_REPLY.size :])


def read_output(payload: bytes | memoryview) -> tuple[int, int, int, bytes | memoryview]:
    start, end, acked = _fields(_OUTPUT, payload, False)
    return start, end, acked, payload[_OUTPUT.size :]


def read_screen(payload: bytes | memoryview) -> tuple[int, int, int, int, int, bytes | memoryview]:
    offset, acked, reason, cols, rows = _fields(_SCREEN, payload, False)
    return offset, acked, reason, cols, rows, payload[_SCREEN.size :]


def read_data(payload: memoryview) -> tuple[int, int, int, memoryview]:
    number, start, end = _fields(_DATA, payload, False)
    return number, start, end, payload[_DATA.size :]


def single(data: bytes) -> int | None:
    """Return the frame's kind if `data` is exactly one key, the most frequent frame; else None."""
    if (
        len(data) < HEADER.size
        or data[4] != INPUT
        or len(data) - HEADER.size != int.from_bytes(data[:4], "little")
    ):
        return None
    return INPUT


class Reader:
    """Reads frames from a reusable buffer without copies:

    a frame is valid until `space` is called.
    """

    def __init__(
        self, allowed: frozenset[int], limit: int = FRAME_BYTES, size: int = 1 << 18
    ) -> None:
        self._allowed, self._limit = allowed, limit
        self._buffer = memoryview(bytearray(size))
        self._start = self._end = 0

    def space(self) -> memoryview:
        """Return the space to receive into. Frames returned before become invalid."""
        kept = self._end - self._start
        need = HEADER.size
        if kept >= HEADER.size:
            need += HEADER.unpack_from(self._buffer, self._start)[0]
        if need > len(self._buffer):
            larger = memoryview(bytearray(need + (1 << 16)))
            larger[:kept] = self._buffer[self._start : self._end]
            self._buffer = larger
        elif kept and self._start:
            self._buffer[:kept] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, kept
        return self._buffer[kept:]

    def received(self, count: int) -> None:
        self._end += count

    def rest(self) -> bytes:
        """The beginning of a frame that is not complete; it is taken out."""
        rest = bytes(self._buffer[self._start : self._end])
        self._start = self._end = 0
        return rest

    def next(self) -> tuple[int, memoryview] | None:
        if self._end - self._start < HEADER.size:
            return None
        length, kind = HEADER.unpack_from(self._buffer, self._start)
        if kind not in self._allowed:
            raise PeerFault(f"unknown frame kind {kind:#x}")
        if length > self._limit:
            raise PeerFault(f"a frame of {length} bytes; at most {self._limit}")
        begin = self._start + HEADER.size
        if begin + length > self._end:
            return None
        self._start = begin + length
        return kind, self._buffer[begin : begin + length]


class Splitter:
    """Cuts a byte stream into frames. Raises PeerFault for bytes that cannot be a frame."""

    def __init__(self, allowed: frozenset[int], limit: int = FRAME_BYTES) -> None:
        self._allowed = allowed
        self._limit = limit
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        return len(self._buffer)

    def take(self) -> bytes:
        """The beginning of a frame that is not complete; it is taken out."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
        """Yield the complete frames so far; payloads are copies and stay valid."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= HEADER.size:
                length, kind = HEADER.unpack_from(buffer, at)
                if kind not in self._allowed:
                    raise PeerFault(f"unknown frame kind {kind:#x}")
                if length > self._limit:
                    raise PeerFault(f"a frame of {length} bytes; at most {self._limit}")
                end = at + HEADER.size + length
                if end > len(buffer):
                    break
                payload = bytes(buffer[at + HEADER.size : end])
                at = end
                yield kind, payload
        finally:
            del buffer[:at]
