"""The nursery: a warm interpreter that forks keepers, so that one costs little memory and a few milliseconds.

It accepts a connection and forks at once; the keeper's launcher (keeper/launch.py) reads the request, so nobody's
slow or broken request can hold up the next. It keeps nothing: keepers do not need it any more once they run, and
its death changes nothing for them. One nursery per home (a lock says so); a host of another release asks it to quit
and starts its own.

    python -I -S .../keeper/__main__.py RUN_DIRECTORY       (wire.keeper.nursery_command)

Whoever starts it: a host that finds none, or a service manager beforehand, in a unit of its own (core/units.py). It prints
one line `ready` to stdout when it listens, and tells a service manager that wants to know. Everything it makes lies in RUN_DIRECTORY (mode 0700); what went
wrong in a keeper and could be told to nobody is in `nursery.log` there.

Memory: children share its pages until they write. Measured for 200 keepers on Python 3.11, PSS each: 1700 KB at first,
450 KB now; with a host attached and in use 1950 KB at first, 590 KB now. What paid: the launcher does what is done
once; the life of a keeper is rehearsed here before forking, so that bytecode is specialised and caches are filled in
shared pages; no exceptions on the ordinary way; a heap without gaps (keeper/heap.py). Steps, numbers, and what did
not pay: docs/decisions/0002-keeper-memory.md.
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

from holdfast.keeper import heap, launch, rehearsal, terminal
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
    os.chdir(sys.argv[1])  # sockets are named relative to here: their paths have 107 bytes at most
    directory = os.getcwd()
    os.closerange(
        3, 1 << 20
    )  # what the starter leaves open would stay open for as long as any session
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
    _rehearse(directory, lock)
    _arm_probes()
    listener, fresh = launch.bind(SOCKET, _socket.SOCK_STREAM)
    launch.listen(listener, fresh, SOCKET)
    null, log = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), _log()
    print("ready", flush=True)
    _tell_manager()
    _detach(null, log)
    gc.collect()
    heap.fill_gaps()
    gc.freeze()  # the children do not touch (and so do not copy) what is here already
    gc.disable()
    while True:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError as e:
            if e.errno == errno.EINVAL:
                return 0  # asked to quit: launch._end_nursery
            time.sleep(NURSERY_PAUSE_S)  # no descriptor left on this machine: perhaps soon
            continue
        _serve(directory, fd, listener, lock)


def _serve(directory: str, fd: int, listener: _socket.socket, lock: int) -> None:
    try:
        pid = os.fork()
    except OSError as e:
        conn = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        launch.refuse(conn, e.errno or errno.EAGAIN, f"no process for it: {e}")
        return conn.close()
    if pid == 0:
        try:
            _hold(directory, fd, listener, lock)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(fd)
    return None


def _hold(directory: str, fd: int, listener: _socket.socket, lock: int) -> None:
    """The life of a keeper: has the program launched by a child, answers, and holds."""
    try:
        os.setsid()
    except OSError:
        pass  # in the rehearsal
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # a logout or a stray killall must not end the session
    terminal.set_title(b"hf-keeper")
    terminal.be_subreaper(1)
    probe("keeper.spawning")
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    os.close(lock)
    child = os.fork()
    if child == 0:
        launch.launch(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd), theirs, listener)
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
                if keeper.tree.root != child:
                    os.waitpid(child, 0)
                keeper.begin()
                probe("keeper.spawned")
                try:
                    os.write(fd, reply)
                except OSError:
                    pass  # who asked is gone; a host will find the socket
                os.close(fd)
                keeper.run()
        finally:
            keeper.close()


def _rehearse(directory: str, lock: int) -> None:
    """Plays the life of a keeper in this very process: what children would change first is changed here."""
    asks = rehearsal.begin()
    signal.signal(signal.SIGALRM, rehearsal.too_long)
    signal.alarm(rehearsal.ALLOWED_S)
    try:
        for conn in asks:
            _hold(directory, conn.detach(), _socket.socket(), os.dup(lock))
    except rehearsal.TooLong:
        pass  # keepers work without it; they only cost more
    signal.alarm(0)
    for conn in asks:
        conn.close()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead keepers are reaped by the kernel
    try:
        os.waitpid(-1, 0)  # so are those of the rehearsal, as soon as all have ended
    except ChildProcessError:
        pass
    terminal.be_subreaper(0)
    terminal.set_title(b"hf-nursery")


def _arm_probes() -> None:
    directives = os.environ.get("HOLDFAST_PROBE")
    if directives:
        from holdfast.testing import probes

        probes.arm_from(directives)


def _tell_manager() -> None:
    """As transport/readiness.py does; sockets of the whole library would cost every keeper its share of them."""
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
    """Nothing of the starter's terminal, pipes or log files stays open."""
    for fd, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, fd)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main())
