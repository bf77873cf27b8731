"""The launcher: reads one spawn request and becomes the requested program.

The launcher is the keeper's child and does all work that is done once. It parses the request,
creates terminal, ring, snapshot, bell and listener, passes them to the keeper over a socket pair,
and then executes the program. It exits instead when the keeper adopts an existing process tree, or
when a contained session has an init (keeper/contain.py). In a plain session of root it becomes
hf-root, and its child the program (keeper/plain.py). Memory that the launcher touches or leaks
disappears with it, and the keeper, which lives as long as the session, never sees argv or
environment.

To the keeper:  a packet (marshalled: both run the same interpreter) with DESCRIPTORS; then end of
                file once the program was executed, or one byte if it could not be.
To the caller:  the refusal, if a step fails. The keeper reports success.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import marshal
import os
import resource
import struct
import termios
import time

from holdfast.keeper import listening, ring, terminal
from holdfast.model.limits import ORIGINS_KEPT, SPAWN_BYTES, SPAWN_WAIT_S
from holdfast.wire import keeper as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn

    from holdfast.keeper import network
else:
    import _signal as signal

# Master, ring, snapshot, bell, listener, both ends of the wake-up pipe.
DESCRIPTORS = struct.Struct("7i")
ONE, THREE = struct.Struct("i"), struct.Struct("3i")
HELD = struct.Struct("6i")  # of a contained session: init's pidfd and five namespaces
# The same, of a contained session the socket to its init and HELD, and the gate's listener.
DESCRIPTORS_SPACE = _socket.CMSG_SPACE(DESCRIPTORS.size + 2 * ONE.size + HELD.size)
NURSERY_LOCK = "nursery.lock"
NO_GATE = "no exec gate"
_PATH = b"/usr/local/bin:/usr/bin:/bin"
_SHELL = b"/bin/sh"
_IUTF8 = 0o40000
_TIOCSPTLCK = 0x4004_5431
_LIBC_SIGNALS = (32, 33)  # reserved by libc
_DESCRIPTORS_PART = 2  # a contained session gets half of the limit of descriptors


class CannotStart(Exception):
    """The program could not be started: an errno and a plain reason."""

    def __init__(self, number: int | None, reason: str) -> None:
        super().__init__(reason)
        self.number = number or errno.EIO


def launch(
    conn: _socket.socket,
    keeper: _socket.socket,
    nursery: _socket.socket | None,
    allowed: tuple[int, int],
) -> NoReturn:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(SPAWN_WAIT_S))  # bound for a caller that does not finish its request
        request, adopted = _read_request(conn, nursery)
        if _gone(conn):  # the caller gave up or died, so there must be no session
            raise CannotStart(errno.ECANCELED, "whoever asked has gone")
        if request.adopt_pid:
            if adopted < 0 or not os.isatty(adopted):
                raise wire.Malformed("taking over a tree needs its terminal")
            _hand_over(keeper, request, adopted, request.adopt_pid)
            os._exit(0)
        connector = _connector(request)
        _join(request.cgroup)
        prefer(request.limits)
        if request.thaw:
            _thaw(keeper, request, connector)
        if request.containment is not None:
            slave, cookie = _contain(keeper, request, connector, allowed)
        else:
            from holdfast.keeper import plain

            above = os.getppid()
            master, slave = _open_terminal(request)
            listener, cookie = gated(request.gate)
            if holder := plain.begin(cookie):
                signal.alarm(int(SPAWN_WAIT_S))
            _hand_over(keeper, request, master, os.getpid(), listener, holder=holder, above=above)
            if listener > 0:
                os.close(listener)
        _become(request, slave, cookie, allowed)
    except CannotStart as e:
        refuse(conn, e.number, str(e))
    except wire.Malformed as e:
        refuse(conn, errno.EINVAL, f"bad spawn request: {e}")
    except BaseException as e:  # not the request's fault: report EIO, whatever the errno
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


# ---------------------------------------------------------------- the request


def _read_request(conn: _socket.socket, nursery: _socket.socket | None) -> tuple[wire.Spawn, int]:
    """Read the request and the descriptor that came with it (or -1)."""
    if not listening.same_user(conn):
        raise wire.Malformed("another user's request")
    magic, ancillary, _, _ = conn.recvmsg(
        len(wire.SPAWN_MAGIC),
        _socket.CMSG_SPACE(ONE.size * wire.WORKER_DESCRIPTORS),
        _socket.MSG_CMSG_CLOEXEC,
    )
    fds = [fd for _, _, data in ancillary for (fd,) in ONE.iter_unpack(data)]
    magic += _read_exactly(conn, len(wire.SPAWN_MAGIC) - len(magic))
    if magic == wire.QUIT_MAGIC and nursery is not None:
        _end_nursery(nursery)
    if magic not in (wire.SPAWN_MAGIC, wire.WORKER_MAGIC):
        raise wire.Malformed(f"it begins with {magic!r}")
    head = magic + _read_exactly(conn, wire.SPAWN_HEADER.size - len(magic))
    _, version, length = wire.SPAWN_HEADER.unpack(head)
    if version != wire.VERSION:
        raise wire.Malformed(f"version {version} of the wire; this nursery speaks {wire.VERSION}")
    if length > SPAWN_BYTES:
        raise wire.Malformed(f"{length} bytes; at most {SPAWN_BYTES}")
    body = _read_exactly(conn, length)
    if magic == wire.WORKER_MAGIC:
        _work(conn, body, fds)
    return wire.read_spawn(body), fds[0] if fds else -1


def _read_exactly(conn: _socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = conn.recv(min(length - len(data), 1 << 16))
        if not piece:
            raise wire.Malformed("the connection ended early")
        data += piece
    return bytes(data)


def _work(conn: _socket.socket, body: bytes, fds: list[int]) -> NoReturn:
    """Become a worker of the host, without a keeper: its end of the socket pair closes with exec.

    The worker leads a session and a process group, as one that the host starts itself. The host
    reads a single answer, before the exec: a program that is missing is refused here.
    """
    argv, environment = wire.read_worker(body)
    if not os.access(argv[0], os.X_OK):
        raise CannotStart(errno.ENOENT, f"{_shown(argv[0])} cannot be executed")
    signal.alarm(0)
    os.setsid()
    os.chdir("/")
    prefer(())
    reset_signals()
    for fd in fds:
        os.set_inheritable(fd, True)
    conn.sendall(wire.SPAWN_REPLY.pack(wire.SPAWN_OK, 0, os.getpid(), 0))
    os.execve(argv[0], [*argv, *(b"%d" % fd for fd in fds)], environment)


def _end_nursery(nursery: _socket.socket) -> NoReturn:
    """Make the nursery's accept fail, so that it exits.

    The caller sees its connection end once another nursery may start in this home.
    """
    nursery.shutdown(_socket.SHUT_RDWR)
    fcntl.flock(os.open(NURSERY_LOCK, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_SH)
    os._exit(0)


# ---------------------------------------------------------------- what the keeper needs


def _open_terminal(request: wire.Spawn) -> tuple[int, int]:
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    return master, _prepare_terminal(master, request)


def _prepare_terminal(master: int, request: wire.Spawn) -> int:
    """Unlock a new terminal, set its size and modes, and return its slave side."""
    fcntl.ioctl(master, _TIOCSPTLCK, bytes(4))
    slave = terminal.open_slave(master)
    termios.tcsetwinsize(slave, (request.rows, request.cols))
    attributes = termios.tcgetattr(slave)
    attributes[0] |= _IUTF8
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    return slave


def _join(group: bytes) -> None:
    """Move this process into a cgroup, which its descendants inherit.

    If that is not allowed, the host learns so from /proc.
    """
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


def gated(wanted: int, contained: bool = False) -> tuple[int, int | None]:
    """Put this process and its descendants behind the exec gate.

    Returns the gate's listener (negative: the errno of the kernel's refusal; 0: not wanted) and the
    cookie with which this process may execute its own program. A contained session has the filter
    in any case, for what it forbids.
    """
    if not wanted and not contained:
        return 0, None
    from holdfast.keeper import install_filter

    try:
        return install_filter.install(wanted > 0, contained, wanted == wire.GATE_REQUIRED)
    except OSError as e:
        if wanted == wire.GATE_REQUIRED or contained:
            raise CannotStart(errno.EBUSY, f"{NO_GATE}: {e.strerror}") from e
        return -(e.errno or errno.EIO), None


def _connector(request: wire.Spawn) -> network.Connector | None:
    """Prepare the connection of a session's own network, outside of all that the session is in."""
    if not request.connect:
        return None
    from holdfast.keeper import network

    return network.Connector(request.connect, request.limits)


def _contain(
    keeper: _socket.socket,
    request: wire.Spawn,
    connector: network.Connector | None,
    allowed: tuple[int, int],
) -> tuple[int, int | None]:
    """Return inside, in the process that becomes the program, with its side of the terminal.

    The outer process exits.
    """
    from holdfast.keeper import contain, file_tree

    assert request.containment is not None
    # The machine's own /proc, which cannot be named inside.
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    counted = contain.counts(proc)
    try:
        root = contain.enter(request.containment, connector)
        master = file_tree.open_terminal(root)
        slave = _prepare_terminal(master, request)
        program, init, cookie = contain.start(
            root, proc, lambda: _limit(request, allowed), request.gate
        )
        connected = connector.wait(proc) if connector is not None and program is not None else 0
        if program is not None:
            # Not earlier: pasta makes namespaces that count as the session's.
            contain.leave_a_part(counted, request.containment, proc)
    except file_tree.NotAllowed as e:
        raise CannotStart(
            errno.EBUSY if str(e).startswith(NO_GATE) else errno.EOPNOTSUPP, str(e)
        ) from e
    if program is not None:
        held = ONE.pack(init) + HELD.pack(*program.held)
        _hand_over(keeper, request, master, program.pid, program.listener, proc, held, connected)
        program.let_go()
        os._exit(0)
    os.close(proc)
    return slave, cookie


def _thaw(
    keeper: _socket.socket, request: wire.Spawn, connector: network.Connector | None
) -> NoReturn:
    """Restore a checkpoint. A large one takes longer than the launcher of a program may."""
    from holdfast.keeper import contain, file_tree, thaw

    containment = request.containment
    signal.alarm(0)
    saved = thaw.Saved(request)
    request = request._replace(ring_tail=saved.output)
    if containment is None:
        with thaw.start_plain(saved, request) as again:
            top = saved.top
            _hand_over(keeper, request, again.master, again.pid, again.listener, holder=top)
        os._exit(0)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    counted = contain.counts(proc)
    try:
        root = contain.enter(containment, connector)
        made, init = thaw.start(saved, request, root, proc)
        connected = connector.wait(proc) if connector is not None else 0
        contain.leave_a_part(counted, containment, proc)
    except file_tree.NotAllowed as e:
        raise CannotStart(errno.EOPNOTSUPP, str(e)) from e
    held = ONE.pack(init) + HELD.pack(*made.held)
    _hand_over(keeper, request, made.master, made.pid, made.listener, proc, held, connected)
    os._exit(0)


def _hand_over(
    keeper: _socket.socket,
    request: wire.Spawn,
    master: int,
    root: int,
    gate: int = 0,
    proc: int | None = None,
    contained: bytes = b"",
    connector: int = 0,
    holder: int = 0,
    above: int = 0,
) -> None:
    """`holder`: hf-root of a plain session. `above`: the keeper, if it is not the parent."""
    if listening.answers(request.socket):
        raise CannotStart(errno.EADDRINUSE, f"a keeper listens at {request.socket} already")
    os.set_blocking(master, False)
    listener, fresh = listening.bind(request.socket, _socket.SOCK_SEQPACKET)
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
        + contained
        + (ONE.pack(gate) if gate > 0 else b"")
    )
    origins = {o.origin: tuple(o) for o in request.origins[-ORIGINS_KEPT:]}
    begin = (
        wire.SPAWN_REPLY.pack(wire.SPAWN_OK, 0, above or os.getppid(), 0),
        request.session.encode(),
        request.socket,
        fresh,
        listening.inode(fresh),
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
        bool(contained),
        gate,
        connector,
        request.deadline_ns,
        request.cgroup,
        holder,
    )
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)
    # A keeper that has died is an error, not SIGPIPE.
    keeper.sendmsg([marshal.dumps(begin)], [rights], _socket.MSG_NOSIGNAL)


# ---------------------------------------------------------------- the program


def _become(
    request: wire.Spawn, slave: int, cookie: int | None, allowed: tuple[int, int]
) -> NoReturn:
    """Execute the program on the terminal, with default signals and only descriptors 0 to 2."""
    _limit(request, allowed)
    reset_signals()
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


def prefer(limits: tuple[tuple[int, int], ...]) -> None:
    """Set this process's place with the scheduler and the OOM killer, if allowed.

    The latter is always set: the program must not inherit the keeper's.
    """
    for kind, value in ((wire.LIMIT_OOM, 0), *limits):
        try:
            if kind == wire.LIMIT_OOM:
                fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
                os.write(fd, b"%d" % value)
                os.close(fd)
            elif kind == wire.LIMIT_NICE:
                os.setpriority(os.PRIO_PROCESS, 0, value)
        except OSError:
            pass


def descriptors() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def more_descriptors() -> tuple[int, int]:
    """Raise this process's limit of descriptors to the maximum; return the previous limit."""
    allowed = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed[1], allowed[1]))
    return allowed


def _limit(request: wire.Spawn, allowed: tuple[int, int]) -> None:
    """Bound the resources of this process and its descendants.

    Processes are counted in the session's user namespace, so this comes after it.

    The kernel counts descriptors on their way through sockets by account, and refuses one more if
    they exceed the sender's limit. A contained session gets a part of the limit, so that it cannot
    keep host and keepers, which have all of it, from sending theirs.
    """
    soft, hard = allowed
    if request.containment is not None and hard != resource.RLIM_INFINITY:
        hard //= _DESCRIPTORS_PART
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for kind, value in request.limits:
        if kind < wire.RESOURCES:
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            try:
                resource.setrlimit(kind, (bound, bound))
            except (OSError, ValueError) as e:
                raise CannotStart(errno.EPERM, f"limit {kind} of {value}: {e}") from e


def reset_signals() -> None:
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, *_LIBC_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(
    argv: tuple[bytes, ...], environment: dict[bytes, bytes], cookie: int | None
) -> OSError:
    """Do what execvpe(3) does: search PATH, skip failures, run a script without #! by sh."""
    name = argv[0]
    directories = [b""] if b"/" in name else environment.get(b"PATH", _PATH).split(b":")
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in directories:
        path = directory + b"/" + name if directory else name
        try:
            execve(path, argv, environment, cookie)
        except OSError as e:
            if e.errno == errno.ENOEXEC:
                execve(_SHELL, (_SHELL, path, *argv[1:]), environment, cookie)
            if len(directories) == 1 or e.errno not in (errno.ENOENT, errno.ENOTDIR):
                error = e
    return error


def execve(
    path: bytes, argv: tuple[bytes, ...], environment: dict[bytes, bytes], cookie: int | None
) -> None:
    if cookie is None:
        os.execve(path, argv, environment)
    else:
        from holdfast.keeper import install_filter

        install_filter.execute(path, argv, environment, cookie)


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "replace")
