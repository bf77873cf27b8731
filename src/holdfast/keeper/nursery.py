"""The nursery: a warm interpreter that forks keepers cheaply and within a few milliseconds.

The nursery accepts a connection and forks at once. The keeper's launcher (keeper/launch.py) reads
the request, so a slow or broken request cannot delay the next. The nursery keeps no state: running
keepers do not need it, and its death does not affect them. A lock allows one nursery per home; a
host of another release asks the nursery to quit and starts its own.

    python -I -S .../keeper/__main__.py RUN_DIRECTORY       (wire.keeper.nursery_command)

A host starts a nursery if there is none, or a service manager starts it beforehand in a separate
unit (core/systemd_units.py). The nursery prints the line `ready` to stdout when it listens, and
notifies the service manager if there is one. All its files are in RUN_DIRECTORY (mode 0700);
`nursery.log` there has failures of keepers that no client could be told.

Memory. Children share the nursery's pages until they write. Measured for 200 keepers on Python
3.11, PSS each: 1700 KB at first, 450 KB now; with a host attached and in use 1950 KB at first, 590
KB now. Four measures helped: the launcher does all one-time work; the nursery rehearses a keeper's
life before forking, so that specialised bytecode and filled caches are in shared pages; ordinary
paths raise no exceptions; the heap has no gaps (keeper/heap.py).
docs/decisions/0002-keeper-memory.md has the steps, the numbers and the attempts that did not help.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import gc
import marshal
import os
import sys
import time

from holdfast.keeper import contain as contain  # loaded once: a launcher would need 20 ms for it
from holdfast.keeper import heap, launch, listening, rehearsal, terminal
from holdfast.keeper import plain as plain
from holdfast.keeper.loop import Keeper, packet_buffer
from holdfast.model.limits import KEEPER_LOG_BYTES, NURSERY_PAUSE_S
from holdfast.model.probe import probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

SOCKET, LOG = "nursery.sock", "nursery.log"
_IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def main() -> int:
    os.umask(0o077)
    os.makedirs(sys.argv[1], exist_ok=True)
    os.chdir(sys.argv[1])  # sockets have relative names: a socket path has at most 107 bytes
    directory = os.getcwd()
    # An inherited descriptor would stay open for as long as any session lives.
    os.closerange(3, 1 << 20)
    lock = os.open(launch.NURSERY_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another nursery serves this home", flush=True)
        return 3
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    terminal.set_title(b"hf-nursery")
    _survive_memory()
    _rehearse(directory, lock)
    _arm_probes()
    listener, fresh = listening.bind(SOCKET, _socket.SOCK_STREAM)
    listening.listen(listener, fresh, SOCKET)
    null, log = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), _log()
    print("ready", flush=True)
    _tell_manager()
    _detach(null, log)
    gc.collect()
    heap.fill_gaps()
    gc.freeze()  # children do not touch, and so do not copy, existing objects
    gc.disable()
    allowed: tuple[int, int] | None = None  # the limit of descriptors for programs
    while True:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError as e:
            if e.errno == errno.EINVAL:
                return 0  # asked to quit: launch._end_nursery
            time.sleep(NURSERY_PAUSE_S)  # no descriptor is free; try again soon
            continue
        # Not earlier: the host that started this nursery sets the limit before it asks.
        allowed = allowed or launch.more_descriptors()
        _serve(directory, fd, listener, lock, allowed)


def _serve(
    directory: str, fd: int, listener: _socket.socket, lock: int, allowed: tuple[int, int]
) -> None:
    try:
        pid = os.fork()
    except OSError as e:
        conn = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        launch.refuse(conn, e.errno or errno.EAGAIN, f"no process for it: {e}")
        return conn.close()
    if pid == 0:
        try:
            _hold(directory, fd, listener, lock, allowed)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(fd)
    return None


def _hold(
    directory: str, fd: int, listener: _socket.socket, lock: int, allowed: tuple[int, int]
) -> None:
    """Live as a keeper: let a child launch the program, answer the caller, hold the session.

    `allowed`: the limit of descriptors for programs.
    """
    try:
        os.setsid()
    except OSError:
        pass  # during the rehearsal
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A logout or a stray killall must not end the session. Keeper.begin handles SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    terminal.set_title(b"hf-keeper")
    terminal.be_subreaper(1)
    probe("keeper.spawning")
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    os.close(lock)
    child = os.fork()
    if child == 0:
        conn = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        launch.launch(conn, theirs, listener, allowed)
    theirs.close()
    listener.close()
    count, ancillary, _, _ = ours.recvmsg_into(
        [packet_buffer], launch.DESCRIPTORS_SPACE, _socket.MSG_CMSG_CLOEXEC
    )
    if ancillary:
        reply, *begin = marshal.loads(packet_buffer[:count])
        keeper = Keeper(directory, ancillary[0][2], *begin)
        try:
            if not ours.recv(1):
                ours.close()
                if child not in (keeper.tree.root, keeper.tree.holder):
                    os.waitpid(child, 0)
                keeper.begin()
                probe("keeper.spawned")
                try:
                    os.write(fd, reply)
                except OSError:
                    pass  # the caller is gone; a host that looks for the socket finds it
                os.close(fd)
                keeper.run()
        finally:
            keeper.close()


def _rehearse(directory: str, lock: int) -> None:
    """Live a keeper's life in this process, so that children find all pages already changed."""
    asks = rehearsal.begin()
    signal.signal(signal.SIGALRM, rehearsal.too_long)
    signal.alarm(rehearsal.ALLOWED_S)
    try:
        for conn in asks:
            _hold(directory, conn.detach(), _socket.socket(), os.dup(lock), launch.descriptors())
    except rehearsal.TooLong:
        pass  # keepers work without the rehearsal; they only use more memory
    signal.alarm(0)
    for conn in asks:
        conn.close()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps dead keepers
    try:
        os.waitpid(-1, 0)  # returns once all children of the rehearsal have ended
    except ChildProcessError:
        pass
    terminal.be_subreaper(0)
    terminal.set_title(b"hf-nursery")


def _survive_memory() -> None:
    """Make the OOM killer take this process and its keepers last; programs get another value.

    Going below zero needs CAP_SYS_RESOURCE. Other accounts undo what a session raised.
    """
    for value in (b"-900", b"0"):
        try:
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.write(fd, value)
            return
        except OSError:
            pass
        finally:
            os.close(fd)


def _arm_probes() -> None:
    directives = os.environ.get("HOLDFAST_PROBE")
    if directives:
        from holdfast.testing import probes

        probes.arm_from(directives)


def _tell_manager() -> None:
    """Notify the service manager, as transport/readiness.py does, without the socket module.

    Importing that module would cost every keeper memory.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address[:1] in ("/", "@"):
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            sock.sendto(
                b"READY=1",
                _socket.MSG_DONTWAIT,
                "\0" + address[1:] if address[0] == "@" else address,
            )
        except OSError:
            pass
        sock.close()


def _log() -> int:
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > KEEPER_LOG_BYTES:
        os.ftruncate(log, 0)
    return log


def _detach(null: int, log: int) -> None:
    """Close the terminal, pipes and log files inherited from the starting process."""
    for fd, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, fd)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main())
