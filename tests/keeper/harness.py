"""A nursery with keepers for tests, driven over the wire as a host drives it. Nothing of the host's code is used."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.wire import keeper as wire
from holdfast.wire.ring import RingReader

WAIT_S = 20.0


def until(condition: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    """Polls a condition of the outside world with a deadline."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {wait_s} s: {what}")
        select.select([], [], [], 0.005)


class Link:
    """One host's connection to a keeper."""

    def __init__(self, path: Path, term: int) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(str(path))
        self.sock.send(wire.hello(term))
        packet, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, 3)
        self.first = packet
        if packet[0] != wire.WELCOME:
            return
        self.welcome = wire.read_welcome(packet)
        self.ring = RingReader(fds[0])
        os.close(fds[0])
        self.snapshot, self.bell = fds[1], fds[2]
        self.sequence = self.ring.accepted

    def act(self, kind: int, body: bytes = b"", origin: int = 0, number: int = 0, epoch: int | None = None,
            sequence: int | None = None) -> int:
        self.sequence = self.sequence + 1 if sequence is None else sequence
        epoch = self.welcome.epoch if epoch is None else epoch
        self.sock.send(wire.act(kind, wire.Act(epoch, self.sequence, origin, number, wire.ACT_ACK), body))
        return self.sequence

    def type(self, data: bytes, origin: int = 0, number: int = 0) -> int:
        return self.act(wire.INPUT, data, origin, number)

    def all(self) -> bytes:
        return self.ring.copy(self.ring.start, self.ring.head) or b""

    def wait_for(self, text: bytes) -> bytes:
        until(lambda: text in self.all(), f"{text!r} in the output, which is {self.all()[-300:]!r}")
        return self.all()

    def packet(self, kind: int) -> bytes:
        """The next packet of this kind."""
        while True:
            packet = self.sock.recv(1 << 17)
            assert packet, "the keeper closed the connection"
            if packet[0] == kind:
                return packet

    def closed(self) -> bool:
        self.sock.setblocking(False)
        try:
            return self.sock.recv(1 << 17) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.sock.settimeout(WAIT_S)

    def close(self) -> None:
        self.sock.close()


class Nursery:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        command = getattr(wire, "nursery_command", lambda run: [sys.executable, "-m", "holdfast.keeper.nursery", run])
        self.process = subprocess.Popen(command(str(directory)), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.keepers: dict[str, int] = {}
        self.term = 0

    def spawn(self, name: str, argv: list[str], ring: int = 1 << 20, away_ms: int = 10_000, cwd: str = "/", epoch: int = 1,
              cols: int = 80, rows: int = 24) -> tuple[int, int, int, str]:
        request = wire.Spawn(name, epoch, f"{name}.keeper", cols, rows, ring, away_ms, b"label", tuple(map(os.fsencode, argv)),
                             (b"PATH=/usr/bin:/bin", b"TERM=xterm"), os.fsencode(cwd), 0o022)
        return self.ask(wire.spawn(request), name)

    def ask(self, request: bytes, name: str, fds: list[int] | None = None) -> tuple[int, int, int, str]:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_S)
        sock.connect(str(self.directory / "nursery.sock"))
        if fds:
            socket.send_fds(sock, [request], fds)
        else:
            sock.sendall(request)
        data = b""
        while len(data) < wire.SPAWN_REPLY.size and (piece := sock.recv(4096)):
            data += piece
        sock.close()
        result, number, pid, length = wire.SPAWN_REPLY.unpack_from(data)
        if result == wire.SPAWN_OK:
            self.keepers[name] = pid
        return result, number, pid, data[wire.SPAWN_REPLY.size:][:length].decode()

    def link(self, name: str) -> Link:
        self.term += 1
        return Link(self.directory / f"{name}.keeper", self.term)

    def close(self) -> None:
        for name, pid in self.keepers.items():
            if (self.directory / f"{name}.keeper").exists():
                try:
                    link = self.link(name)
                    if link.welcome.status < 0:
                        link.act(wire.SIGNAL, wire.signal_body(9, wire.SCOPE_ALL))
                        link.packet(wire.EXITED)
                    link.sock.send(wire.release())
                except OSError:
                    pass
            until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"end of keeper {pid}")  # type: ignore[misc]
        self.process.kill()
        self.process.wait()
