"""The request to the nursery for a keeper, and its answer: one stream each.

    request ::= "HFS1", version u16, length u32, values        value ::= tag u8, length u32, bytes
    quit    ::= "HFQ1"                          (the nursery exits; keepers are not touched)
    worker  ::= "HFW1", version u16, length u32, words, 0, environment     (words end with 0 each)
    answer  ::= result u8, errno i32, pid u32, length u16, text

    tag | value     | bytes                     tag | value     | bytes
    ----|-----------|--------------------       ----|-----------|----------------------------------
      1 | SESSION   | id                         12 | ADOPT_PID | u64
      2 | EPOCH     | u64                        13 | BASE      | u64
      3 | ARGV      | word (several)             14 | RING_TAIL | bytes
      4 | ENV       | NAME=VALUE (several)       15 | ORIGIN    | see Origin (several)
      5 | CWD       | path                       16 | ACCEPTED  | u64
      6 | UMASK     | u64                        17 | STATUS    | i64
      7 | SIZE      | cols u16, rows u16         18 | CGROUP    | path (may be missing)
      8 | RING      | u64                        19 | CONTAIN   | nothing (may be missing)
      9 | LABEL     | bytes                      23 | GATE      | u64 (may be missing)
     10 | SOCKET    | name                       24 | MOUNT     | see Mount (several)
     11 | AWAY      | milliseconds u64           25 | NET       | u64 (may be missing)
                                                26 | LIMIT     | kind u8, value i64 (several)
                                                27 | CONNECT   | words, zero between (several)
     28 | THAW      | path (may be missing)      29 | CRIU      | path (several, with THAW)
     30 | DEADLINE  | u64 (may be missing)

A worker is a program of the host, for a host whose unit is hardened: its children could not trace
processes or enter namespaces. Up to WORKER_DESCRIPTORS come with the request; their numbers follow
the words. Without a keeper, and with the pid of the program in the answer.

A keeper starts a program (ARGV, ENV, CWD, UMASK), or adopts an existing process tree from saved
state (ADOPT_PID with the terminal's master as a descriptor, BASE, RING_TAIL, ORIGIN, ACCEPTED,
STATUS), or restores a checkpoint (THAW, BASE, ORIGIN, ACCEPTED; of a contained session with
CONTAIN). THAW is a directory with CRIU's images, which the launcher edits, and the file `output`,
the bytes before BASE. CRIU has paths: the program, its loader, and directories of libraries.
DEADLINE is the first deadline of a session with a lease, as in the packet FENCE: the keeper has it
before a host speaks to it.

The tags from CGROUP on were added later. They are omitted when empty, so older requests keep their
meaning; 20 to 22 are not used any more. CGROUP names a cgroup v2 directory in which the program
starts, if allowed; /proc/PID/cgroup tells whether it was. CONTAIN asks for separate namespaces with
the file tree of MOUNT and the network of NET, which have no meaning without it; errno EOPNOTSUPP in
the answer says that the machine does not allow them. HALT_SIGNAL (10) to the keeper orders
process 1 inside to stop all other processes. It holds them by ptrace until RELEASE_SIGNAL (12) to
the keeper; from then on any process that may signal them may continue them. While it holds them,
process 1 has the name of HALTED_NAME. The order goes over a socket that process 1 shares with the
keeper alone, because code inside can send process 1 signals whose sender the kernel conceals.
Older keepers ignore both signals; their process 1 takes 35 (OLD_HALT_SIGNAL) and 36
(OLD_RELEASE_SIGNAL) itself.

CONNECT is the command of a program that connects a session's own network (NET 1) with the
machine's. Several are alternatives, tried in order. `{pid}` in a word becomes the pid of a process
in the session's user and network namespaces. The program runs outside of the session, beside the
keeper, and ends with either. The session begins once the program has set a default route inside and
has a system call filter of its own; if no alternative gets so far, there is no session.

GATE asks the kernel to report every exec of the program and its descendants to the host. 1: if the
kernel allows it. 2: otherwise there is no session; no_new_privs is accepted if the kernel demands
it. wire/keeper.py says how the host learns the outcome.

LIMIT bounds the program and its descendants. Kinds below 128 are the numbers of setrlimit(2): soft
and hard limit become the value, or stay lower if they are. Kind 128 is oom_score_adj, 129 is the
nice value. The launcher applies limits in the program's own process, inside its namespaces: in a
new user namespace RLIMIT_NPROC counts the processes of that namespace only.
"""

from __future__ import annotations

import struct
import sys
from typing import Final, NamedTuple

from holdfast.model import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
HALT_SIGNAL: Final = 10
RELEASE_SIGNAL: Final = 12
OLD_HALT_SIGNAL: Final = 35
OLD_RELEASE_SIGNAL: Final = 36
INIT_NAME, HALTED_NAME, HF_ROOT_NAME = b"hf-init", b"hf-init halted", b"hf-root"
PID_MAX, OFFSET_MAX, STATUS_MAX = 2**31 - 1, 2**63 - 1, 0xFFFF

SIZE = struct.Struct("<HH")
ORIGIN = struct.Struct("<QQQ")
LIMIT = struct.Struct("<Bq")
LIMIT_OOM, LIMIT_NICE = 128, 129
RESOURCES: Final = 16  # of setrlimit(2)
_LAYERS_MIN: Final = 2  # the writable one and one below
_CRIU_PATHS_MIN: Final = 2  # program and loader


class Malformed(Exception):
    """The bytes are not a packet of this wire."""


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


T_SESSION, T_EPOCH, T_ARGV, T_ENV, T_CWD, T_UMASK, T_SIZE, T_RING, T_LABEL = range(1, 10)
T_SOCKET, T_AWAY, T_ADOPT_PID, T_BASE, T_RING_TAIL, T_ORIGIN, T_ACCEPTED = range(10, 17)
T_STATUS, T_CGROUP, T_CONTAIN = range(17, 20)
T_GATE, T_MOUNT, T_NET, T_LIMIT, T_CONNECT, T_THAW, T_CRIU = range(23, 30)
T_DEADLINE: Final = 30

_TLV = struct.Struct("<BI")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
SPAWN_HEADER = struct.Struct("<4sHI")
SPAWN_MAGIC: Final = b"HFS1"
QUIT_MAGIC: Final = b"HFQ1"  # the nursery ends itself; keepers are not touched
WORKER_MAGIC: Final = b"HFW1"
WORKER_DESCRIPTORS: Final = 3
SPAWN_OK, SPAWN_FAILED = 0, 1
GATE_NONE, GATE_WANTED, GATE_REQUIRED = 0, 1, 2
SPAWN_REPLY = struct.Struct("<BiIH")  # result, errno, pid, length of text


# Kinds of Mount. READ and WRITE show the source with everything mounted below it; neither has
# device nodes or setuid programs. DEVICE shows one device node. FIXED is READ for a place in a
# writable directory that programs inside must not exchange: they get no mount namespaces of their
# own, because in a namespace that lacks a mount its mount point can be renamed.
MOUNT_READ, MOUNT_WRITE, MOUNT_DEVICE, MOUNT_LINK, MOUNT_EMPTY, MOUNT_MEMORY = range(1, 7)
MOUNT_FIXED: Final = 7
# A writable directory in layers (overlayfs). Its source is several directories, one per line: a
# directory with `upper` and `work`, then the directories below, the newest first.
MOUNT_LAYERED: Final = 8
NET_HOST, NET_OWN, NET_NONE = range(3)
NO_NETWORK: Final = "its own network: "  # begins the answer if no connector works
# Begins the answer if a path of the list is not what the host saw there, with the path.
NOT_AS_PLANNED: Final = "its file tree: "


class Mount(NamedTuple):
    """One entry of a contained session's file tree. Later entries cover earlier ones.

    Missing parent directories of `target` are made. The source is resolved outside. A LINK's
    source is its text. EMPTY is an empty read-only directory, or an empty file if `target` is a
    file. MEMORY is an empty writable directory in memory; the source is its size in mount(8)'s
    notation (`64m`, `10%`).
    """

    kind: int
    target: bytes
    source: bytes = b""


class Containment(NamedTuple):
    """Separate namespaces for a session, with its own file tree and perhaps its own network."""

    mounts: tuple[Mount, ...] = ()
    net: int = NET_HOST


class Spawn(NamedTuple):
    """All that a keeper needs to begin."""

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
    limits: tuple[tuple[int, int], ...] = ()  # kind and value
    connect: tuple[bytes, ...] = ()  # commands, words separated by zero bytes
    thaw: bytes = b""  # directory of the checkpoint to restore
    criu: tuple[bytes, ...] = ()  # its program, loader and directories of libraries
    deadline_ns: int = 0  # of a session with a lease, on CLOCK_BOOTTIME


_LATER = (T_GATE, T_NET, T_THAW, T_DEADLINE)
_BINDS = (MOUNT_READ, MOUNT_WRITE, MOUNT_DEVICE, MOUNT_FIXED)


def _mount(m: Mount) -> bytes:
    return bytes((m.kind,)) + m.target + b"\0" + m.source


def _read_mount(value: bytes) -> Mount:
    target, _, source = value[1:].partition(b"\0")
    return Mount(value[0] if value else 0, target, source)


def spawn(s: Spawn) -> bytes:
    """Encode a request: header, then tagged values."""
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
            *((T_MOUNT, _mount(m)) for m in s.containment.mounts),
        ]
        if s.containment.net:
            items.append((T_NET, _U64.pack(s.containment.net)))
    if s.gate:
        items.append((T_GATE, _U64.pack(s.gate)))
    items += ((T_LIMIT, LIMIT.pack(*one)) for one in s.limits)
    items += ((T_CONNECT, command) for command in s.connect)
    if s.thaw:
        items += ((T_THAW, s.thaw), *((T_CRIU, path) for path in s.criu))
    if s.deadline_ns:
        items.append((T_DEADLINE, _U64.pack(s.deadline_ns)))
    body = b"".join(_TLV.pack(tag, len(value)) + value for tag, value in items)
    if len(body) > limits.SPAWN_BYTES:
        raise Malformed(f"spawn request of {len(body)} bytes; at most {limits.SPAWN_BYTES}")
    return SPAWN_HEADER.pack(SPAWN_MAGIC, VERSION, len(body)) + body


def worker(argv: Sequence[bytes], env: Sequence[bytes]) -> bytes:
    """Encode the request for a worker."""
    body = b"".join(word + b"\0" for word in (*argv, b"", *env))
    return SPAWN_HEADER.pack(WORKER_MAGIC, VERSION, len(body)) + body


def read_worker(body: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Decode words and environment."""
    words = body.split(b"\0")[:-1]
    if b"" not in words[1:]:
        raise Malformed("a worker without words, or without an end of them")
    at = words.index(b"")
    return words[:at], dict(entry.split(b"=", 1) for entry in words[at + 1 :] if b"=" in entry)


def read_spawn(body: bytes) -> Spawn:
    """Decode a request. Unknown, missing or out-of-range values are refused."""
    one: dict[int, bytes] = {}
    several = (T_ARGV, T_ENV, T_ORIGIN, T_MOUNT, T_LIMIT, T_CONNECT, T_CRIU)
    many: dict[int, list[bytes]] = {tag: [] for tag in several}
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
        elif (T_SESSION <= tag <= T_CONTAIN or tag in _LATER) and tag not in one:
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
            containment=Containment(
                tuple(map(_read_mount, many[T_MOUNT])),
                _U64.unpack(one[T_NET])[0] if T_NET in one else NET_HOST,
            )
            if T_CONTAIN in one
            else None,
            gate=_U64.unpack(one[T_GATE])[0] if T_GATE in one else GATE_NONE,
            limits=tuple(LIMIT.unpack(value) for value in many[T_LIMIT]),
            connect=tuple(many[T_CONNECT]),
            thaw=one.get(T_THAW, b""),
            criu=tuple(many[T_CRIU]),
            deadline_ns=_U64.unpack(one[T_DEADLINE])[0] if T_DEADLINE in one else 0,
        )
    except (KeyError, struct.error, UnicodeDecodeError) as e:
        raise Malformed(f"incomplete spawn request: {e}") from e
    wrong = _wrong(request)
    if not wrong and (
        one.get(T_CONTAIN) or (T_CONTAIN not in one and (many[T_MOUNT] or T_NET in one))
    ):
        wrong = "mounts or a network without a containment, or a containment with a value"
    if wrong:
        raise Malformed(wrong)
    return request


def _wrong(r: Spawn) -> str:
    """Return why a well-formed request makes no sense, or an empty string."""
    if not r.adopt_pid and not r.thaw and not (r.argv and r.argv[0]):
        return "nothing to run"
    if wrong := _wrong_thaw(r):
        return wrong
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
    if r.containment is not None and (wrong := _wrong_containment(r.containment)):
        return wrong
    if r.connect and (
        r.containment is None
        or r.containment.net != NET_OWN
        or len(r.connect) > limits.CONNECT_COMMANDS
        or any(command[:1] != b"/" for command in r.connect)
    ):
        return "a way out of a network that is not the session's own, or a bad one"
    if r.cgroup and (r.cgroup[:1] != b"/" or b"\0" in r.cgroup):
        return "bad cgroup"
    if r.adopt_pid and (r.cgroup or r.containment is not None or r.gate or r.limits):
        return "a tree that is taken over has its cgroup, namespaces, filters and limits already"
    if wrong := next(filter(None, (_wrong_limit(*one) for one in r.limits)), ""):
        return wrong
    if r.gate > GATE_REQUIRED:
        return "bad gate"
    return ""


def _wrong_thaw(r: Spawn) -> str:
    if not r.thaw:
        return "CRIU without a checkpoint" if r.criu else ""
    if r.adopt_pid or r.argv or len(r.criu) < _CRIU_PATHS_MIN:
        return "a checkpoint needs CRIU, and no program"
    paths = (r.thaw, *r.criu)
    if len(paths) > limits.CONTAINED_PATHS or any(p[:1] != b"/" or b"\0" in p for p in paths):
        return "a bad path of a checkpoint"
    return ""


def _wrong_limit(kind: int, value: int) -> str:
    low, high = {LIMIT_OOM: (-1000, 1000), LIMIT_NICE: (-20, 19)}.get(kind, (0, OFFSET_MAX))
    if kind >= RESOURCES and kind not in (LIMIT_OOM, LIMIT_NICE):
        return "a limit of an unknown kind"
    return "" if low <= value <= high else "a limit out of range"


def _wrong_containment(c: Containment) -> str:
    layers = [m.source.split(b"\n") for m in c.mounts if m.kind == MOUNT_LAYERED]
    paths = [m.target for m in c.mounts] + [m.source for m in c.mounts if m.kind in _BINDS]
    paths += [path for layer in layers for path in layer]
    if len(paths) > limits.CONTAINED_PATHS or any(
        p[:1] != b"/" or b"\0" in p or b".." in p.split(b"/") for p in paths
    ):
        return "too many paths, or one that is not absolute"
    if any(not MOUNT_READ <= m.kind <= MOUNT_LAYERED or b"\0" in m.source for m in c.mounts):
        return "a bad mount"
    if any(len(layer) < _LAYERS_MIN for layer in layers):
        return "layers without a directory below"
    return "a bad network" if c.net > NET_NONE else ""


def nursery_command(run_dir: str) -> list[str]:
    """Return the command that starts a nursery by path, without site packages.

    docs/decisions/0002-keeper-memory.md has the reason.
    """
    package = __file__.rsplit("/", 2)[0]
    return [sys.executable, "-I", "-S", "-X", "utf8", f"{package}/keeper/__main__.py", run_dir]
