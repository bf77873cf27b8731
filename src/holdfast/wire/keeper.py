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

    ACT ::= epoch u64, sequence u64, origin u64, origin sequence u64, flags u8

Each act carries the incarnation's **epoch** (the fencing token: another one is rejected), and a **sequence** that
rises by one; what was applied is never applied again. The connection carries the **term** (which host process
speaks): a claim with a higher term closes the older connection, a claim that is not higher is refused. **origin** and
its own sequence name the client's act behind it: the keeper remembers the last one per origin, so a host that died
between sending and hearing back finds in WELCOME what was applied, and a client's retry is recognised (exactly once).

Acts take effect in sequence order, with one exception: RESIZE and SIGNAL do not wait for input that the program has
not read (as on every terminal). FLUSH discards all input before it: what waits here (of one origin only, if it names
one), and whatever the kernel has that no program has read, since nobody can tell whose that is. With flag REPORT it
is answered by WITHDRAWN: the pieces that had not wholly gone to the terminal. A piece of which it had a part is among
them, whoever's it is, for that part is discarded. WITHDRAW takes back waiting input from a sequence on and says how
far each piece had got, and leaves the kernel alone. Once the root process has ended, only SIGNAL is taken. An act
that is refused (REJECTED) is not used up: the next one has the same sequence.

Effects are not answered by packets: the keeper raises ACCEPTED and WRITTEN in the ring's header, and rings the
eventfd only if the act asked for it (flag ACK; again when its effect is complete later): an echoed key wakes the host
once, not twice.

GATE is asked only of keepers that were started with a gate (the session's label says so: an older keeper knows no such
packet). GATED has the kernel's descriptor by which execs are shown and answered (wire/notification.py), or says with which
error the kernel refused it when the session began; -1: it is over. The host that asked has it until its connection ends.
While no host has it, execs wait; after GATE_AWAY_S the keeper refuses those that nobody has read.
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
from holdfast.wire.spawning import ORIGIN as _ORIGIN
from holdfast.wire.spawning import PID_MAX as PID_MAX
from holdfast.wire.spawning import QUIT_MAGIC as QUIT_MAGIC
from holdfast.wire.spawning import SIZE as _SIZE
from holdfast.wire.spawning import SPAWN_FAILED as SPAWN_FAILED
from holdfast.wire.spawning import SPAWN_HEADER as SPAWN_HEADER
from holdfast.wire.spawning import SPAWN_MAGIC as SPAWN_MAGIC
from holdfast.wire.spawning import SPAWN_OK as SPAWN_OK
from holdfast.wire.spawning import SPAWN_REPLY as SPAWN_REPLY
from holdfast.wire.spawning import VERSION as VERSION
from holdfast.wire.spawning import Containment as Containment
from holdfast.wire.spawning import Malformed as Malformed
from holdfast.wire.spawning import Origin as Origin
from holdfast.wire.spawning import Spawn as Spawn
from holdfast.wire.spawning import nursery_command as nursery_command
from holdfast.wire.spawning import read_size as read_size
from holdfast.wire.spawning import read_spawn as read_spawn
from holdfast.wire.spawning import spawn as spawn

(
    HELLO,
    INPUT,
    RESIZE,
    SIGNAL,
    FLUSH,
    WITHDRAW,
    CONSUMED,
    QUERY,
    RELEASE,
    FENCE,
    LABEL,
    LISTEN,
    SILENCE,
    GATE,
) = range(1, 15)
WELCOME, REFUSED, REJECTED, WITHDRAWN, STATE, EXITED, GATED = range(0x81, 0x88)

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
_WELCOME = struct.Struct("<BHQQQQIQiBHHH")
_STATE = struct.Struct("<BIIIHHIIIIQ")
_ORIGIN_BYTES, _REAPED_BYTES = _ORIGIN.size, _REAPED.size


class Act(NamedTuple):
    """What every effect on a session carries, whoever caused it."""

    epoch: int
    sequence: int
    origin: int
    origin_sequence: int
    flags: int = 0


class Welcome(NamedTuple):
    """What a keeper is and has done so far."""

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
    """One more bell to ring at output: of a viewer here that reads the ring itself. Bells go with the host's term."""
    return _QUERY.pack(LISTEN, tag)


def silence(tag: int) -> bytes:
    return _QUERY.pack(SILENCE, tag)


def gate() -> bytes:
    return bytes([GATE])


def gated(error: int) -> bytes:
    return _GATED.pack(GATED, error)


def refused(reason: int, value: int) -> bytes:
    return _REFUSED.pack(REFUSED, reason, value)


def rejected(sequence: int, reason: int, value: int) -> bytes:
    return _REJECTED.pack(REJECTED, sequence, reason, value)


def withdrawn(entries: list[tuple[int, int, int]]) -> bytes:
    return _COUNT.pack(WITHDRAWN, len(entries)) + b"".join(_WITHDRAWN.pack(*e) for e in entries)


def exited(status: int, reaped: list[tuple[int, int]]) -> bytes:
    return _EXITED.pack(EXITED, status, len(reaped)) + b"".join(_REAPED.pack(*r) for r in reaped)


def state(
    tag: int,
    foreground: int,
    session_leader: int,
    cols: int,
    rows: int,
    iflag: int,
    oflag: int,
    cflag: int,
    lflag: int,
    queued_input: int,
) -> bytes:
    """The fields of State, in their order."""
    return _STATE.pack(
        STATE, tag, foreground, session_leader, cols, rows, iflag, oflag, cflag, lflag, queued_input
    )


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
    """The fields of Welcome, in their order. (Sums, not joins: a keeper has touched what that needs already.)"""
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
    elif kind == FLUSH:
        read_flush(body)
    return fields[1:], body


def read_flush(body: bytes) -> int:
    """The client whose input is meant; 0: everybody's."""
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


def read_state(packet: bytes) -> State:
    return State(*_unpack(_STATE, packet)[1:])


def read_welcome(packet: bytes) -> Welcome:
    fields = _unpack(_WELCOME, packet, more=True)
    (
        version,
        epoch,
        term,
        consumed_,
        created,
        root_pid,
        root_start,
        status,
        session_len,
        label_len,
        origin_count,
        reaped_count,
    ) = fields[1:]
    at = _WELCOME.size
    want = (
        at
        + _SIZE.size
        + session_len
        + label_len
        + origin_count * _ORIGIN.size
        + reaped_count * _REAPED.size
    )
    if (
        len(packet) != want
        or origin_count > limits.ORIGINS_KEPT
        or reaped_count > limits.REAPED_KEPT
    ):
        raise Malformed("bad welcome")
    cols, rows = _SIZE.unpack_from(packet, at)
    at += _SIZE.size
    session = packet[at : at + session_len].decode("ascii", "replace")
    at += session_len
    label_ = packet[at : at + label_len]
    at += label_len
    split = at + origin_count * _ORIGIN.size
    return Welcome(
        version,
        epoch,
        term,
        consumed_,
        created,
        root_pid,
        root_start,
        status,
        cols,
        rows,
        session,
        label_,
        tuple(Origin(*o) for o in _ORIGIN.iter_unpack(packet[at:split])),
        tuple((p, s) for p, s in _REAPED.iter_unpack(packet[split:])),
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
