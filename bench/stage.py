"""An installation of its own with two operators that have all rights, for `bench.operators`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

from bench.peers import Holdfast
from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import TurnHeld
from holdfast.wire import frames

CONFIG = "[turn]\nidle_s = 600\n"  # no operator loses the turn by being slow
PIECE = b"x" * 4096  # of an input flood
WAIT_S = 60.0
OPERATORS = ("ann", "bob")
FLOODING = b"F"

# argv: processes, seconds, file. As tests/support/workload.py FORKING. Each process writes the time
# into its place of the file before every fork, so the file shows afterwards when the last process
# worked.
WITNESSES = """
import mmap, os, signal, struct, sys, time
breadth, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
with open(sys.argv[3], "r+b") as f:
    seen = mmap.mmap(f.fileno(), 8 * breadth)
wait, go = os.pipe()
def life(n):
    os.close(go)
    os.read(wait, 1)
    while time.monotonic() < end:
        struct.pack_into("=q", seen, 8 * n, time.monotonic_ns())
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
for n in range(breadth):
    if os.fork() == 0:
        if n % 3 == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
        try:
            life(n)
        finally:
            os._exit(0)
os.close(go)
print("FORKING", flush=True)
signal.pause()
"""


class Stage:
    def __init__(self) -> None:
        self.peer = Holdfast()
        os.makedirs(self.peer.path("home"), 0o700)
        with open(self.peer.path("home/config.toml"), "w") as f:
            f.write(CONFIG)
        self.home = homes.resolve(self.peer.environ)
        self.peer.warm_up()
        for name in OPERATORS:
            self.peer.ask("operator", "add", name, "--kind", "human")
            self.peer.ask("grant", name, "--rights", "admin")

    def start(self, name: str, argv: Sequence[str], *options: str) -> None:
        self.peer.start(name, argv, *options)

    def wait(self, name: str, what: str) -> None:
        self.peer.ask("wait", name, "--for", what, "--timeout", f"{WAIT_S:g}")

    def end(self, *names: str) -> None:
        for name in names:
            self.peer.end(name)

    def link(self, operator: str) -> Link:
        made = Link(self.home, operator, "bench", autostart=False)
        made.connect()
        return made

    def close(self) -> None:
        self.peer.close()

    @contextlib.contextmanager
    def flooding(self, operator: str, session: str) -> Iterator[None]:
        """Attach another process as this operator, which types at full speed even when refused."""
        ready, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._flood(operator, session, say)
            finally:
                os._exit(1)
        os.close(say)
        try:
            if os.read(ready, 1) != FLOODING:
                raise RuntimeError("the flooding client ended")
            yield
        finally:
            os.close(ready)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _flood(self, operator: str, session: str, say: int) -> None:
        link = self.link(operator)
        link.request("attach", session=session, cols=80, rows=24)
        link.take_ready()
        sock = link.sock
        assert sock is not None
        sock.setblocking(False)
        os.write(say, FLOODING)
        left = memoryview(b"")
        while True:
            readable, writable, _ = select.select([sock], [sock], [])
            if readable and not sock.recv(1 << 16):
                return
            if writable:
                left = left or memoryview(frames.input_(link.next_sequence(), PIECE, 0))
                left = left[sock.send(left) :]


class Relay:
    """The path of a seize without Holdfast: a byte to a second process, to a third, and back.

    Its time is the machine's part of a figure.
    """

    def __init__(self) -> None:
        self._sock, near = socket.socketpair()
        middle, far = socket.socketpair()
        self._pids = [self._hop(near, middle), self._hop(far, None)]
        for one in (near, middle, far):
            one.close()

    @staticmethod
    def _hop(before: socket.socket, after: socket.socket | None) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                while data := before.recv(1):
                    if after is not None:
                        after.sendall(data)
                        data = after.recv(1)
                    before.sendall(data)
            finally:
                os._exit(0)
        return pid

    def once(self) -> float:
        begin = time.perf_counter()
        self._sock.sendall(b"x")
        self._sock.recv(1)
        return time.perf_counter() - begin

    def close(self) -> None:
        self._sock.close()
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Witnesses:
    """Processes of a session that fork all the time, and the times that they report."""

    def __init__(self, path: str, count: int, seconds: float) -> None:
        self._path, self._count = path, count
        with open(path, "wb") as f:
            f.write(bytes(8 * count))
        interpreter = (
            "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
        )
        self.argv = (interpreter, "-c", WITNESSES, str(count), str(seconds), path)

    def seen(self) -> tuple[int, ...]:
        """When each process last did work, in ns of the monotonic clock."""
        with open(self._path, "rb") as f:
            return struct.unpack(f"={self._count}q", f.read())


def refused(link: Link, session: str) -> bool:
    """Whether this operator's input is refused now because another operator has the turn."""
    try:
        link.request("send", session=session, text="x", keys=[], seq=link.next_sequence())
    except TurnHeld:
        return True
    return False
