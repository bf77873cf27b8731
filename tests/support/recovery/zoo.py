"""A program with state of many kinds; each line of input starts a check of the whole state.

Standard library only: the program runs inside a session, with the system's interpreter.

    python3 zoo.py DIRECTORY MEGABYTES [KIND ...]        default: all kinds but the odd ones
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import select
import selectors
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable

Check = Callable[[], bool]
Kind = Callable[[str, int], Check]
DELETED_BYTES = 3 << 20  # above CRIU's default for deleted files
PERIOD_S = 0.02
libc = ctypes.CDLL(None, use_errno=True)


def heap(place: str, megabytes: int) -> Check:
    pieces = [bytes([n % 251]) * (1 << 20) for n in range(megabytes)]

    def digest() -> str:
        found = hashlib.sha256()
        for one in pieces:
            found.update(one)
        return found.hexdigest()

    before = digest()
    return lambda: digest() == before


def pipe(place: str, megabytes: int) -> Check:
    reader, writer = os.pipe()
    os.write(writer, b"in the pipe")

    def check() -> bool:
        found = os.read(reader, 100)
        os.write(writer, b"in the pipe")
        return found == b"in the pipe"

    return check


def socket_pair(place: str, megabytes: int) -> Check:
    left, right = socket.socketpair()
    left.send(b"between sockets")

    def check() -> bool:
        found = right.recv(100)
        left.send(b"between sockets")
        return found == b"between sockets"

    return check


def deleted_file(place: str, megabytes: int) -> Check:
    file = open(f"{place}/deleted", "w+")  # noqa: SIM115
    text = "deleted text" * (DELETED_BYTES // 12)
    file.write(text)
    file.flush()
    os.unlink(f"{place}/deleted")

    def check() -> bool:
        file.seek(0)
        return file.read() == text

    return check


def flock(place: str, megabytes: int) -> Check:
    return _locked(f"{place}/flock", fcntl.flock)


def fcntl_lock(place: str, megabytes: int) -> Check:
    return _locked(f"{place}/lock", fcntl.lockf)


def _locked(path: str, take: Callable[..., object]) -> Check:
    """Whether another process cannot take the lock."""
    file = open(path, "w")  # noqa: SIM115
    take(file, fcntl.LOCK_EX)

    def check() -> bool:
        pid = os.fork()
        if pid == 0:
            try:
                with open(path, "r+") as f:
                    take(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(0)
            os._exit(1)
        return not file.closed and os.waitpid(pid, 0)[1] == 0

    return check


def tcp_listening(place: str, megabytes: int) -> Check:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_echo, args=(server,), daemon=True).start()

    def check() -> bool:
        with socket.create_connection(server.getsockname(), timeout=60) as one:
            one.sendall(b"ask")
            return one.recv(100) == b"ask"

    return check


def tcp_established(place: str, megabytes: int) -> Check:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    other, _ = server.accept()
    other.sendall(b"under way")

    def check() -> bool:
        found = client.recv(100)
        other.sendall(b"under way")
        return found == b"under way"

    return check


def udp(place: str, megabytes: int) -> Check:
    left, right = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    left.bind(("127.0.0.1", 0))

    def check() -> bool:
        right.sendto(b"datagram", left.getsockname())
        return left.recv(100) == b"datagram"

    return check


def unix_named(place: str, megabytes: int) -> Check:
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{place}/unix")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"{place}/unix")
    other, _ = server.accept()
    other.sendall(b"named")

    def check() -> bool:
        found = client.recv(100)
        other.sendall(b"named")
        with socket.socket(socket.AF_UNIX) as more:
            more.connect(f"{place}/unix")
            accepted, _ = server.accept()
            accepted.close()
        return found == b"named"

    return check


def _echo(server: socket.socket) -> None:
    while True:
        with server.accept()[0] as one:
            one.sendall(one.recv(100))


def thread(place: str, megabytes: int) -> Check:
    beats = [0]

    def beat() -> None:
        while True:
            time.sleep(0.005)  # a pause between beats
            beats[0] += 1

    threading.Thread(target=beat, daemon=True).start()

    def check() -> bool:
        before = beats[0]
        while beats[0] == before:
            time.sleep(0.01)  # poll the other thread
        return True

    return check


def timer_fd(place: str, megabytes: int) -> Check:
    fd = libc.timerfd_create(1, 0)
    period = struct.pack("4q", 0, int(PERIOD_S * 1e9), 0, int(PERIOD_S * 1e9))
    assert fd > 0 and not libc.timerfd_settime(fd, 0, period, None)
    return lambda: len(os.read(fd, 8)) == 8 and len(os.read(fd, 8)) == 8


def interval_timer(place: str, megabytes: int) -> Check:
    rung = [0]
    signal.signal(signal.SIGALRM, lambda *_: rung.__setitem__(0, rung[0] + 1))
    signal.setitimer(signal.ITIMER_REAL, PERIOD_S, PERIOD_S)

    def check() -> bool:
        before = rung[0]
        while rung[0] < before + 2:
            signal.pause()
        return True

    return check


def event_poll(place: str, megabytes: int) -> Check:
    """An eventfd and a signalfd behind epoll."""
    event = os.eventfd(7)
    mask = struct.pack("Q", 1 << (signal.SIGUSR2 - 1)) + bytes(120)
    signals = libc.signalfd(-1, mask, 0)
    poll = select.epoll()
    poll.register(event, select.EPOLLIN)
    poll.register(signals, select.EPOLLIN)
    os.kill(os.getpid(), signal.SIGUSR2)

    def check() -> bool:
        ready = {fd for fd, _ in poll.poll(60)}
        found = os.eventfd_read(event) if event in ready else 0
        (number,) = struct.unpack_from("I", os.read(signals, 128)) if signals in ready else (0,)
        os.eventfd_write(event, 7)
        os.kill(os.getpid(), signal.SIGUSR2)
        return (found, number) == (7, signal.SIGUSR2)

    return check


def memory_file(place: str, megabytes: int) -> Check:
    fd = os.memfd_create("zoo", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 4096)
    os.write(fd, b"in memory")
    memory = mmap.mmap(fd, 4096)
    fcntl.fcntl(fd, 1033, 0x4)  # F_ADD_SEALS, F_SEAL_GROW

    def check() -> bool:
        found = os.pread(fd, 9, 0), memory[:9], fcntl.fcntl(fd, 1034)
        return found == (b"in memory", b"in memory", 0x4)

    return check


def posix_shared_memory(place: str, megabytes: int) -> Check:
    name = f"/dev/shm/zoo-{os.getpid()}"
    with open(name, "w+b") as f:
        f.truncate(8192)
        memory = mmap.mmap(f.fileno(), 8192)
    memory[5000:5006] = b"shared"

    def check() -> bool:
        with open(name, "rb") as f:
            seen = f.read()[5000:5006]
        return memory[5000:5006] == seen == b"shared"

    return check


def shared_map(place: str, megabytes: int) -> Check:
    """Anonymous memory that a child process shares; it counts there."""
    memory = mmap.mmap(-1, 4096)
    parent = os.getpid()
    if os.fork() == 0:
        number = 0
        while os.getppid() == parent:
            number += 1
            memory[:8] = struct.pack("Q", number)
            time.sleep(0.005)  # a pause between beats
        os._exit(0)

    def check() -> bool:
        before = memory[:8]
        while memory[:8] == before:
            time.sleep(0.01)  # poll the other process
        return True

    return check


def watched(place: str, megabytes: int) -> Check:
    os.mkdir(f"{place}/watched")
    fd = libc.inotify_init1(0)
    assert libc.inotify_add_watch(fd, f"{place}/watched".encode(), 0x100) > 0

    def check() -> bool:
        name = f"made-{time.monotonic_ns()}"
        with open(f"{place}/watched/{name}", "w"):
            return name.encode() in os.read(fd, 4096)

    return check


def inner_terminal(place: str, megabytes: int) -> Check:
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    termios.tcsetwinsize(slave, (13, 77))

    def check() -> bool:
        os.write(master, b"typed")
        same = termios.tcgetattr(slave)[3] == modes[3] and termios.tcgetwinsize(slave) == (13, 77)
        return os.read(slave, 100) == b"typed" and same

    return check


def fifo(place: str, megabytes: int) -> Check:
    os.mkfifo(f"{place}/fifo")
    fd = os.open(f"{place}/fifo", os.O_RDWR)
    os.write(fd, b"in the fifo")

    def check() -> bool:
        found = os.read(fd, 100)
        os.write(fd, b"in the fifo")
        return found == b"in the fifo"

    return check


KINDS: dict[str, Kind] = {
    one.__name__: one
    for one in (
        *(heap, pipe, socket_pair, deleted_file, flock, fcntl_lock, tcp_listening, udp),
        *(unix_named, thread, timer_fd, interval_timer, event_poll, memory_file),
        *(posix_shared_memory, shared_map, watched, inner_terminal, fifo, tcp_established),
    )
}

# ---------------------------------------------------------------- kinds that cannot be saved


def system_v(place: str, megabytes: int) -> Check:
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(0, 4096, 0o1600)
    address = libc.shmat(number, None, 0)
    ctypes.memmove(address, b"system v", 8)
    return lambda: ctypes.string_at(address, 8) == b"system v"


def own_filter(place: str, megabytes: int) -> Check:
    """A seccomp filter that refuses uname(2) with EDOM."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 63), (6, 0, 0, 0x50000 | errno.EDOM)]
    code.append((6, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
    libc.prctl(38, 1, 0, 0, 0)
    assert not libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0)

    def check() -> bool:
        try:
            os.uname()
        except OSError as e:
            return e.errno == errno.EDOM
        return False

    return check


def mapped_deleted_file(place: str, megabytes: int) -> Check:
    with open("/dev/shm/unlinked", "w+b") as f:
        f.write(b"mapped".ljust(4096))
        f.flush()
        memory = mmap.mmap(f.fileno(), 4096)
    os.unlink("/dev/shm/unlinked")
    return lambda: memory[:6] == b"mapped"


def large_deleted_file(place: str, megabytes: int) -> Check:
    file = open(f"{place}/large", "w")  # noqa: SIM115
    os.unlink(f"{place}/large")
    os.posix_fallocate(file.fileno(), 0, 300 << 20)
    return lambda: not file.closed


def nested(place: str, megabytes: int) -> Check:
    assert not libc.unshare(0x1000_0000 | 0x2000_0000), ctypes.get_errno()
    if os.fork() == 0:
        signal.pause()
    return lambda: True


ODD: dict[str, Kind] = {
    one.__name__: one
    for one in (system_v, own_filter, nested, mapped_deleted_file, large_deleted_file)
}


def main() -> None:
    place, megabytes, *names = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    known = {**KINDS, **ODD}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # for signalfd, in all threads
    checks = {name: known[name](place, megabytes) for name in names or KINDS}
    poll = selectors.DefaultSelector()
    poll.register(sys.stdin, selectors.EVENT_READ)
    print("ZOO " + "READY", flush=True)
    for _ in iter(poll.select, None):
        if not sys.stdin.readline():
            return
        wrong = [name for name, check in checks.items() if not _right(check)]
        print("ZOO", "WRONG " + " ".join(wrong) if wrong else "RIGHT", flush=True)


def _right(check: Check) -> bool:
    try:
        return check()
    except Exception as e:
        print(f"{type(e).__name__}: {e}", flush=True)
        return False


if __name__ == "__main__":
    main()
