"""Outer frames: the only frames that a relay understands, defined in proto/holdfast.proto.

Each frame is one message of the carrier: WebSocket (subprotocol holdfast.1, path /) or gRPC
(/holdfast.v1.Relay/Connect). A peer with a token sends `authorization: Bearer TOKEN`.

    frame      | fields                                               | direction
    -----------|------------------------------------------------------|------------------------------
    HELLO      | lowest, highest, role (host, client), software       | any -> relay, first
    WELCOME    | version, nonce, frame_bytes, streams, ping_s, software | relay -> any, first
    REGISTER   | route_key, generation, signature, passes             | host -> relay
    REGISTERED | route                                                | relay -> host
    PASSES     | passes (they replace those of the registration)      | host -> relay
    OPEN       | stream, route, pass                                  | client -> relay
    INCOMING   | stream                                               | relay -> host
    ACCEPT     | stream                                               | host -> relay -> client
    DATA       | stream, payload (one sealed message)                 | both ways, end to end
    CREDIT     | stream, amount (payload bytes that may follow)       | both ways, end to end
    CLOSE      | stream (0: the connection), code, reason             | any
    PING, PONG | mark (8 bytes, echoed)                               | any
    WATCH      | route, pass                                          | client -> relay
    PRESENCE   | route, online, since (a hint)                        | relay -> client

A route is 16 opaque bytes derived from the host's key at this relay. A pass is 32 bytes that the
host gave to the client; the relay knows only its hash and does not forward the pass
(core/sealed/route.py has both). Names, sessions and terminal sizes travel inside DATA, which is
sealed between host and client. A relay still learns which peers are connected, how much they send,
and when. The DATA of a webhook is not sealed (wire/carried.py).

Streams. A client numbers its streams from 1 upwards; the relay numbers streams on the host's side.
Each direction starts with a credit of STREAM_WINDOW_BYTES and never has more outstanding. CREDIT
comes from the far end, so a relay holds at most one window per direction. After CLOSE, further
frames of that stream are ignored. A relay's CLOSE concerns the connection only and is not
authenticated.

Reading is strict. PeerFault refuses, never skips: a frame without a kind or with two; a field of
another kind or with a wrong length; a number out of bounds; invalid text; padding; unknown or
repeated fields; a kind that must not come from that side. New fields need a new version. Redundant
encodings are found by length: the decoded frame, encoded again, must be as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from holdfast.model import limits
from holdfast.model.errors import PeerFault
from holdfast.wire import contract_pb2 as contract

VERSION: Final = 1
LOWEST: Final = 1
ROUTE_BYTES: Final = 16
PASS_BYTES: Final = 32
DIGEST_BYTES: Final = 32
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
NONCE_BYTES: Final = 32
MARK_BYTES: Final = 8
U32: Final = (1 << 32) - 1
U63: Final = (1 << 63) - 1

HOST, CLIENT = 1, 2  # roles
ROLES: Final = (HOST, CLIENT)

# Reasons for CLOSE.
DONE, REFUSED, OFFLINE, UNAUTHORIZED, REPLACED, PROTOCOL, FLOW, SLOW = range(1, 9)
LIMIT, AWAY, TIMEOUT, UNSPOKEN, FAILED = range(9, 14)
CODES: Final = {
    DONE: "done",
    REFUSED: "refused",
    OFFLINE: "offline",
    UNAUTHORIZED: "unauthorized",
    REPLACED: "replaced",
    PROTOCOL: "protocol",
    FLOW: "flow",
    SLOW: "slow",
    LIMIT: "limit",
    AWAY: "away",
    TIMEOUT: "timeout",
    UNSPOKEN: "version",
    FAILED: "failed",
}


class Hello(NamedTuple):
    lowest: int
    highest: int
    role: int
    software: str


class Welcome(NamedTuple):
    version: int
    nonce: bytes
    frame_bytes: int
    streams: int
    ping_s: int
    software: str


class Register(NamedTuple):
    route_key: bytes
    generation: int
    signature: bytes
    passes: tuple[bytes, ...]


class Registered(NamedTuple):
    route: bytes


class Passes(NamedTuple):
    passes: tuple[bytes, ...]


class Open(NamedTuple):
    stream: int
    route: bytes
    pass_: bytes

    def __repr__(self) -> str:  # a pass must not end up in a log
        return f"Open(stream={self.stream}, route={self.route.hex()})"


class Incoming(NamedTuple):
    stream: int


class Accept(NamedTuple):
    stream: int


class Data(NamedTuple):
    stream: int
    payload: bytes

    def __repr__(self) -> str:
        return f"Data(stream={self.stream}, {len(self.payload)} bytes)"


class Credit(NamedTuple):
    stream: int
    amount: int


class Close(NamedTuple):
    stream: int
    code: int
    reason: str = ""


class Ping(NamedTuple):
    mark: bytes


class Pong(NamedTuple):
    mark: bytes


class Watch(NamedTuple):
    route: bytes
    pass_: bytes

    def __repr__(self) -> str:
        return f"Watch(route={self.route.hex()})"


class Presence(NamedTuple):
    route: bytes
    online: bool
    since: int


Frame = (
    Hello
    | Welcome
    | Register
    | Registered
    | Passes
    | Open
    | Incoming
    | Accept
    | Data
    | Credit
    | Close
    | Ping
    | Pong
    | Watch
    | Presence
)

_BOTH: Final = frozenset((Accept, Data, Credit, Close, Ping, Pong))
# Frames that a relay accepts from a host and from a client.
FROM_HOST: Final = frozenset((Hello, Register, Passes)) | _BOTH
FROM_CLIENT: Final = (frozenset((Hello, Open, Watch)) | _BOTH) - {Accept}
# Frames that a host and a client accept from a relay.
TO_HOST: Final = (frozenset((Welcome, Registered, Incoming)) | _BOTH) - {Accept}
TO_CLIENT: Final = frozenset((Welcome, Presence)) | _BOTH
ANY: Final = FROM_HOST | FROM_CLIENT | TO_HOST | TO_CLIENT


def encode(frame: Frame) -> bytes:
    """Encode a frame. Raises ValueError for a frame that a peer would refuse."""
    if type(frame) is Data:  # by far the most frequent
        if not (0 < frame[0] <= U32 and 0 < len(frame[1]) <= limits.SEALED_BYTES):
            raise ValueError(f"no frame: {frame!r}")
        inner = _varint(frame[0]) + b"\x12" + _varint(len(frame[1]))
        return b"".join(
            (b"\x4a", _varint(1 + len(inner) + len(frame[1])), b"\x08", inner, frame[1])
        )
    if (
        type(frame) is Credit
        and type(frame[0]) is type(frame[1]) is int
        and 0 < frame[0] <= U32
        and 0 < frame[1] <= limits.STREAM_WINDOW_BYTES
    ):
        inner = b"\x08" + _varint(frame[0]) + b"\x10" + _varint(frame[1])
        return b"\x52" + _varint(len(inner)) + inner
    kind = _KINDS.get(type(frame))
    if kind is None:
        raise ValueError(f"{type(frame).__name__} is no frame")
    try:
        kind.check(frame)
        fields = {name.rstrip("_"): value for name, value in frame._asdict().items()}
        data = contract.Frame(**{kind.name: kind.message(**fields)}).SerializeToString()
    except (PeerFault, TypeError, UnicodeError) as e:
        raise ValueError(f"no frame: {e}") from e
    if len(data) > limits.OUTER_BYTES:
        raise ValueError(f"a frame of {len(data)} bytes; at most {limits.OUTER_BYTES}")
    return data


def decode(data: bytes, allowed: frozenset[type] = ANY) -> Frame:
    """Decode a frame of an allowed kind. Raises PeerFault for any other bytes."""
    if len(data) > limits.OUTER_BYTES:
        raise PeerFault(f"a frame of {len(data)} bytes; at most {limits.OUTER_BYTES}")
    if data[:1] == b"\x4a" and (quick := _quick(data)) is not None and Data in allowed:
        return quick
    if data[:1] == b"\x52" and (credit := _quick_credit(data)) is not None and Credit in allowed:
        return credit
    try:
        message = contract.Frame.FromString(data)
    except (DecodeError, ValueError, RecursionError) as e:
        raise PeerFault("these bytes are no frame") from e
    name = message.WhichOneof("kind")
    kind = _BY_NAME.get(name or "")
    if kind is None:
        raise PeerFault("a frame of no known kind")
    if kind.type not in allowed:
        raise PeerFault(f"{kind.name} does not come from this side")
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        raise PeerFault(f"{kind.name} with unknown or repeated fields")
    body = getattr(message, kind.name)
    read: Frame = kind.read(body)
    kind.check(read)
    return read


# ------------------------------------------------------------ DATA and CREDIT by hand
# They are by far the most frequent frames, and the library copies DATA three times.


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _quick(data: bytes) -> Data | None:
    """Decode DATA in its usual encoding. None: the library must decide."""
    try:
        length, at = _number_at(data, 1)
        if length != len(data) - at or data[at] != 0x08:
            return None
        stream, at = _number_at(data, at + 1)
        if data[at] != 0x12:
            return None
        length, at = _number_at(data, at + 1)
    except IndexError:
        return None
    if not 0 < length == len(data) - at or length > limits.SEALED_BYTES or not 0 < stream <= U32:
        return None
    return Data(stream, bytes(data[at:]))


def _quick_credit(data: bytes) -> Credit | None:
    """Decode CREDIT in its usual encoding. None: the caller uses the protobuf library."""
    try:
        length, at = _number_at(data, 1)
        if length != len(data) - at or data[at] != 0x08:
            return None
        stream, at = _number_at(data, at + 1)
        if data[at] != 0x10:
            return None
        amount, at = _number_at(data, at + 1)
    except IndexError:
        return None
    if at != len(data) or not 0 < stream <= U32 or not 0 < amount <= limits.STREAM_WINDOW_BYTES:
        return None
    return Credit(stream, amount)


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint in its shortest encoding; return its value and end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and shift:
                raise IndexError
            return value, at
        shift += 7
        if shift > 28:
            raise IndexError


# ------------------------------------------------------------ rules for each kind


def _number(what: str, value: object, lowest: int, highest: int) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise PeerFault(f"{what} is not between {lowest} and {highest}")


def _exactly(what: str, value: object, length: int) -> None:
    if type(value) is not bytes or len(value) != length:
        raise PeerFault(f"{what} does not have {length} bytes")


def _text(what: str, value: object, most: int) -> None:
    if type(value) is not str or len(value) > most or not value.isprintable():
        raise PeerFault(f"{what} is not one line of at most {most} characters")


def _hello(f: Hello) -> None:
    _number("the lowest version", f.lowest, 1, U32)
    _number("the highest version", f.highest, f.lowest, U32)
    if f.role not in ROLES:
        raise PeerFault("no such role")
    _text("the software", f.software, limits.SOFTWARE_CHARS)


def _welcome(f: Welcome) -> None:
    _number("the version", f.version, 1, U32)
    _exactly("the nonce", f.nonce, NONCE_BYTES)
    _number("the size of frames", f.frame_bytes, limits.OUTER_BYTES, U32)
    _number("the number of streams", f.streams, 1, limits.STREAMS_MAX)
    _number("the time between pings", f.ping_s, 1, limits.PING_S_MAX)
    _text("the software", f.software, limits.SOFTWARE_CHARS)


def _digests(passes: tuple[bytes, ...]) -> None:
    if len(passes) > limits.PASSES_MAX:
        raise PeerFault(f"more than {limits.PASSES_MAX} passes")
    for one in passes:
        _exactly("a pass's hash", one, DIGEST_BYTES)
    if len(set(passes)) != len(passes):
        raise PeerFault("the same pass twice")


def _register(f: Register) -> None:
    _exactly("the route's key", f.route_key, KEY_BYTES)
    _number("the generation", f.generation, 1, U63)
    _exactly("the signature", f.signature, SIGNATURE_BYTES)
    _digests(f.passes)


def _route(f: Registered) -> None:
    _exactly("the route", f.route, ROUTE_BYTES)


def _passes(f: Passes) -> None:
    _digests(f.passes)


def _stream(f: Incoming | Accept) -> None:
    _number("the stream", f.stream, 1, U32)


def _open(f: Open) -> None:
    _number("the stream", f.stream, 1, U32)
    _exactly("the route", f.route, ROUTE_BYTES)
    _exactly("the pass", f.pass_, PASS_BYTES)


def _data(f: Data) -> None:
    _number("the stream", f.stream, 1, U32)
    _number("the length of the payload", len(f.payload), 1, limits.SEALED_BYTES)


def _credit(f: Credit) -> None:
    _number("the stream", f.stream, 1, U32)
    _number("the credit", f.amount, 1, limits.STREAM_WINDOW_BYTES)


def _close(f: Close) -> None:
    _number("the stream", f.stream, 0, U32)
    if f.code not in CODES:
        raise PeerFault("no such code")
    _text("the reason", f.reason, limits.CLOSE_REASON_CHARS)


def _mark(f: Ping | Pong) -> None:
    _exactly("the mark", f.mark, MARK_BYTES)


def _watch(f: Watch) -> None:
    _exactly("the route", f.route, ROUTE_BYTES)
    _exactly("the pass", f.pass_, PASS_BYTES)


def _presence(f: Presence) -> None:
    _exactly("the route", f.route, ROUTE_BYTES)
    if type(f.online) is not bool:
        raise PeerFault("online is yes or no")
    _number("since", f.since, 0, U63)


class _Kind(NamedTuple):
    name: str
    type: type
    message: Any  # the generated class
    check: Callable[[Any], None]
    read: Callable[[object], Frame]


def _reader(made: type, fields: tuple[str, ...]) -> Callable[[object], Frame]:
    def read(body: object) -> Frame:
        frame: Frame = made(
            *(tuple(getattr(body, f)) if f == "passes" else getattr(body, f) for f in fields)
        )
        return frame

    return read


def _kind(made: type[Any], check: Callable[[Any], None]) -> _Kind:
    return _Kind(
        made.__name__.lower(),
        made,
        getattr(contract, made.__name__),
        check,
        _reader(made, tuple(f.rstrip("_") for f in made._fields)),
    )


_CHECKS: Final[dict[type[Any], Callable[[Any], None]]] = {
    Hello: _hello,
    Welcome: _welcome,
    Register: _register,
    Registered: _route,
    Passes: _passes,
    Open: _open,
    Incoming: _stream,
    Accept: _stream,
    Data: _data,
    Credit: _credit,
    Close: _close,
    Ping: _mark,
    Pong: _mark,
    Watch: _watch,
    Presence: _presence,
}
_KINDS: Final = {made: _kind(made, check) for made, check in _CHECKS.items()}
_BY_NAME: Final = {k.name: k for k in _KINDS.values()}


def choose(hello: Hello, lowest: int = LOWEST, highest: int = VERSION) -> int | None:
    """Choose the version for a peer that sent this HELLO, or None if there is no common one.

    The sealed channel has its own versions, independent of the relay.
    """
    best = min(hello.highest, highest)
    return best if best >= max(hello.lowest, lowest) else None


def chosen(welcome: Welcome, lowest: int = LOWEST, highest: int = VERSION) -> int:
    """Return the version that the relay chose. Raises PeerFault if we did not offer it."""
    if not lowest <= welcome.version <= highest:
        raise PeerFault(f"the relay chose version {welcome.version}, which was not offered")
    return welcome.version
