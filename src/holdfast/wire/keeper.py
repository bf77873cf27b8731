"""The wire between a host and a keeper (and the nursery that makes keepers).

Packets travel over a SOCK_SEQPACKET unix socket: one packet is one message, so framing cannot be
lost. All integers are little endian. A keeper is never upgraded under a live session, so this table
only grows. VERSION is negotiated: the host offers a range, the keeper answers with its own version.

    code | packet    | layout                                             | direction
    -----|-----------|----------------------------------------------------|------------------
    0x01 | HELLO     | lowest u16, highest u16, term u64                  | host   -> keeper
    0x02 | INPUT     | ACT, bytes                                         | host   -> keeper
    0x03 | RESIZE    | ACT, cols u16, rows u16                            | host   -> keeper
    0x04 | SIGNAL    | ACT, number u8, scope u8, pid u32, start u64       | host   -> keeper
    0x05 | FLUSH     | ACT, nothing or origin u64 (discard unread input)  | host   -> keeper
    0x06 | WITHDRAW  | epoch u64, from u64                                | host   -> keeper
    0x07 | CONSUMED  | offset u64                                         | host   -> keeper
    0x08 | QUERY     | tag u32                                            | host   -> keeper
    0x09 | RELEASE   | (nothing: the exit code was collected)             | host   -> keeper
    0x0a | FENCE     | epoch u64, deadline u64 (+ freeze descriptor)      | host   -> keeper
    0x0b | LABEL     | bytes                                              | host   -> keeper
    0x0c | LISTEN    | tag u32 (+ eventfd, rung at output)                | host   -> keeper
    0x0d | SILENCE   | tag u32                                            | host   -> keeper
    0x0e | GATE      | (nothing: asks for the exec gate's listener)       | host   -> keeper
    0x81 | WELCOME   | see Welcome (+ ring, snapshot, eventfd)            | keeper -> host
    0x82 | REFUSED   | reason u8, value u64                               | keeper -> host
    0x83 | REJECTED  | sequence u64, reason u8, value u64                 | keeper -> host
    0x84 | WITHDRAWN | count u16, count x (sequence u64, written u32, total u32) | keeper -> host
    0x85 | STATE     | see State                                          | keeper -> host
    0x86 | EXITED    | status i32, reaped u16, reaped x (pid u32, status i32) | keeper -> host
    0x87 | GATED     | errno i32 (+ listener, if errno is 0)              | keeper -> host
    0x88 | CUT_OFF   | status i32, told u8                                | keeper -> host

    ACT ::= epoch u64, sequence u64, origin u64, origin sequence u64, flags u8

Each act carries the incarnation's **epoch** (the fencing token: any other value is rejected) and a
**sequence** that rises by one; an applied act is never applied again. The connection carries the
**term**, which identifies the host process: a claim with a higher term closes the older connection,
any other claim is refused. **origin** and the origin's own sequence identify the client's act. The
keeper remembers the last act per origin. A host that succeeds a dead host therefore finds in
WELCOME which acts were applied, and a client's retry is recognised (exactly once).

Acts take effect in sequence order, with one exception: RESIZE and SIGNAL do not wait for input that
the program has not read, as on every terminal. FLUSH discards all earlier input: input queued here
(of a single origin, if FLUSH names one) and all unread input in the kernel, whose origin is
unknown. With flag REPORT, FLUSH is answered by WITHDRAWN, which lists the pieces that were not
completely written to the terminal. A partly written piece is in that list whatever its origin,
because its written part is discarded too. WITHDRAW takes back queued input from a sequence on,
reports how much of each piece was written, and leaves the kernel's input alone. Once the root
process has ended, only SIGNAL is accepted. A refused act (REJECTED) does not use up its sequence.
REJECTED with sequence 0 is about a FENCE: its epoch was wrong, or it came after the last deadline,
at which the keeper has stopped the programs. The host lets them go on.

Effects are not answered by packets. The keeper raises ACCEPTED and WRITTEN in the ring's header,
and rings the eventfd only if the act asked for it (flag ACK, and again when its effect completes
later): an echoed key wakes the host once, not twice.

GATE is sent only to keepers that were started with a gate, as the session's label says; older
keepers do not know the packet. GATED carries the kernel's listener for execs
(wire/notification.py), or the errno with which the kernel refused the gate at the start of the
session; -1 means that the gate is closed. The host keeps the listener until its connection ends.
Without a host, execs wait; after GATE_AWAY_S the keeper refuses those that no host has read.

CUT_OFF says that the program which connects the session's own network (CONNECT of spawning.py) has
ended before the session, with its wait status. The keeper sends it at that moment and to every
later host after WELCOME; `told` is 1 if an earlier host was told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.model import limits
from holdfast.wire.spawning import GATE_NONE as GATE_NONE
from holdfast.wire.spawning import GATE_REQUIRED as GATE_REQUIRED
from holdfast.wire.spawning import GATE_WANTED as GATE_WANTED
from holdfast.wire.spawning import HALT_SIGNAL as HALT_SIGNAL
from holdfast.wire.spawning import HALTED_NAME as HALTED_NAME
from holdfast.wire.spawning import INIT_NAME as INIT_NAME
from holdfast.wire.spawning import LIMIT_NICE as LIMIT_NICE
from holdfast.wire.spawning import LIMIT_OOM as LIMIT_OOM
from holdfast.wire.spawning import MOUNT_DEVICE as MOUNT_DEVICE
from holdfast.wire.spawning import MOUNT_EMPTY as MOUNT_EMPTY
from holdfast.wire.spawning import MOUNT_FIXED as MOUNT_FIXED
from holdfast.wire.spawning import MOUNT_LINK as MOUNT_LINK
from holdfast.wire.spawning import MOUNT_MEMORY as MOUNT_MEMORY
from holdfast.wire.spawning import MOUNT_READ as MOUNT_READ
from holdfast.wire.spawning import MOUNT_WRITE as MOUNT_WRITE
from holdfast.wire.spawning import NET_HOST as NET_HOST
from holdfast.wire.spawning import NET_NONE as NET_NONE
from holdfast.wire.spawning import NET_OWN as NET_OWN
from holdfast.wire.spawning import NO_NETWORK as NO_NETWORK
from holdfast.wire.spawning import NOT_AS_PLANNED as NOT_AS_PLANNED
from holdfast.wire.spawning import ORIGIN as _ORIGIN
from holdfast.wire.spawning import PID_MAX as PID_MAX
from holdfast.wire.spawning import QUIT_MAGIC as QUIT_MAGIC
from holdfast.wire.spawning import RELEASE_SIGNAL as RELEASE_SIGNAL
from holdfast.wire.spawning import RESOURCES as RESOURCES
from holdfast.wire.spawning import SIZE as _SIZE
from holdfast.wire.spawning import SPAWN_FAILED as SPAWN_FAILED
from holdfast.wire.spawning import SPAWN_HEADER as SPAWN_HEADER
from holdfast.wire.spawning import SPAWN_MAGIC as SPAWN_MAGIC
from holdfast.wire.spawning import SPAWN_OK as SPAWN_OK
from holdfast.wire.spawning import SPAWN_REPLY as SPAWN_REPLY
from holdfast.wire.spawning import VERSION as VERSION
from holdfast.wire.spawning import WORKER_DESCRIPTORS as WORKER_DESCRIPTORS
from holdfast.wire.spawning import WORKER_MAGIC as WORKER_MAGIC
from holdfast.wire.spawning import Containment as Containment
from holdfast.wire.spawning import Malformed as Malformed
from holdfast.wire.spawning import Mount as Mount
from holdfast.wire.spawning import Origin as Origin
from holdfast.wire.spawning import Spawn as Spawn
from holdfast.wire.spawning import nursery_command as nursery_command
from holdfast.wire.spawning import read_size as read_size
from holdfast.wire.spawning import read_spawn as read_spawn
from holdfast.wire.spawning import read_worker as read_worker
from holdfast.wire.spawning import spawn as spawn
from holdfast.wire.spawning import worker as worker

HELLO, INPUT, RESIZE, SIGNAL, FLUSH, WITHDRAW, CONSUMED = range(1, 8)
QUERY, RELEASE, FENCE, LABEL, LISTEN, SILENCE, GATE = range(8, 15)
WELCOME, REFUSED, REJECTED, WITHDRAWN, STATE, EXITED, GATED, CUT_OFF = range(0x81, 0x89)

REFUSED_VERSION, REFUSED_TERM, REFUSED_PACKET = 1, 2, 3
REJECT_EPOCH, REJECT_SEQUENCE, REJECT_FULL, REJECT_FENCED, REJECT_CLOSED = 1, 2, 3, 4, 5

SCOPE_FOREGROUND, SCOPE_ROOT_GROUP, SCOPE_ALL, SCOPE_PROCESS = 0, 1, 2, 3

ACT_ACK, ACT_REPORT = 1, 2

SIGNAL_MAX = 64

_HELLO = struct.Struct("<BHHQ")
_ACT = struct.Struct("<BQQQQB")
ACT_BYTES: Final = _ACT.size
_SIGNAL = struct.Struct("<BBIQ")
_FLUSH = struct.Struct("<Q")
_TWO = struct.Struct("<BQQ")
_ONE = struct.Struct("<BQ")
_QUERY = struct.Struct("<BI")
_REFUSED = struct.Struct("<BBQ")
_REJECTED = struct.Struct("<BQBQ")
_COUNT = struct.Struct("<BH")
_WITHDRAWN = struct.Struct("<QII")
_EXITED = struct.Struct("<BiH")
_REAPED = struct.Struct("<Ii")
_GATED = struct.Struct("<Bi")
_CUT_OFF = struct.Struct("<BiB")
_WELCOME = struct.Struct("<BHQQQQIQiBHHH")
_STATE = struct.Struct("<BIIIHHIIIIQ")
_ORIGIN_BYTES, _REAPED_BYTES = _ORIGIN.size, _REAPED.size


class Act(NamedTuple):
    """The fields that every effect on a session carries."""

    epoch: int
    sequence: int
    origin: int
    origin_sequence: int
    flags: int = 0


class Welcome(NamedTuple):
    """A keeper's identity and state, as a new host learns them."""

    version: int
    epoch: int
    term: int
    consumed: int
    created_ns: int  # CLOCK_REALTIME at spawn
    root_pid: int
    root_start: int  # start time in clock ticks: with the boot id, the process's identity
    status: int  # wait status of the root process, or -1 while it lives
    cols: int
    rows: int
    session: str
    label: bytes
    origins: tuple[Origin, ...]
    reaped: tuple[tuple[int, int], ...]


class State(NamedTuple):
    """The terminal as the kernel has it now."""

    tag: int
    foreground: int  # foreground process group, 0 if none
    session_leader: int
    cols: int
    rows: int
    iflag: int
    oflag: int
    cflag: int
    lflag: int
    queued_input: int  # bytes accepted but not yet taken by the terminal


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


def flush_body(origin: int = 0) -> bytes:
    return _FLUSH.pack(origin) if origin else b""


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
    """Add the bell of a local viewer that reads the ring. Bells end with the host's term."""
    return _QUERY.pack(LISTEN, tag)


def silence(tag: int) -> bytes:
    return _QUERY.pack(SILENCE, tag)


def gate() -> bytes:
    return bytes([GATE])


def gated(error: int) -> bytes:
    return _GATED.pack(GATED, error)


def cut_off(status: int, told: bool) -> bytes:
    return _CUT_OFF.pack(CUT_OFF, status, told)


def refused(reason: int, value: int) -> bytes:
    return _REFUSED.pack(REFUSED, reason, value)


def rejected(sequence: int, reason: int, value: int) -> bytes:
    return _REJECTED.pack(REJECTED, sequence, reason, value)


def withdrawn(entries: list[tuple[int, int, int]]) -> bytes:
    return _COUNT.pack(WITHDRAWN, len(entries)) + b"".join(_WITHDRAWN.pack(*e) for e in entries)


def exited(status: int, reaped: list[tuple[int, int]]) -> bytes:
    return _EXITED.pack(EXITED, status, len(reaped)) + b"".join(_REAPED.pack(*r) for r in reaped)


def state(*fields: int) -> bytes:
    """The fields of State, in their order."""
    return _STATE.pack(STATE, *fields)


def welcome(
    version: int,
    epoch: int,
    term: int,
    consumed: int,
    created_ns: int,
    root_pid: int,
    root_start: int,
    status: int,
    cols: int,
    rows: int,
    session: bytes,
    label: bytes,
    origins: Iterable[tuple[int, int, int]],
    reaped: Iterable[tuple[int, int]],
) -> bytes:
    """Encode the fields of Welcome, in order.

    Sums need less of a keeper's own memory than joins.
    """
    origins_ = reaped_ = b""
    for origin, number, sequence in origins:
        origins_ += _ORIGIN.pack(origin, number, sequence)
    for pid, code in reaped:
        reaped_ += _REAPED.pack(pid, code)
    return (
        _WELCOME.pack(
            WELCOME,
            version,
            epoch,
            term,
            consumed,
            created_ns,
            root_pid,
            root_start,
            status,
            len(session),
            len(label),
            len(origins_) // _ORIGIN_BYTES,
            len(reaped_) // _REAPED_BYTES,
        )
        + _SIZE.pack(cols, rows)
        + session
        + label
        + origins_
        + reaped_
    )


def _unpack(layout: struct.Struct, packet: bytes, more: bool = False) -> tuple[int, ...]:
    """Unpack a packet's fields, code first. With `more`, further bytes may follow."""
    try:
        return layout.unpack_from(packet) if more else layout.unpack(packet)
    except struct.error:
        raise Malformed(f"packet {packet[:1].hex()} has {len(packet)} bytes") from None


def read_act(packet: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the fields of Act, in order, and the body, which is valid for the act's kind."""
    fields = _unpack(_ACT, packet, more=True)
    body = packet[ACT_BYTES:]
    kind = fields[0]
    if kind == RESIZE:
        read_size(body)
    elif kind == SIGNAL:
        read_signal(body)
    elif kind == FLUSH:
        read_flush(body)
    return fields[1:], body


def read_flush(body: bytes) -> int:
    """Return the client whose input is to be flushed; 0 means all clients."""
    if body and len(body) != _FLUSH.size:
        raise Malformed("bad flush")
    return int.from_bytes(body, "little")


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
    body = packet[_COUNT.size :]
    if count > limits.INPUT_QUEUE_ACTS or len(body) != count * _WITHDRAWN.size:
        raise Malformed("bad withdrawn")
    return [(a, b, c) for a, b, c in _WITHDRAWN.iter_unpack(body)]


def read_exited(packet: bytes) -> tuple[int, list[tuple[int, int]]]:
    _, status, count = _unpack(_EXITED, packet, more=True)
    body = packet[_EXITED.size :]
    if count > limits.REAPED_KEPT or len(body) != count * _REAPED.size:
        raise Malformed("bad exited")
    return status, [(pid, code) for pid, code in _REAPED.iter_unpack(body)]


def read_gated(packet: bytes) -> int:
    return _unpack(_GATED, packet)[1]


def read_cut_off(packet: bytes) -> tuple[int, bool]:
    _, status, told = _unpack(_CUT_OFF, packet)
    if told > 1:
        raise Malformed("bad cut_off")
    return status, bool(told)


def read_state(packet: bytes) -> State:
    return State(*_unpack(_STATE, packet)[1:])


def read_welcome(packet: bytes) -> Welcome:
    _, *numbers, session_len, label_len, origin_count, reaped_count = _unpack(
        _WELCOME, packet, more=True
    )
    session_at = _WELCOME.size + _SIZE.size
    label_at = session_at + session_len
    origins_at = label_at + label_len
    reaped_at = origins_at + origin_count * _ORIGIN.size
    if (
        len(packet) != reaped_at + reaped_count * _REAPED.size
        or origin_count > limits.ORIGINS_KEPT
        or reaped_count > limits.REAPED_KEPT
    ):
        raise Malformed("bad welcome")
    return Welcome._make(
        (
            *numbers,
            *_SIZE.unpack_from(packet, _WELCOME.size),
            packet[session_at:label_at].decode("ascii", "replace"),
            packet[label_at:origins_at],
            tuple(Origin(*o) for o in _ORIGIN.iter_unpack(packet[origins_at:reaped_at])),
            tuple((p, s) for p, s in _REAPED.iter_unpack(packet[reaped_at:])),
        )
    )


assert (
    _WELCOME.size
    + _SIZE.size
    + limits.KEEPER_NAME_BYTES
    + limits.LABEL_BYTES
    + limits.ORIGINS_KEPT * _ORIGIN.size
    + limits.REAPED_KEPT * _REAPED.size
) < limits.KEEPER_PACKET_BYTES
assert _COUNT.size + limits.INPUT_QUEUE_ACTS * _WITHDRAWN.size < limits.KEEPER_PACKET_BYTES
