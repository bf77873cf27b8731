"""The request to the nursery for a keeper, and its answer: one stream each.

    request ::= "HFS1", version u16, length u32, values        value ::= tag u8, length u32, bytes
    quit    ::= "HFQ1"                                         (the nursery ends; keepers are not touched)
    answer  ::= result u8, errno i32, pid u32, length u16, text

    tag | value     | bytes                     tag | value     | bytes
    ----|-----------|--------------------       ----|-----------|--------------------------------------
      1 | SESSION   | id                         12 | ADOPT_PID | u64
      2 | EPOCH     | u64                        13 | BASE      | u64
      3 | ARGV      | word (several)             14 | RING_TAIL | bytes
      4 | ENV       | NAME=VALUE (several)       15 | ORIGIN    | see Origin (several)
      5 | CWD       | path                       16 | ACCEPTED  | u64
      6 | UMASK     | u64                        17 | STATUS    | i64
      7 | SIZE      | cols u16, rows u16         18 | CGROUP    | path (may be missing)
      8 | RING      | u64                        19 | CONTAIN   | nothing (may be missing)
      9 | LABEL     | bytes                      20 | HIDE      | path (several; only with CONTAIN)
     10 | SOCKET    | name                       21 | FRESH     | path (several; only with CONTAIN)
     11 | AWAY      | milliseconds u64           22 | KEEP      | path (several; only with CONTAIN)
                                                23 | GATE      | u64 (may be missing)

A keeper either starts a program (ARGV, ENV, CWD, UMASK) or takes over a tree that something else launched (ADOPT_PID
with the terminal's master as a descriptor, BASE, RING_TAIL, ORIGIN, ACCEPTED, STATUS): saved state.

The tags from CGROUP on came later: they are not sent when they say nothing, so requests without them mean what they
always meant. CGROUP names a cgroup v2 directory in which the program starts, if that is allowed; the kernel knows
whether it was (/proc/PID/cgroup). CONTAIN asks for namespaces of its own; an errno of EOPNOTSUPP in the answer says
that this machine does not allow them. Process 1 in there stops all others when a process outside sends it signal 35
(HALT_SIGNAL, the second real-time signal); who may continue them is whoever may signal them.

GATE asks that the kernel shows every exec of the program and of all that come of it to the host: 1: if the kernel allows
it, 2: or else there is no session (and where it needs no_new_privs for it, so be it). wire/keeper.py says how the host
learns which it is.
"""

from __future__ import annotations

import struct
import sys
from typing import Final, NamedTuple

from holdfast.model import limits

VERSION: Final = 1
HALT_SIGNAL: Final = 35
PID_MAX, OFFSET_MAX, STATUS_MAX = 2**31 - 1, 2**63 - 1, 0xFFFF

SIZE = struct.Struct("<HH")
ORIGIN = struct.Struct("<QQQ")


class Malformed(Exception):
    """Bytes that are no packet of this wire."""


class Origin(NamedTuple):
    """The last act applied for one client: its own sequence and the session's."""

    origin: int
    origin_sequence: int
    sequence: int


def read_size(body: bytes) -> tuple[int, int]:
    try:
        cols, rows = SIZE.unpack(body)
    except struct.error:
        raise Malformed("bad size") from None
    if not (
        limits.COLS_MIN <= cols <= limits.COLS_MAX and limits.ROWS_MIN <= rows <= limits.ROWS_MAX
    ):
        raise Malformed(f"degenerate size {cols}x{rows}")
    return cols, rows


(
    T_SESSION,
    T_EPOCH,
    T_ARGV,
    T_ENV,
    T_CWD,
    T_UMASK,
    T_SIZE,
    T_RING,
    T_LABEL,
    T_SOCKET,
    T_AWAY,
    T_ADOPT_PID,
    T_BASE,
    T_RING_TAIL,
    T_ORIGIN,
    T_ACCEPTED,
    T_STATUS,
    T_CGROUP,
    T_CONTAIN,
    T_HIDE,
    T_FRESH,
    T_KEEP,
    T_GATE,
) = range(1, 24)

_TLV = struct.Struct("<BI")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
SPAWN_HEADER = struct.Struct("<4sHI")
SPAWN_MAGIC: Final = b"HFS1"
QUIT_MAGIC: Final = b"HFQ1"  # the nursery ends itself; keepers are not touched
SPAWN_OK, SPAWN_FAILED = 0, 1
GATE_NONE, GATE_WANTED, GATE_REQUIRED = 0, 1, 2
SPAWN_REPLY = struct.Struct("<BiIH")  # result, errno, pid, length of text


class Containment(NamedTuple):
    """Namespaces of its own for a session, and what of the machine's files is not as elsewhere. Paths are absolute."""

    hide: tuple[bytes, ...] = ()  # not there: an empty directory or file that cannot be written
    fresh: tuple[
        bytes, ...
    ] = ()  # a directory of its own, empty at first, that ends with the session
    keep: tuple[bytes, ...] = ()  # directories below hidden ones that stay


class Spawn(NamedTuple):
    """Everything a keeper needs to begin."""

    session: str
    epoch: int
    socket: str  # file name of the listening socket in the nursery's directory
    cols: int
    rows: int
    ring_bytes: int
    away_ms: int
    label: bytes = b""
    argv: tuple[bytes, ...] = ()
    env: tuple[bytes, ...] = ()  # KEY=VALUE
    cwd: bytes = b"/"
    umask: int = 0o077
    adopt_pid: int = 0
    base: int = 0
    ring_tail: bytes = b""
    origins: tuple[Origin, ...] = ()
    accepted: int = 0
    status: int = -1
    cgroup: bytes = b""  # directory of the cgroup to start in; empty: where the nursery is
    containment: Containment | None = None
    gate: int = GATE_NONE


def spawn(s: Spawn) -> bytes:
    """The request as sent: header, then tagged values."""
    items: list[tuple[int, bytes]] = [
        (T_SESSION, s.session.encode()),
        (T_EPOCH, _U64.pack(s.epoch)),
        (T_SOCKET, s.socket.encode()),
        (T_SIZE, SIZE.pack(s.cols, s.rows)),
        (T_RING, _U64.pack(s.ring_bytes)),
        (T_AWAY, _U64.pack(s.away_ms)),
        (T_LABEL, s.label),
        (T_CWD, s.cwd),
        (T_UMASK, _U64.pack(s.umask)),
        (T_ADOPT_PID, _U64.pack(s.adopt_pid)),
        (T_BASE, _U64.pack(s.base)),
        (T_RING_TAIL, s.ring_tail),
        (T_ACCEPTED, _U64.pack(s.accepted)),
        (T_STATUS, _I64.pack(s.status)),
        *((T_ARGV, a) for a in s.argv),
        *((T_ENV, e) for e in s.env),
        *((T_ORIGIN, ORIGIN.pack(*o)) for o in s.origins),
    ]
    if s.cgroup:
        items.append((T_CGROUP, s.cgroup))
    if s.containment is not None:
        items += [
            (T_CONTAIN, b""),
            *((T_HIDE, p) for p in s.containment.hide),
            *((T_FRESH, p) for p in s.containment.fresh),
            *((T_KEEP, p) for p in s.containment.keep),
        ]
    if s.gate:
        items.append((T_GATE, _U64.pack(s.gate)))
    body = b"".join(_TLV.pack(tag, len(value)) + value for tag, value in items)
    if len(body) > limits.SPAWN_BYTES:
        raise Malformed(f"spawn request of {len(body)} bytes; at most {limits.SPAWN_BYTES}")
    return SPAWN_HEADER.pack(SPAWN_MAGIC, VERSION, len(body)) + body


def read_spawn(body: bytes) -> Spawn:
    """A request from its tagged values; anything unknown, missing or out of range is refused."""
    one: dict[int, bytes] = {}
    many: dict[int, list[bytes]] = {
        T_ARGV: [],
        T_ENV: [],
        T_ORIGIN: [],
        T_HIDE: [],
        T_FRESH: [],
        T_KEEP: [],
    }
    at = 0
    while at < len(body):
        if at + _TLV.size > len(body):
            raise Malformed("truncated spawn request")
        tag, length = _TLV.unpack_from(body, at)
        at += _TLV.size
        value = body[at : at + length]
        if len(value) != length:
            raise Malformed("truncated spawn request")
        at += length
        if tag in many:
            many[tag].append(value)
        elif (T_SESSION <= tag <= T_CONTAIN or tag == T_GATE) and tag not in one:
            one[tag] = value
        else:
            raise Malformed(f"unknown or repeated tag {tag} in spawn request")
    try:
        cols, rows = read_size(one[T_SIZE])
        request = Spawn(
            session=one[T_SESSION].decode("ascii"),
            epoch=_U64.unpack(one[T_EPOCH])[0],
            socket=one[T_SOCKET].decode("ascii"),
            cols=cols,
            rows=rows,
            ring_bytes=_U64.unpack(one[T_RING])[0],
            away_ms=_U64.unpack(one[T_AWAY])[0],
            label=one[T_LABEL],
            argv=tuple(many[T_ARGV]),
            env=tuple(many[T_ENV]),
            cwd=one[T_CWD],
            umask=_U64.unpack(one[T_UMASK])[0],
            adopt_pid=_U64.unpack(one[T_ADOPT_PID])[0],
            base=_U64.unpack(one[T_BASE])[0],
            ring_tail=one[T_RING_TAIL],
            origins=tuple(Origin(*ORIGIN.unpack(o)) for o in many[T_ORIGIN]),
            accepted=_U64.unpack(one[T_ACCEPTED])[0],
            status=_I64.unpack(one[T_STATUS])[0],
            cgroup=one.get(T_CGROUP, b""),
            containment=Containment(tuple(many[T_HIDE]), tuple(many[T_FRESH]), tuple(many[T_KEEP]))
            if T_CONTAIN in one
            else None,
            gate=_U64.unpack(one[T_GATE])[0] if T_GATE in one else GATE_NONE,
        )
    except (KeyError, struct.error, UnicodeDecodeError) as e:
        raise Malformed(f"incomplete spawn request: {e}") from e
    wrong = _wrong(request)
    if not wrong and (
        one.get(T_CONTAIN)
        or (T_CONTAIN not in one and (many[T_HIDE] or many[T_FRESH] or many[T_KEEP]))
    ):
        wrong = "paths without a containment, or a containment with a value"
    if wrong:
        raise Malformed(wrong)
    return request


def _wrong(r: Spawn) -> str:
    """What makes a request that can be read one that cannot be meant; empty if nothing."""
    if not r.adopt_pid and not (r.argv and r.argv[0]):
        return "nothing to run"
    if (
        "/" in r.socket
        or r.socket in ("", ".", "..")
        or "\0" in r.socket
        or len(r.socket) > limits.KEEPER_NAME_BYTES
    ):
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
    paths = (
        ()
        if r.containment is None
        else (*r.containment.hide, *r.containment.fresh, *r.containment.keep)
    )
    if len(paths) > limits.CONTAINED_PATHS or any(p[:1] != b"/" or b"\0" in p for p in paths):
        return "too many paths, or one that is not absolute"
    if r.cgroup and (r.cgroup[:1] != b"/" or b"\0" in r.cgroup):
        return "bad cgroup"
    if r.adopt_pid and (r.cgroup or r.containment is not None or r.gate):
        return "a tree that is taken over has its cgroup, namespaces and filters already"
    if r.gate > GATE_REQUIRED:
        return "bad gate"
    return ""


def nursery_command(run_dir: str) -> list[str]:
    """How to start a nursery: by its path, without site packages (why: docs/decisions/0002-keeper-memory.md)."""
    package = __file__.rsplit("/", 2)[0]
    return [sys.executable, "-I", "-S", "-X", "utf8", f"{package}/keeper/__main__.py", run_dir]
