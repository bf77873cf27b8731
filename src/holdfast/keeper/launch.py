"""The launcher: reads one request and becomes the program that was asked for.

It is the keeper's child and does all that is done once: it parses the request, makes terminal, ring, snapshot, bell
and listener, hands them to the keeper over a socket pair, and then executes the program in its own place (or exits,
when the keeper takes over a tree that something else launched, or when a contained session has an init instead:
keeper/contain.py, loaded here and nowhere else). So whatever this touches or leaks goes away with it, and the keeper,
which stays for as long as the session lives, never sees argv or environment.

To the keeper:  one packet (marshalled: both are the same interpreter) with DESCRIPTORS; then end of file once the
                program has been executed, or one byte if it could not be.
To the asker:   the refusal, if anything fails. (That all went well is the keeper's to say.)
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import marshal
import os
import struct
import termios
import time

from holdfast.keeper import ring, terminal
from holdfast.model.limits import LISTEN_BACKLOG, ORIGINS_KEPT, SPAWN_BYTES, SPAWN_WAIT_S
from holdfast.wire import keeper as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

DESCRIPTORS = struct.Struct(
    "7i"
)  # master, ring, snapshot, bell, listener, both ends of the wake-up pipe
ONE, THREE = struct.Struct("i"), struct.Struct("3i")
DESCRIPTORS_SPACE = _socket.CMSG_SPACE(
    DESCRIPTORS.size + 2 * ONE.size
)  # and a contained session's init's pipe; and the gate's listener
NURSERY_LOCK = "nursery.lock"
NO_GATE = "no exec gate"
_PATH = b"/usr/local/bin:/usr/bin:/bin"
_SHELL = b"/bin/sh"
_IUTF8 = 0o40000
_LIBC_SIGNALS = (32, 33)  # used by libc itself; the kernel has them, nobody else may


class CannotStart(Exception):
    """The program could not be started: an errno and a plain reason."""

    def __init__(self, number: int | None, reason: str) -> None:
        super().__init__(reason)
        self.number = number or errno.EIO


def launch(
    conn: _socket.socket, keeper: _socket.socket, nursery: _socket.socket | None
) -> NoReturn:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(SPAWN_WAIT_S))  # whoever does not finish asking is not waited for
        request, adopted = _read_request(conn, nursery)
        if _gone(conn):  # it was told that there is no session, or has died: then there is none
            raise CannotStart(errno.ECANCELED, "whoever asked has gone")
        if request.adopt_pid:
            if adopted < 0 or not os.isatty(adopted):
                raise wire.Malformed("taking over a tree needs its terminal")
            _hand_over(keeper, request, adopted, request.adopt_pid)
            os._exit(0)
        _join(request.cgroup)
        if request.containment is not None:
            slave, cookie = _contain(keeper, request)
        else:
            master, slave = _open_terminal(request)
            listener, cookie = gated(request.gate)
            _hand_over(keeper, request, master, os.getpid(), listener)
            if listener > 0:
                os.close(listener)
        _become(request, slave, cookie)
    except CannotStart as e:
        refuse(conn, e.number, str(e))
    except wire.Malformed as e:
        refuse(conn, errno.EINVAL, f"bad spawn request: {e}")
    except BaseException as e:  # not the request's fault, whatever its errno: EIO
        refuse(conn, errno.EIO, f"{e}")
    finally:
        try:
            keeper.send(b"!")
        finally:
            os._exit(127)


def _gone(conn: _socket.socket) -> bool:
    try:
        return not conn.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def refuse(conn: _socket.socket, number: int, text: str) -> None:
    body = text.encode("utf-8", "replace")[:1000]
    try:
        conn.sendall(wire.SPAWN_REPLY.pack(wire.SPAWN_FAILED, number, 0, len(body)) + body)
    except OSError:
        pass


def same_user(sock: _socket.socket) -> bool:
    """Only this account (and root) may ask. The directory's mode says so too; this does not depend on it."""
    uid = THREE.unpack(sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))[1]
    return uid in (os.geteuid(), 0)


def bind(name: str, kind: int) -> tuple[_socket.socket, str]:
    """A socket that will listen at `name`, and the temporary name that it has so far."""
    listener = _socket.socket(_socket.AF_UNIX, kind)
    fresh = f".{name}.{os.getpid()}"
    forget(fresh)
    listener.bind(fresh)
    return listener, fresh


def inode(name: str) -> int:
    """Which file that is; 0 if there is none."""
    try:
        return os.stat(name).st_ino
    except FileNotFoundError:
        return 0


def listen(listener: _socket.socket, fresh: str, name: str) -> None:
    """The path never leads to a socket that does not listen; and who listens is who the peer's credentials name."""
    listener.listen(LISTEN_BACKLOG)
    os.rename(fresh, name)


def forget(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        pass


# ---------------------------------------------------------------- the request


def _read_request(conn: _socket.socket, nursery: _socket.socket | None) -> tuple[wire.Spawn, int]:
    """The request, and the descriptor that came with it (or -1)."""
    if not same_user(conn):
        raise wire.Malformed("another user's request")
    magic, ancillary, _, _ = conn.recvmsg(
        len(wire.SPAWN_MAGIC), _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC
    )
    fd = struct.unpack_from("i", ancillary[0][2])[0] if ancillary else -1
    magic += _read_exactly(conn, len(wire.SPAWN_MAGIC) - len(magic))
    if magic == wire.QUIT_MAGIC and nursery is not None:
        _end_nursery(nursery)
    if magic != wire.SPAWN_MAGIC:
        raise wire.Malformed(f"it begins with {magic!r}")
    head = magic + _read_exactly(conn, wire.SPAWN_HEADER.size - len(magic))
    _, version, length = wire.SPAWN_HEADER.unpack(head)
    if version != wire.VERSION:
        raise wire.Malformed(f"version {version} of the wire; this nursery speaks {wire.VERSION}")
    if length > SPAWN_BYTES:
        raise wire.Malformed(f"{length} bytes; at most {SPAWN_BYTES}")
    return wire.read_spawn(_read_exactly(conn, length)), fd


def _read_exactly(conn: _socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = conn.recv(min(length - len(data), 1 << 16))
        if not piece:
            raise wire.Malformed("the connection ended early")
        data += piece
    return bytes(data)


def _end_nursery(nursery: _socket.socket) -> NoReturn:
    """Its accept fails now, and it ends. Who asked hears the end of the connection when the home is free again."""
    nursery.shutdown(_socket.SHUT_RDWR)
    fcntl.flock(os.open(NURSERY_LOCK, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_SH)
    os._exit(0)


# ---------------------------------------------------------------- what the keeper needs


def _open_terminal(request: wire.Spawn) -> tuple[int, int]:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (request.rows, request.cols))
    attributes = termios.tcgetattr(slave)
    attributes[0] |= _IUTF8
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    return master, slave


def _join(group: bytes) -> None:
    """This process, and so all that come of it. Where that is not allowed, the host finds it so in /proc."""
    if group:
        try:
            fd = os.open(group + b"/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.write(fd, b"0")
        except OSError:
            pass
        os.close(fd)


def gated(wanted: int) -> tuple[int, int | None]:
    """This process, and all that come of it, ask before they execute anything: the descriptor by which they do (or minus the errno with which the kernel
    refused it; 0: not wanted), and what its own next execution is known by."""
    if not wanted:
        return 0, None
    from holdfast.keeper import filtering

    try:
        return filtering.install(wanted == wire.GATE_REQUIRED)
    except OSError as e:
        if wanted == wire.GATE_REQUIRED:
            raise CannotStart(errno.EBUSY, f"{NO_GATE}: {e.strerror}") from e
        return -(e.errno or errno.EIO), None


def _contain(keeper: _socket.socket, request: wire.Spawn) -> tuple[int, int | None]:
    """Returns in the process that becomes the program, inside, with its side of the terminal; this one ends."""
    from holdfast.keeper import contain

    assert request.containment is not None
    proc = os.open(
        "/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # the machine's, whatever is there later
    try:
        as_root = contain.enter(request.containment)
        master, slave = _open_terminal(request)
        program, status, cookie = contain.start(as_root, request.gate)
    except contain.NotAllowed as e:
        raise CannotStart(
            errno.EBUSY if str(e).startswith(NO_GATE) else errno.EOPNOTSUPP, str(e)
        ) from e
    if program is not None:
        _hand_over(keeper, request, master, program.pid, program.listener, proc, status)
        program.let_go()
        os._exit(0)
    os.close(proc)
    return slave, cookie


def _hand_over(
    keeper: _socket.socket,
    request: wire.Spawn,
    master: int,
    root: int,
    gate: int = 0,
    proc: int | None = None,
    status: int = -1,
) -> None:
    if _answers(request.socket):
        raise CannotStart(errno.EADDRINUSE, f"a keeper listens at {request.socket} already")
    os.set_blocking(master, False)
    listener, fresh = bind(request.socket, _socket.SOCK_SEQPACKET)
    fds = (
        DESCRIPTORS.pack(
            master,
            ring.create(
                request.ring_bytes,
                request.base,
                request.ring_tail,
                request.accepted,
                request.status >= 0,
                request.cols,
                request.rows,
            ),
            os.memfd_create("holdfast-screen", os.MFD_CLOEXEC),
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK),
            listener.detach(),
            *os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK),
        )
        + (ONE.pack(status) if status >= 0 else b"")
        + (ONE.pack(gate) if gate > 0 else b"")
    )
    origins = {o.origin: tuple(o) for o in request.origins[-ORIGINS_KEPT:]}
    begin = (
        wire.SPAWN_REPLY.pack(wire.SPAWN_OK, 0, os.getppid(), 0),
        request.session.encode(),
        request.socket,
        fresh,
        inode(fresh),
        request.epoch,
        request.label,
        request.cols,
        request.rows,
        time.time_ns(),
        request.away_ms / 1000,
        root,
        terminal.start_time(root, proc),
        request.status,
        request.adopt_pid > 0,
        request.accepted,
        origins,
        status >= 0,
        gate,
    )
    keeper.sendmsg([marshal.dumps(begin)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])


def _answers(name: str) -> bool:
    """Whether somebody listens there. To take over the name would make that session unreachable."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        sock.connect(name)
        return True
    except OSError:
        return False
    finally:
        sock.close()


# ---------------------------------------------------------------- the program


def _become(request: wire.Spawn, slave: int, cookie: int | None) -> NoReturn:
    """Executes the program on the terminal: default signals, nothing open but 0, 1 and 2 (else: close-on-exec)."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, *_LIBC_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.login_tty(slave)
    try:
        os.chdir(request.cwd)
    except OSError as e:
        raise CannotStart(e.errno, f"directory {_shown(request.cwd)}: {e.strerror}") from e
    os.umask(request.umask)
    signal.alarm(0)
    environment = dict(entry.split(b"=", 1) for entry in request.env)
    error = _execute(request.argv, environment, cookie)
    raise CannotStart(error.errno, f"{_shown(request.argv[0])}: {error.strerror}")


def _execute(
    argv: tuple[bytes, ...], environment: dict[bytes, bytes], cookie: int | None
) -> OSError:
    """execvpe(3): looks along PATH, goes on after what cannot be run, gives a script without #! to the shell."""
    name = argv[0]
    directories = [b""] if b"/" in name else environment.get(b"PATH", _PATH).split(b":")
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in directories:
        path = directory + b"/" + name if directory else name
        try:
            _execve(path, argv, environment, cookie)
        except OSError as e:
            if e.errno == errno.ENOEXEC:
                _execve(_SHELL, (_SHELL, path, *argv[1:]), environment, cookie)
            if len(directories) == 1 or e.errno not in (errno.ENOENT, errno.ENOTDIR):
                error = e
    return error


def _execve(
    path: bytes, argv: tuple[bytes, ...], environment: dict[bytes, bytes], cookie: int | None
) -> None:
    if cookie is None:
        os.execve(path, argv, environment)
    else:
        from holdfast.keeper import filtering

        filtering.execute(path, argv, environment, cookie)


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "replace")
