"""A program with state of many kinds; each line of input starts a check of the whole state.

Standard library only: the program runs inside a session, with the system's interpreter.

    python3 zoo.py DIRECTORY MEGABYTES
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import selectors
import socket
import sys
import threading
import time


def main() -> None:
    place, megabytes = sys.argv[1], int(sys.argv[2])
    heap = [bytes([n % 251]) * (1 << 20) for n in range(megabytes)]
    digest = _digest(heap)
    reader, writer = os.pipe()
    os.write(writer, b"in the pipe")
    left, right = socket.socketpair()
    left.send(b"between sockets")
    with open(f"{place}/deleted", "w+") as deleted:
        deleted.write("deleted text")
        deleted.flush()
        os.unlink(f"{place}/deleted")
        flocked = open(f"{place}/flock", "w")  # noqa: SIM115
        fcntl.flock(flocked, fcntl.LOCK_EX)
        locked = open(f"{place}/lock", "w")  # noqa: SIM115
        fcntl.lockf(locked, fcntl.LOCK_EX)
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        beats = [0]
        threading.Thread(target=_beat, args=(beats,), daemon=True).start()
        poll = selectors.DefaultSelector()
        poll.register(sys.stdin, selectors.EVENT_READ)
        print("ZOO " + "READY", flush=True)
        for _ in iter(poll.select, None):
            if not sys.stdin.readline():
                return
            before = beats[0]
            while beats[0] == before:
                time.sleep(0.01)  # poll the other thread
            deleted.seek(0)
            found = {
                "heap": _digest(heap) == digest,
                "pipe": os.read(reader, 100) == b"in the pipe",
                "sockets": right.recv(100) == b"between sockets",
                "deleted": deleted.read() == "deleted text",
                "flock": _is_locked(f"{place}/flock", fcntl.flock),
                "lock": _is_locked(f"{place}/lock", fcntl.lockf),
                "listening": _answers(server.getsockname()[1]),
            }
            os.write(writer, b"in the pipe")
            left.send(b"between sockets")
            wrong = [name for name, good in found.items() if not good]
            print("ZOO", "WRONG " + " ".join(wrong) if wrong else "RIGHT", flush=True)


def _digest(heap: list[bytes]) -> str:
    digest = hashlib.sha256()
    for one in heap:
        digest.update(one)
    return digest.hexdigest()


def _is_locked(path: str, take: object) -> bool:
    """Whether another process cannot take the lock."""
    pid = os.fork()
    if pid == 0:
        try:
            with open(path, "r+") as f:
                take(f, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[operator]
        except OSError:
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _echo(server: socket.socket) -> None:
    while True:
        with server.accept()[0] as one:
            one.sendall(one.recv(100))


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(b"ask")
        return one.recv(100) == b"ask"


def _beat(beats: list[int]) -> None:
    while True:
        time.sleep(0.005)  # a pause between beats
        beats[0] += 1


if __name__ == "__main__":
    main()
