"""The wire between a host and a keeper (and the nursery that makes keepers).

Packets travel over a SOCK_SEQPACKET unix socket: one packet, one message, so framing cannot be lost. All integers are
little endian. A keeper is never upgraded under a live session, so this table only grows, and VERSION is
negotiated: the host offers the range it speaks, the keeper answers with what it is.

    code | packet    | layout                                             | direction
    -----|-----------|----------------------------------------------------|------------------
    0x01 | HELLO     | lowest u16, highest u16, term u64                  | host   -> keeper
    0x02 | INPUT     | ACT, bytes                                         | host   -> keeper
    0x03 | RESIZE    | ACT, cols u16, rows u16                            | host   -> keeper
    0x04 | SIGNAL    | ACT, number u8, scope u8, pid u32, start u64       | host   -> keeper
    0x05 | FLUSH     | ACT (discard what the terminal has not handed out) | host   -> keeper
    0x06 | WITHDRAW  | epoch u64, from u64                                | host   -> keeper
    0x07 | CONSUMED  | offset u64                                         | host   -> keeper
    0x08 | QUERY     | tag u32                                            | host   -> keeper
    0x09 | RELEASE   | (nothing: the exit code was collected)             | host   -> keeper
    0x0a | FENCE     | epoch u64, deadline u64 (+ freeze descriptor)      | host   -> keeper
    0x0b | LABEL     | bytes                                              | host   -> keeper
    0x0c | LISTEN    | tag u32 (+ eventfd, rung at output)                | host   -> keeper
    0x0d | SILENCE   | tag u32                                            | host   -> keeper
    0x81 | WELCOME   | see Welcome (+ ring, snapshot, eventfd)            | keeper -> host
    0x82 | REFUSED   | reason u8, value u64                               | keeper -> host
    0x83 | REJECTED  | sequence u64, reason u8, value u64                 | keeper -> host
    0x84 | WITHDRAWN | count u16, count x (sequence u64, written u32, total u32) | keeper -> host
    0x85 | STATE     | see State                                          | keeper -> host
    0x86 | EXITED    | status i32, reaped u16, reaped x (pid u32, status i32) | keeper -> host

    ACT ::= epoch u64, sequence u64, origin u64, origin sequence u64, flags u8

Each act carries the incarnation's **epoch** (the fencing token: another one is rejected), and a **sequence** that
rises by one; what was applied is never applied again. The connection carries the **term** (which host process
speaks): a claim with a higher term closes the older connection, a claim that is not higher is refused. **origin** and
its own sequence name the client's act behind it: the keeper remembers the last one per origin, so a host that died
between sending and hearing back finds in WELCOME what was applied, and a client's retry is recognised (exactly once).

Acts take effect in sequence order, with one exception: RESIZE and SIGNAL do not wait for input that the program has
not read (as on every terminal). FLUSH discards all input before it. WITHDRAW takes back waiting input from a sequence
on and says how far each piece had got. Once the root process has ended, only SIGNAL is taken. An act that is refused
(REJECTED) is not used up: the next one has the same sequence.

Effects are not answered by packets: the keeper raises ACCEPTED and WRITTEN in the ring's header, and rings the
eventfd only if the act asked for it (flag ACK; again when its effect is complete later): an echoed key wakes the host
once, not twice.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.model import limits

VERSION: Final = 1

HELLO, INPUT, RESIZE, SIGNAL, FLUSH, WITHDRAW, CONSUMED, QUERY, RELEASE, FENCE, LABEL, LISTEN, SILENCE = range(1, 14)
WELCOME, REFUSED, REJECTED, WITHDRAWN, STATE, EXITED = range(0x81, 0x87)

REFUSED_VERSION, REFUSED_TERM, REFUSED_PACKET = 1, 2, 3
REJECT_EPOCH, REJECT_SEQUENCE, REJECT_FULL, REJECT_FENCED, REJECT_CLOSED = 1, 2, 3, 4, 5

SCOPE_FOREGROUND, SCOPE_ROOT_GROUP, SCOPE_ALL, SCOPE_PROCESS = 0, 1, 2, 3

ACT_ACK: Final = 1

SIGNAL_MAX, PID_MAX, OFFSET_MAX, STATUS_MAX = 64, 2**31 - 1, 2**63 - 1, 0xFFFF

_HELLO = struct.Struct("<BHHQ")
_ACT = struct.Struct("<BQQQQB")
ACT_BYTES: Final = _ACT.size
_SIZE = struct.Struct("<HH")
_SIGNAL = struct.Struct("<BBIQ")
_TWO = struct.Struct("<BQQ")
_ONE = struct.Struct("<BQ")
_QUERY = struct.Struct("<BI")
_REFUSED = struct.Struct("<BBQ")
_REJECTED = struct.Struct("<BQBQ")
_COUNT = struct.Struct("<BH")
_WITHDRAWN = struct.Struct("<QII")
_EXITED = struct.Struct("<BiH")
_REAPED = struct.Struct("<Ii")
_WELCOME = struct.Struct("<BHQQQQIQiBHHH")
_ORIGIN = struct.Struct("<QQQ")
_STATE = struct.Struct("<BIIIHHIIIIQ")
_ORIGIN_BYTES, _REAPED_BYTES = _ORIGIN.size, _REAPED.size


class Malformed(Exception):
    """Bytes that are no packet of this wire."""


class Act(NamedTuple):
    """What every effect on a session carries, whoever caused it."""

    epoch: int
    sequence: int
    origin: int
    origin_sequence: int
    flags: int = 0


class Origin(NamedTuple):
    """The last act applied for one client: its own sequence and the session's."""

    origin: int
    origin_sequence: int
    sequence: int


class Welcome(NamedTuple):
    """What a keeper is and has done so far."""

    version: int
    epoch: int
    term: int
    consumed: int
    created_ns: int           # CLOCK_REALTIME at spawn
    root_pid: int
    root_start: int           # start time in clock ticks: with the boot id, the process's identity
    status: int               # wait status of the root process, or -1 while it lives
    cols: int
    rows: int
    session: str
    label: bytes
    origins: tuple[Origin, ...]
    reaped: tuple[tuple[int, int], ...]


class State(NamedTuple):
    """The terminal as the kernel has it now."""

    tag: int
    foreground: int           # foreground process group, 0 if none
    session_leader: int
    cols: int
    rows: int
    iflag: int
    oflag: int
    cflag: int
    lflag: int
    queued_input: int         # bytes accepted but not yet taken by the terminal


def hello(term: int, lowest: int = VERSION, highest: int = VERSION) -> bytes:
    return _HELLO.pack(HELLO, lowest, highest, term)


def act(kind: int, a: Act | tuple[int, int, int, int, int], body: bytes = b"") -> bytes:
    return _ACT.pack(kind, *a) + body


def resize_body(cols: int, rows: int) -> bytes:
    return _SIZE.pack(cols, rows)


def resize(a: Act, cols: int, rows: int) -> bytes:
    return act(RESIZE, a, resize_body(cols, rows))


def signal_body(number: int, scope: int, pid: int = 0, start: int = 0) -> bytes:
    return _SIGNAL.pack(number, scope, pid, start)


def signal(a: Act, number: int, scope: int, pid: int = 0, start: int = 0) -> bytes:
    return act(SIGNAL, a, signal_body(number, scope, pid, start))


def withdraw(epoch: int, first: int) -> bytes:
    return _TWO.pack(WITHDRAW, epoch, first)


def consumed(offset: int) -> bytes:
    return _ONE.pack(CONSUMED, offset)


def query(tag: int) -> bytes:
    return _QUERY.pack(QUERY, tag)


def release() -> bytes:
    return bytes([RELEASE])


def fence(epoch: int, deadline_ns: int) -> bytes:
    return _TWO.pack(FENCE, epoch, deadline_ns)


def label(data: bytes) -> bytes:
    if len(data) > limits.LABEL_BYTES:
        raise Malformed("label too long")
    return bytes([LABEL]) + data


def listen(tag: int) -> bytes:
    """One more bell to ring at output: of a viewer here that reads the ring itself. Bells go with the host's term."""
    return _QUERY.pack(LISTEN, tag)


def silence(tag: int) -> bytes:
    return _QUERY.pack(SILENCE, tag)


def refused(reason: int, value: int) -> bytes:
    return _REFUSED.pack(REFUSED, reason, value)


def rejected(sequence: int, reason: int, value: int) -> bytes:
    return _REJECTED.pack(REJECTED, sequence, reason, value)


def withdrawn(entries: list[tuple[int, int, int]]) -> bytes:
    return _COUNT.pack(WITHDRAWN, len(entries)) + b"".join(_WITHDRAWN.pack(*e) for e in entries)


def exited(status: int, reaped: list[tuple[int, int]]) -> bytes:
    return _EXITED.pack(EXITED, status, len(reaped)) + b"".join(_REAPED.pack(*r) for r in reaped)


def state(tag: int, foreground: int, session_leader: int, cols: int, rows: int, iflag: int, oflag: int, cflag: int,
          lflag: int, queued_input: int) -> bytes:
    """The fields of State, in their order."""
    return _STATE.pack(STATE, tag, foreground, session_leader, cols, rows, iflag, oflag, cflag, lflag, queued_input)


def welcome(version: int, epoch: int, term: int, consumed: int, created_ns: int, root_pid: int, root_start: int,
            status: int, cols: int, rows: int, session: bytes, label: bytes, origins: Iterable[tuple[int, int, int]],
            reaped: Iterable[tuple[int, int]]) -> bytes:
    """The fields of Welcome, in their order. (Sums, not joins: a keeper has touched what that needs already.)"""
    origins_ = reaped_ = b""
    for origin, number, sequence in origins:
        origins_ += _ORIGIN.pack(origin, number, sequence)
    for pid, code in reaped:
        reaped_ += _REAPED.pack(pid, code)
    return (_WELCOME.pack(WELCOME, version, epoch, term, consumed, created_ns, root_pid, root_start, status,
                          len(session), len(label), len(origins_) // _ORIGIN_BYTES, len(reaped_) // _REAPED_BYTES)
            + _SIZE.pack(cols, rows) + session + label + origins_ + reaped_)


def _unpack(layout: struct.Struct, packet: bytes, more: bool = False) -> tuple[int, ...]:
    """The fields of a packet, its code first; `more` if it goes on after them."""
    try:
        return layout.unpack_from(packet) if more else layout.unpack(packet)
    except struct.error:
        raise Malformed(f"packet {packet[:1].hex()} has {len(packet)} bytes") from None


def read_act(packet: bytes) -> tuple[tuple[int, ...], bytes]:
    """The fields of Act, in their order, and the body, which is right for its kind."""
    fields = _unpack(_ACT, packet, more=True)
    body = packet[ACT_BYTES:]
    kind = fields[0]
    if kind == RESIZE:
        read_size(body)
    elif kind == SIGNAL:
        read_signal(body)
    elif kind == FLUSH and body:
        raise Malformed("flush with a body")
    return fields[1:], body


def read_size(body: bytes) -> tuple[int, int]:
    try:
        cols, rows = _SIZE.unpack(body)
    except struct.error:
        raise Malformed("bad size") from None
    if not (limits.COLS_MIN <= cols <= limits.COLS_MAX and limits.ROWS_MIN <= rows <= limits.ROWS_MAX):
        raise Malformed(f"degenerate size {cols}x{rows}")
    return cols, rows


def read_signal(body: bytes) -> tuple[int, int, int, int]:
    try:
        number, scope, pid, start = _SIGNAL.unpack(body)
    except struct.error:
        raise Malformed("bad signal") from None
    if number > SIGNAL_MAX or scope > SCOPE_PROCESS or pid > PID_MAX:
        raise Malformed("bad signal")
    return number, scope, pid, start


def read_label(packet: bytes) -> bytes:
    if len(packet) - 1 > limits.LABEL_BYTES:
        raise Malformed("label too long")
    return packet[1:]


def read_hello(packet: bytes) -> tuple[int, int, int]:
    _, lowest, highest, term = _unpack(_HELLO, packet)
    return lowest, highest, term


def read_two(packet: bytes) -> tuple[int, int]:
    _, a, b = _unpack(_TWO, packet)
    return a, b


def read_one(packet: bytes) -> int:
    return _unpack(_ONE, packet)[1]


def read_query(packet: bytes) -> int:
    return _unpack(_QUERY, packet)[1]


def read_refused(packet: bytes) -> tuple[int, int]:
    _, reason, value = _unpack(_REFUSED, packet)
    return reason, value


def read_rejected(packet: bytes) -> tuple[int, int, int]:
    _, sequence, reason, value = _unpack(_REJECTED, packet)
    return sequence, reason, value


def read_withdrawn(packet: bytes) -> list[tuple[int, int, int]]:
    _, count = _unpack(_COUNT, packet, more=True)
    body = packet[_COUNT.size:]
    if count > limits.INPUT_QUEUE_ACTS or len(body) != count * _WITHDRAWN.size:
        raise Malformed("bad withdrawn")
    return [(a, b, c) for a, b, c in _WITHDRAWN.iter_unpack(body)]


def read_exited(packet: bytes) -> tuple[int, list[tuple[int, int]]]:
    _, status, count = _unpack(_EXITED, packet, more=True)
    body = packet[_EXITED.size:]
    if count > limits.REAPED_KEPT or len(body) != count * _REAPED.size:
        raise Malformed("bad exited")
    return status, [(pid, code) for pid, code in _REAPED.iter_unpack(body)]


def read_state(packet: bytes) -> State:
    return State(*_unpack(_STATE, packet)[1:])


def read_welcome(packet: bytes) -> Welcome:
    fields = _unpack(_WELCOME, packet, more=True)
    (version, epoch, term, consumed_, created, root_pid, root_start, status,
     session_len, label_len, origin_count, reaped_count) = fields[1:]
    at = _WELCOME.size
    want = at + _SIZE.size + session_len + label_len + origin_count * _ORIGIN.size + reaped_count * _REAPED.size
    if len(packet) != want or origin_count > limits.ORIGINS_KEPT or reaped_count > limits.REAPED_KEPT:
        raise Malformed("bad welcome")
    cols, rows = _SIZE.unpack_from(packet, at)
    at += _SIZE.size
    session = packet[at:at + session_len].decode("ascii", "replace")
    at += session_len
    label_ = packet[at:at + label_len]
    at += label_len
    split = at + origin_count * _ORIGIN.size
    return Welcome(version, epoch, term, consumed_, created, root_pid, root_start, status, cols, rows, session, label_,
                   tuple(Origin(*o) for o in _ORIGIN.iter_unpack(packet[at:split])),
                   tuple((p, s) for p, s in _REAPED.iter_unpack(packet[split:])))


# --- spawn requests: tag u8, length u32, value; sent as one stream to the nursery -------------------------------
# A keeper either starts a program (ARGV, ENV, CWD, UMASK) or takes over a tree that something else launched
# (ADOPT_PID with the terminal's master as a descriptor, BASE, RING_TAIL, ORIGIN, ACCEPTED, STATUS): saved state.

(T_SESSION, T_EPOCH, T_ARGV, T_ENV, T_CWD, T_UMASK, T_SIZE, T_RING, T_LABEL, T_SOCKET, T_AWAY,
 T_ADOPT_PID, T_BASE, T_RING_TAIL, T_ORIGIN, T_ACCEPTED, T_STATUS) = range(1, 18)

_TLV = struct.Struct("<BI")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
SPAWN_HEADER = struct.Struct("<4sHI")
SPAWN_MAGIC: Final = b"HFS1"
QUIT_MAGIC: Final = b"HFQ1"   # the nursery ends itself; keepers are not touched
SPAWN_OK, SPAWN_FAILED = 0, 1
SPAWN_REPLY = struct.Struct("<BiIH")  # result, errno, pid, length of text


class Spawn(NamedTuple):
    """Everything a keeper needs to begin."""

    session: str
    epoch: int
    socket: str                              # file name of the listening socket in the nursery's directory
    cols: int
    rows: int
    ring_bytes: int
    away_ms: int
    label: bytes = b""
    argv: tuple[bytes, ...] = ()
    env: tuple[bytes, ...] = ()              # KEY=VALUE
    cwd: bytes = b"/"
    umask: int = 0o077
    adopt_pid: int = 0
    base: int = 0
    ring_tail: bytes = b""
    origins: tuple[Origin, ...] = ()
    accepted: int = 0
    status: int = -1


def spawn(s: Spawn) -> bytes:
    """The request as sent: header, then tagged values."""
    items: list[tuple[int, bytes]] = [
        (T_SESSION, s.session.encode()), (T_EPOCH, _U64.pack(s.epoch)), (T_SOCKET, s.socket.encode()),
        (T_SIZE, _SIZE.pack(s.cols, s.rows)), (T_RING, _U64.pack(s.ring_bytes)), (T_AWAY, _U64.pack(s.away_ms)),
        (T_LABEL, s.label), (T_CWD, s.cwd), (T_UMASK, _U64.pack(s.umask)), (T_ADOPT_PID, _U64.pack(s.adopt_pid)),
        (T_BASE, _U64.pack(s.base)), (T_RING_TAIL, s.ring_tail), (T_ACCEPTED, _U64.pack(s.accepted)),
        (T_STATUS, _I64.pack(s.status)),
        *((T_ARGV, a) for a in s.argv), *((T_ENV, e) for e in s.env),
        *((T_ORIGIN, _ORIGIN.pack(*o)) for o in s.origins)]
    body = b"".join(_TLV.pack(tag, len(value)) + value for tag, value in items)
    if len(body) > limits.SPAWN_BYTES:
        raise Malformed(f"spawn request of {len(body)} bytes; at most {limits.SPAWN_BYTES}")
    return SPAWN_HEADER.pack(SPAWN_MAGIC, VERSION, len(body)) + body


def read_spawn(body: bytes) -> Spawn:
    """A request from its tagged values; anything unknown, missing or out of range is refused."""
    one: dict[int, bytes] = {}
    many: dict[int, list[bytes]] = {T_ARGV: [], T_ENV: [], T_ORIGIN: []}
    at = 0
    while at < len(body):
        if at + _TLV.size > len(body):
            raise Malformed("truncated spawn request")
        tag, length = _TLV.unpack_from(body, at)
        at += _TLV.size
        value = body[at:at + length]
        if len(value) != length:
            raise Malformed("truncated spawn request")
        at += length
        if tag in many:
            many[tag].append(value)
        elif T_SESSION <= tag <= T_STATUS and tag not in one:
            one[tag] = value
        else:
            raise Malformed(f"unknown or repeated tag {tag} in spawn request")
    try:
        cols, rows = read_size(one[T_SIZE])
        request = Spawn(
            session=one[T_SESSION].decode("ascii"), epoch=_U64.unpack(one[T_EPOCH])[0],
            socket=one[T_SOCKET].decode("ascii"), cols=cols, rows=rows, ring_bytes=_U64.unpack(one[T_RING])[0],
            away_ms=_U64.unpack(one[T_AWAY])[0], label=one[T_LABEL], argv=tuple(many[T_ARGV]), env=tuple(many[T_ENV]),
            cwd=one[T_CWD], umask=_U64.unpack(one[T_UMASK])[0], adopt_pid=_U64.unpack(one[T_ADOPT_PID])[0],
            base=_U64.unpack(one[T_BASE])[0], ring_tail=one[T_RING_TAIL],
            origins=tuple(Origin(*_ORIGIN.unpack(o)) for o in many[T_ORIGIN]),
            accepted=_U64.unpack(one[T_ACCEPTED])[0], status=_I64.unpack(one[T_STATUS])[0])
    except (KeyError, struct.error, UnicodeDecodeError) as e:
        raise Malformed(f"incomplete spawn request: {e}") from e
    wrong = _wrong(request)
    if wrong:
        raise Malformed(wrong)
    return request


def _wrong(r: Spawn) -> str:
    """What makes a request that can be read one that cannot be meant; empty if nothing."""
    if not r.adopt_pid and not (r.argv and r.argv[0]):
        return "nothing to run"
    if "/" in r.socket or r.socket in ("", ".", "..") or "\0" in r.socket or len(r.socket) > limits.KEEPER_NAME_BYTES:
        return "bad socket name"
    if len(r.session) > limits.KEEPER_NAME_BYTES or len(r.label) > limits.LABEL_BYTES:
        return "session id or label too long"
    if any(b"\0" in word for word in (*r.argv, *r.env, r.cwd)):
        return "a zero byte in argument, environment or directory"
    if any(entry.find(b"=") < 1 for entry in r.env):
        return "an environment entry without a name"
    if not 1 <= r.ring_bytes <= limits.RING_BYTES_MAX or r.away_ms > limits.HOST_AWAY_MAX_S * 1000:
        return "ring or patience out of range"
    if r.umask > 0o777 or r.adopt_pid > PID_MAX or not -1 <= r.status <= STATUS_MAX:
        return "umask, pid or status out of range"
    if r.base > OFFSET_MAX or r.accepted > OFFSET_MAX or len(r.ring_tail) > r.base:
        return "offset or sequence out of range"
    return ""


assert (_WELCOME.size + _SIZE.size + limits.KEEPER_NAME_BYTES + limits.LABEL_BYTES + limits.ORIGINS_KEPT * _ORIGIN.size
        + limits.REAPED_KEPT * _REAPED.size) < limits.KEEPER_PACKET_BYTES
assert _COUNT.size + limits.INPUT_QUEUE_ACTS * _WITHDRAWN.size < limits.KEEPER_PACKET_BYTES


def nursery_command(run_dir: str) -> list[str]:
    """How to start a nursery: by its path, without site packages (why: docs/decisions/0002-keeper-memory.md)."""
    package = __file__.rsplit("/", 2)[0]
    return [sys.executable, "-I", "-S", "-X", "utf8", f"{package}/keeper/__main__.py", run_dir]
