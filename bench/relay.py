"""The cost and speed of a relay alone: scripted ends on loopback that seal nothing.

    python -m bench.relay [--connections 100,500,1000,2000] [--seconds 5] [--out FILE]

    connections   half hosts, half clients with a stream each. Per connection: memory of the relay,
                  processor time to admit it, to keep it, and for a message when each stream in
                  turn sends one; and how these grow with the number of connections
    forward       one host sends to one client, with credit: megabytes and messages per second,
                  processor time of the relay per message
    echo          a message of 64 bytes to the host and back, one at a time; beside it the echo of
                  a bare socket: what this machine takes for two of the four hops

The ends are plain sockets with hand-made frames in their own processes, so that the figures are
those of the relay.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import cpu_ns, pss_kb
from holdfast.core.sealed import route as routes
from holdfast.model import limits, signing
from holdfast.wire import outer
from tests.support.relays import RelayProcess

WINDOW = limits.STREAM_WINDOW_BYTES
SIZES = (65_519, 16_384, 1_024, 100)
ECHOES = 3_000
SAID = 4  # messages each way on each of many streams
PASS = b"p" * 32
Figures = dict[str, float]


class Wire:
    """A minimal WebSocket client: no masking worth the name, no checks."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = f"127.0.0.1:{port}"
        lines = [
            "GET / HTTP/1.1",
            f"Host: {self.name}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol: holdfast.1",
            *([f"Authorization: Bearer {token}"] if token else []),
        ]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
        self._buffer = bytearray()
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise OSError(head[:100])
        self._buffer = bytearray(rest)

    def _more(self) -> None:
        data = self.sock.recv(1 << 18)
        if not data:
            raise EOFError("the relay closed the connection")
        self._buffer += data

    @staticmethod
    def packed(message: bytes) -> bytes:
        size = len(message)
        head = (
            bytes((0x82, 0x80 | size))
            if size < 126
            else struct.pack("!BBH", 0x82, 0xFE, size)
            if size < 65536
            else struct.pack("!BBQ", 0x82, 0xFF, size)
        )
        return head + b"\0\0\0\0" + message

    def send(self, frame: outer.Frame) -> None:
        self.sock.sendall(self.packed(outer.encode(frame)))

    def message(self) -> bytes:
        while True:
            buffer = self._buffer
            if len(buffer) >= 2:
                size, at = buffer[1], 2
                if size == 126:
                    size, at = (
                        int.from_bytes(buffer[2:4], "big") if len(buffer) >= 4 else 1 << 40,
                        4,
                    )
                elif size == 127:
                    size, at = (
                        int.from_bytes(buffer[2:10], "big") if len(buffer) >= 10 else 1 << 40,
                        10,
                    )
                if len(buffer) >= at + size:
                    found = bytes(buffer[at : at + size])
                    del buffer[: at + size]
                    return found
            self._more()

    def next(self) -> outer.Frame:
        while isinstance(frame := outer.decode(self.message()), outer.Ping):
            self.send(outer.Pong(frame.mark))
        return frame

    def hello(self, role: int) -> outer.Welcome:
        self.send(outer.Hello(1, 1, role, "bench"))
        welcome = self.next()
        assert isinstance(welcome, outer.Welcome), welcome
        return welcome


def a_host(port: int, token: str) -> tuple[Wire, bytes]:
    wire, secret = Wire(port, token), signing.generate()
    welcome = wire.hello(outer.HOST)
    wire.send(
        outer.Register(
            signing.public(secret),
            1,
            routes.sign(secret, wire.name, welcome.nonce, 1),
            (routes.digest(PASS),),
        )
    )
    answer = wire.next()
    assert isinstance(answer, outer.Registered), answer
    return wire, answer.route


def a_stream(host: Wire, route: bytes, port: int) -> tuple[Wire, int]:
    """A client with one stream to that host; the number of the stream at the host."""
    wire = Wire(port)
    wire.hello(outer.CLIENT)
    wire.send(outer.Open(1, route, PASS))
    incoming = host.next()
    assert isinstance(incoming, outer.Incoming), incoming
    host.send(outer.Accept(incoming.stream))
    assert isinstance(wire.next(), outer.Accept)
    return wire, incoming.stream


# ---------------------------------------------------------------- connections


def connections(counts: list[int], seconds: float) -> dict[str, Figures]:
    found = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as place, RelayProcess(f"{place}/relay") as relay:
            pid, token = relay.process.pid, relay.token()
            a_host(relay.port, token)[
                0
            ].sock.close()  # modules that load at first use do not count for a connection
            before, cpu = pss_kb([pid]), cpu_ns([pid])
            streams, begin = [], time.perf_counter()
            for _ in range(count // 2):
                host, route = a_host(relay.port, token)
                client, stream = a_stream(host, route, relay.port)
                streams.append((host, stream, client))
            took, spent = time.perf_counter() - begin, cpu_ns([pid]) - cpu
            memory, cpu = pss_kb([pid]) - before, cpu_ns([pid])
            time.sleep(seconds)
            idle, cpu = cpu_ns([pid]) - cpu, cpu_ns([pid])
            for _ in range(SAID):
                for host, stream, client in streams:
                    client.send(outer.Data(1, b"x" * 64))
                    _until_data(host)
                    host.send(outer.Data(stream, b"x" * 64))
                    _until_data(client)
            busy = cpu_ns([pid]) - cpu
            found[str(count)] = {
                "kib_each": memory / count,
                "relay_mib": (memory + before) / 1024,
                "take_in_cpu_us": spent / count / 1e3,
                "per_s": count / took,
                "idle_cpu_percent": idle / seconds / 1e7,
                "idle_cpu_us_each_s": idle / seconds / count / 1e3,
                "message_cpu_us": busy / SAID / 2 / len(streams) / 1e3,
            }
            for host, _, client in streams:
                host.sock.close()
                client.sock.close()
    return found


def _until_data(wire: Wire) -> None:
    while not isinstance(wire.next(), outer.Data):
        pass


# ---------------------------------------------------------------- forward


def _source(port: int, token: str, size: int, seconds: float, pipe: Any) -> None:
    host, route = a_host(port, token)
    pipe.send(route)
    incoming = host.next()
    assert isinstance(incoming, outer.Incoming)
    host.send(outer.Accept(incoming.stream))
    packed = Wire.packed(outer.encode(outer.Data(incoming.stream, b"x" * size)))
    burst = max(1, min(WINDOW // 4 // size, 64))
    left, sent, end = WINDOW, 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        while left < burst * size:
            frame = host.next()
            assert isinstance(frame, outer.Credit), frame
            left += frame.amount
        host.sock.sendall(packed * burst)
        left, sent = left - burst * size, sent + burst
    pipe.send(sent)
    pipe.recv()


def forward(size: int, seconds: float) -> Figures:
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as place,
        RelayProcess(f"{place}/relay", "--rate", "100000") as relay,
    ):
        here, there = fork.Pipe()
        source = fork.Process(
            target=_source, args=(relay.port, relay.token(), size, seconds, there)
        )
        source.start()
        wire, route = Wire(relay.port), here.recv()
        wire.hello(outer.CLIENT)
        wire.send(outer.Open(1, route, PASS))
        assert isinstance(wire.next(), outer.Accept)
        cpu, begin, got, owed = cpu_ns([relay.process.pid]), time.perf_counter(), 0, 0
        total = None
        while total is None or got < total:
            wire.message()  # each is a DATA of this size
            got, owed = got + 1, owed + size
            if owed >= WINDOW // 4:
                wire.send(outer.Credit(1, owed))
                owed = 0
            if total is None and here.poll():
                total = here.recv()
        took, spent = time.perf_counter() - begin, cpu_ns([relay.process.pid]) - cpu
        here.send(None)
        source.join()
    return {
        "mb_per_s": got * size / took / 1e6,
        "messages_per_s": got / took,
        "relay_cpu_us_per_message": spent / got / 1e3,
        "relay_busy_percent": spent / took / 1e7,
    }


# ---------------------------------------------------------------- echo


def _echoing(port: int, token: str, pipe: Any) -> None:
    host, route = a_host(port, token)
    pipe.send(route)
    owed = 0
    while True:
        try:
            frame = host.next()
        except EOFError:
            return
        if isinstance(frame, outer.Incoming):
            host.send(outer.Accept(frame.stream))
        elif isinstance(frame, outer.Data):
            host.send(frame)
            owed += len(frame.payload)
            if owed >= WINDOW // 4:
                host.send(outer.Credit(frame.stream, owed))
                owed = 0


def _plain(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := sock.recv(4096):
        sock.sendall(data)


def _spread(times: list[float]) -> Figures:
    return {
        "p50_us": statistics.median(times) * 1e6,
        "p99_us": statistics.quantiles(times, n=100)[98] * 1e6,
    }


def echo(rounds: int) -> dict[str, Figures]:
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as place, RelayProcess(f"{place}/relay") as relay:
        here, there = fork.Pipe()
        far = fork.Process(target=_echoing, args=(relay.port, relay.token(), there))
        far.start()
        wire, route = Wire(relay.port), here.recv()
        wire.hello(outer.CLIENT)
        wire.send(outer.Open(1, route, PASS))
        assert isinstance(wire.next(), outer.Accept)
        times, cpu = [], cpu_ns([relay.process.pid])
        for number in range(1, rounds + 1):
            begin = time.perf_counter()
            wire.send(outer.Data(1, b"x" * 64))
            while not isinstance(wire.next(), outer.Data):
                pass
            times.append(time.perf_counter() - begin)
            if number % 1024 == 0:
                wire.send(outer.Credit(1, 64 * 1024))
        spent = (cpu_ns([relay.process.pid]) - cpu) / rounds / 1e3
        wire.sock.close()
        far.kill()
        far.join()
    listener = socket.create_server(("127.0.0.1", 0))
    near = fork.Process(target=_plain, args=(listener,))
    near.start()
    bare = []
    with socket.create_connection(listener.getsockname()) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            begin = time.perf_counter()
            sock.sendall(b"x" * 64)
            sock.recv(4096)
            bare.append(time.perf_counter() - begin)
    near.join()
    listener.close()
    return {
        "through the relay": {**_spread(times), "relay_cpu_us": spent},
        "bare socket, no relay": {**_spread(bare), "relay_cpu_us": 0.0},
    }


# ---------------------------------------------------------------- the whole run


def _table(title: str, rows: dict[str, Figures]) -> str:
    names = list(next(iter(rows.values())))
    lines = [f"### {title}", "", "| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    return (
        "\n".join(
            [
                *lines,
                *(
                    f"| {row} | " + " | ".join(report.number(figures[n]) for n in names) + " |"
                    for row, figures in rows.items()
                ),
            ]
        )
        + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.relay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--connections",
        default="100,500,1000,2000",
        help="how many, one after another (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="of each forwarding and of idleness (default: %(default)s)",
    )
    parser.add_argument("--echoes", type=int, default=ECHOES)
    parser.add_argument(
        "--out", type=Path, help="write the tables to FILE and the figures to FILE.json"
    )
    args = parser.parse_args()
    results = {
        "connections": connections([int(n) for n in args.connections.split(",")], args.seconds),
        "forward": {f"{size} bytes": forward(size, args.seconds) for size in SIZES},
        "echo": echo(args.echoes),
    }
    machine = (
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    page = f"## The relay ({machine})\n\n" + "\n".join(
        _table(title, rows) for title, rows in results.items()
    )
    print(page)
    if args.out:
        args.out.write_text(page)
        args.out.with_name(args.out.name + ".json").write_text(
            json.dumps({"machine": report.machine(), **results}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
