"""A nursery with keepers for tests, driven over the wire as a host drives it.

No code of the host is used.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.wire import keeper as wire
from holdfast.wire.ring import RingReader

WAIT_S = 120.0  # on the slowest and busiest machine: only a hanging process needs this long
RAW = "stty raw -echo; echo READY; "  # the terminal neither echoes nor edits from here on


def until(condition: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    """Polls a condition of the outside world with a deadline."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {wait_s} s: {what}")
        select.select([], [], [], 0.005)


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return state_of(pid) in "ZX"
    except OSError:
        return True


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


def cpu_ns(pid: int) -> int:
    """Time on a processor so far, from the scheduler."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T", f"{pid} to stop")


def boottime_ns(plus_s: float = 0.0) -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(plus_s * 1e9)


class Link:
    """A host's connection to a keeper."""

    def __init__(self, path: Path, term: int) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(str(path))
        self.sock.send(wire.hello(term))
        packet, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, 3)
        self.first = packet
        self._fds = fds
        if packet[:1] != bytes([wire.WELCOME]):
            return
        self.welcome = wire.read_welcome(packet)
        self.ring = RingReader(fds[0])
        self.ring_fd, self.snapshot, self.bell = fds
        self.sequence = self.ring.accepted
        self._tag = 0

    def act(
        self,
        kind: int,
        body: bytes = b"",
        origin: int = 0,
        number: int = 0,
        epoch: int | None = None,
        sequence: int | None = None,
        flags: int = wire.ACT_ACK,
    ) -> int:
        self.sequence = self.sequence + 1 if sequence is None else sequence
        epoch = self.welcome.epoch if epoch is None else epoch
        self.sock.send(wire.act(kind, wire.Act(epoch, self.sequence, origin, number, flags), body))
        return self.sequence

    def type(self, data: bytes, origin: int = 0, number: int = 0, flags: int = wire.ACT_ACK) -> int:
        return self.act(wire.INPUT, data, origin, number, flags=flags)

    def signal(self, number: int, scope: int, pid: int = 0, start: int = 0) -> int:
        return self.act(wire.SIGNAL, wire.signal_body(number, scope, pid, start))

    def taken(self) -> None:
        """Waits until the keeper has taken all acts."""
        until(lambda: self.ring.accepted >= self.sequence, f"act {self.sequence} to be taken")

    def written(self) -> None:
        """Waits until all acts have taken effect."""
        until(lambda: self.ring.written >= self.sequence, f"act {self.sequence} to take effect")

    def state(self) -> wire.State:
        """The state that the keeper reports; also a barrier for all earlier packets."""
        self._tag += 1
        self.sock.send(wire.query(self._tag))
        while (state := wire.read_state(self.packet(wire.STATE))).tag != self._tag:
            pass
        return state

    def fill(self, flags: int = 0) -> list[int]:
        """Type until a piece is half written; return the sequence numbers that wait."""
        while not self.state().queued_input:
            self.type(bytes(range(32, 96)) * 512, flags=flags)  # 32 KiB each
        until(lambda: self.ring.accepted == self.sequence, "all to be taken")
        return list(range(self.ring.written + 1, self.sequence + 1))

    def rung(self) -> bool:
        """Whether the bell rang since the last call."""
        try:
            os.read(self.bell, 8)
            return True
        except BlockingIOError:
            return False

    def all(self) -> bytes:
        return self.ring.copy(self.ring.start, self.ring.head) or b""

    def wait_for(self, text: bytes) -> bytes:
        until(lambda: text in self.all(), f"{text!r} in the output, which is {self.all()[-300:]!r}")
        return self.all()

    def flag(self, flag: int) -> None:
        until(lambda: self.ring.flags & flag, f"flag {flag}")

    def packet(self, kind: int) -> bytes:
        """The next packet of this kind."""
        while True:
            packet = self.sock.recv(1 << 17)
            assert packet, "the keeper closed the connection"
            if packet[0] == kind:
                return packet

    def rejected(self) -> tuple[int, int, int]:
        return wire.read_rejected(self.packet(wire.REJECTED))

    def exit_status(self) -> int:
        return (
            self.welcome.status
            if self.welcome.status >= 0
            else wire.read_exited(self.packet(wire.EXITED))[0]
        )

    def closed(self) -> bool:
        self.sock.setblocking(False)
        try:
            while self.sock.recv(1 << 17):
                pass
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.sock.settimeout(WAIT_S)

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        for fd in getattr(self, "_fds", ()):
            os.close(fd)


class Nursery:
    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.command = wire.nursery_command(str(directory))
        self.process = self.start(**options)
        self.keepers: dict[str, int] = {}
        self.term = 0

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, **options
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def spawn(
        self,
        name: str,
        argv: list[str],
        ring: int = 1 << 20,
        away_ms: int = 10_000,
        cwd: str = "/",
        epoch: int = 1,
        cols: int = 80,
        rows: int = 24,
        **more: Any,
    ) -> tuple[int, int, int, str]:
        fields = {"env": (b"PATH=/usr/bin:/bin", b"TERM=xterm"), "umask": 0o022, **more}
        request = wire.Spawn(
            name,
            epoch,
            f"{name}.keeper",
            cols,
            rows,
            ring,
            away_ms,
            b"label",
            tuple(map(os.fsencode, argv)),
            cwd=os.fsencode(cwd),
            **fields,
        )
        return self.ask(wire.spawn(request), name)

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_S)
        sock.connect(str(self.directory / "nursery.sock"))
        return sock

    def ask(
        self, request: bytes, name: str, fds: list[int] | None = None
    ) -> tuple[int, int, int, str]:
        with self.connect() as sock:
            if fds:
                assert socket.send_fds(sock, [request], fds) == len(request)
            else:
                sock.sendall(request)
            return self.answer(sock, name)

    def answer(self, sock: socket.socket, name: str) -> tuple[int, int, int, str]:
        data = b""
        while piece := sock.recv(4096):
            data += piece
            if len(data) >= wire.SPAWN_REPLY.size:
                result, number, pid, length = wire.SPAWN_REPLY.unpack_from(data)
                if len(data) == wire.SPAWN_REPLY.size + length:
                    break
        else:
            raise AssertionError(f"no answer, but {data!r}")
        if result == wire.SPAWN_OK:
            self.keepers[name] = pid
        return result, number, pid, data[wire.SPAWN_REPLY.size :].decode()

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.keeper"

    def link(self, name: str) -> Link:
        self.term += 1
        return Link(self.path(name), self.term)

    def run(self, name: str, argv: list[str], **more: Any) -> Link:
        """A keeper that must come up, and its host."""
        result, _, _, text = self.spawn(name, argv, **more)
        assert result == wire.SPAWN_OK, text
        return self.link(name)

    def close(self) -> None:
        for name, pid in self.keepers.items():
            try:
                os.kill(pid, signal.SIGCONT)
                link = self.link(name)
                assert link.first[:1] == bytes([wire.WELCOME]), (
                    "a test has used higher terms, and does not say so"
                )
                if link.welcome.status < 0:
                    link.sock.send(wire.fence(link.welcome.epoch, 0))
                    link.signal(9, wire.SCOPE_ALL)
                    link.packet(wire.EXITED)
                link.sock.send(wire.release())
                until(lambda pid=pid: gone(pid), f"the end of keeper {pid}")  # type: ignore[misc]
            except (OSError, AssertionError):
                for process in (pid, *below(pid)):
                    end(process)
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def descriptors(pid: int) -> list[tuple[str, str]]:
    """The target and the kernel's notes of each open file, without those closed meanwhile."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            notes = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
            found.append((os.readlink(f"/proc/{pid}/fd/{fd}"), notes))
    return found


def below(pid: int) -> list[int]:
    """All processes below this process."""
    found: list[int] = []
    try:
        lists = [
            Path(f"/proc/{pid}/task/{thread}/children").read_text()
            for thread in os.listdir(f"/proc/{pid}/task")
        ]
    except OSError:
        return found  # the process has just ended
    for child in map(int, " ".join(lists).split()):
        found += [child, *below(child)]
    return found


def hf_root(keeper: int) -> int:
    """hf-root of a plain session of root; 0 if there is none."""
    for pid in map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "hf-root\n" and not gone(pid):
                return pid
    return 0


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
