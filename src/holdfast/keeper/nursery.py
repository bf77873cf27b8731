"""The nursery: a warm interpreter that forks keepers, so that one costs half a megabyte and a few milliseconds.

It accepts a connection and forks at once; the child reads the request, so nobody's slow or broken request can hold up the
next. It keeps nothing: keepers do not need it any more once they run, and its death changes nothing for them.
One nursery per home (a lock says so); a host of another release asks it to quit and starts its own.

    python -m holdfast.keeper.nursery RUN_DIRECTORY

Prints one line `ready` to stdout when it listens. Everything it makes lies in RUN_DIRECTORY (mode 0700).
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import struct
import sys

from holdfast.keeper import terminal
from holdfast.keeper.loop import Keeper, _descriptors
from holdfast.model.limits import SPAWN_BYTES, SPAWN_WAIT_S
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire

SOCKET, LOCK = "nursery.sock", "nursery.lock"


def main() -> int:
    directory = sys.argv[1]
    os.chdir(directory)           # sockets are named relative to here: unix socket paths are limited to 107 bytes
    os.umask(0o077)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another nursery serves this home", flush=True)
        return 3
    arm = os.environ.get("HOLDFAST_PROBE")
    if arm:
        from holdfast.testing import probes

        probes.arm_from(arm)
    listener = _listen(SOCKET)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)   # dead keepers are reaped by the kernel
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminal.set_title("hf-nursery")
    print("ready", flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    gc.collect()
    gc.freeze()                   # the children do not touch (and so do not copy) what is here already
    gc.disable()
    while True:
        conn, _ = listener.accept()
        pid = os.fork()
        if pid == 0:
            listener.close()
            os.close(lock)
            os._exit(_keeper(conn))
        quit_asked = _asks_to_quit(conn)
        conn.close()
        if quit_asked:
            return 0


def _asks_to_quit(conn: socket.socket) -> bool:
    """Peeks without waiting: the request itself belongs to the child."""
    try:
        return conn.recv(4, socket.MSG_PEEK | socket.MSG_DONTWAIT) == wire.QUIT_MAGIC
    except OSError:
        return False


def _listen(name: str) -> socket.socket:
    """Binds under a temporary name and renames: the path never leads to a dead socket while we live."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if name == SOCKET else socket.SOCK_SEQPACKET)
    fresh = f".{name}.{os.getpid()}"
    _unlink(fresh)
    listener.bind(fresh)
    listener.listen(64)
    os.rename(fresh, name)
    return listener


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _keeper(conn: socket.socket) -> int:
    """The child: reads its request, starts the program, answers, and holds."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)   # a logout or a stray killall must not end the session
    terminal.set_title("hf-keeper")
    try:
        request, fds = _read_request(conn)
    except (OSError, wire.Malformed) as e:
        _answer(conn, wire.SPAWN_FAILED, getattr(e, "errno", None) or 22, 0, f"bad spawn request: {e}")
        return 1
    terminal.become_subreaper()
    probe("keeper.spawning")
    try:
        if request.adopt_pid:
            if not fds:
                raise terminal.CannotStart(22, "taking over a tree needs its terminal")
            master, pid = fds.pop(0), request.adopt_pid
            os.set_blocking(master, False)
        else:
            master, pid = terminal.start(request)
    except (terminal.CannotStart, OSError) as e:
        _answer(conn, wire.SPAWN_FAILED, e.errno or 5, 0, getattr(e, "reason", str(e)))
        return 1
    try:
        listener = _listen(request.socket)
        keeper = Keeper(request, listener, master, pid)
        probe("keeper.spawned")
        _answer(conn, wire.SPAWN_OK, 0, os.getpid(), "")
        conn.close()
        keeper.run(None)
    finally:
        _unlink(request.socket)
    return 0


def _read_request(conn: socket.socket) -> tuple[wire.Spawn, list[int]]:
    _, uid, _ = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (os.geteuid(), 0):
        raise wire.Malformed("another user's request")
    conn.settimeout(SPAWN_WAIT_S)
    head, ancillary, _, _ = conn.recvmsg(wire.SPAWN_HEADER.size, socket.CMSG_SPACE(4))
    fds = _descriptors(ancillary)
    head += _read_exactly(conn, wire.SPAWN_HEADER.size - len(head))
    magic, version, length = wire.SPAWN_HEADER.unpack(head)
    if magic != wire.SPAWN_MAGIC or version != wire.VERSION or length > SPAWN_BYTES:
        raise wire.Malformed(f"header {head!r}")
    return wire.read_spawn(_read_exactly(conn, length)), fds


def _read_exactly(conn: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = conn.recv(min(length - len(data), 1 << 16))
        if not piece:
            raise wire.Malformed("connection ended early")
        data += piece
    return data


def _answer(conn: socket.socket, result: int, number: int, pid: int, text: str) -> None:
    body = text.encode("utf-8", "replace")[:1000]
    try:
        conn.sendall(wire.SPAWN_REPLY.pack(result, number, pid, len(body)) + body)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
