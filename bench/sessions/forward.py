"""The speed of forwarded ports on loopback, beside `ssh -L`.

    python -m bench.sessions.forward [--mb 100] [--rounds 3]

A server in a session sends, takes or echoes bytes. `holdfast forward` brings its port here on this
machine and through a relay; `ssh -L` does the same through a private sshd. The figures are the
megabytes per second of one connection, and the median milliseconds of an exchange of one byte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.peers import Holdfast, Relayed, SshTmux

SESSION = "served"
WAIT_S = 60.0
EXCHANGES = 200
PIECE = bytes(1 << 18)
ACTS = ("down", "up", "exchange")
# Started by path in the session: the first byte of a connection selects the act.
SERVER = """
import os, socket, sys
made = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(made.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    sock, _ = made.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        act = sock.recv(1)
        if act == b"d":
            for _ in range(int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "big")):
                sock.sendall(bytes(1 << 18))
        elif act == b"u":
            while sock.recv(1 << 18):
                pass
            sock.sendall(b".")
        else:
            while data := sock.recv(1):
                sock.sendall(data)
"""
Figures = dict[str, dict[str, list[float]]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sessions.forward")
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    peers: list[Holdfast | Relayed | SshTmux] = [SshTmux(), Holdfast(), Relayed()]
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            addresses = dict(stack.enter_context(forwarded(peer, folder)) for peer in peers)
            for line in table(measured(addresses, args.mb, args.rounds)):
                print(line)
    finally:
        for peer in peers:
            if isinstance(peer, Holdfast):
                peer.end(SESSION)
            peer.shut_down()
    return 0


@contextlib.contextmanager
def forwarded(
    peer: Holdfast | Relayed | SshTmux, folder: str
) -> Iterator[tuple[str, tuple[str, int]]]:
    """The name of a tool, and the address to which it brings the port of a server."""
    script, told = Path(folder, "server.py"), Path(folder, f"port-{peer.name}")
    script.write_text(SERVER)
    serve = [sys.executable, str(script), str(told)]
    with contextlib.ExitStack() as stack:
        if isinstance(peer, SshTmux):
            stack.enter_context(running(serve, peer.environ))
            with socket.create_server(("127.0.0.1", 0)) as free:
                here = int(free.getsockname()[1])
            stack.enter_context(running(peer.tunnel_argv(here, port_in(told)), peer.environ))
            await_listener(("127.0.0.1", here))
            yield "ssh -L", ("127.0.0.1", here)
            return
        peer.start(SESSION, serve)
        argv = peer.forward_argv(SESSION, port_in(told))
        process = stack.enter_context(running(argv, peer.environ))
        assert process.stdout is not None
        host, _, port = str(json.loads(process.stdout.readline())["address"]).rpartition(":")
        yield peer.name, (host, int(port))


@contextlib.contextmanager
def running(argv: list[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)


def port_in(told: Path) -> int:
    end = time.monotonic() + WAIT_S
    while not told.exists():
        assert time.monotonic() < end, "the server does not listen"
        time.sleep(0.01)
    return int(told.read_text())


def await_listener(address: tuple[str, int]) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address, WAIT_S).close()
        assert time.monotonic() < end, "ssh does not listen"
        time.sleep(0.01)


def measured(addresses: dict[str, tuple[str, int]], mb: int, rounds: int) -> Figures:
    """By tool and act: the figure of each round."""
    found: Figures = {name: {act: [] for act in ACTS} for name in addresses}
    pieces = max(mb * 1_000_000 // len(PIECE), 1)
    size = pieces * len(PIECE) / 1e6
    for _ in range(rounds):
        for name, address in addresses.items():
            found[name]["down"].append(size / _down(address, pieces))
            found[name]["up"].append(size / _up(address, pieces))
            found[name]["exchange"].append(_exchange(address) * 1000)
    return found


def _connected(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, WAIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _down(address: tuple[str, int], pieces: int) -> float:
    with _connected(address) as sock:
        begin, got = time.monotonic(), 0
        sock.sendall(b"d" + pieces.to_bytes(8, "big"))
        while data := sock.recv(len(PIECE)):
            got += len(data)
        took = time.monotonic() - begin
    assert got == pieces * len(PIECE), f"{got} bytes came"
    return took


def _up(address: tuple[str, int], pieces: int) -> float:
    with _connected(address) as sock:
        begin = time.monotonic()
        sock.sendall(b"u")
        for _ in range(pieces):
            sock.sendall(PIECE)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b"."
        return time.monotonic() - begin


def _exchange(address: tuple[str, int]) -> float:
    """The median time until one byte has come back."""
    times = []
    with _connected(address) as sock:
        sock.sendall(b"e")
        for _ in range(EXCHANGES):
            begin = time.monotonic()
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"
            times.append(time.monotonic() - begin)
    return statistics.median(times)


def table(found: Figures) -> list[str]:
    lines = [
        "| tool | down, MB/s | up, MB/s | one byte, ms | down x ssh | up x ssh |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    base = {act: statistics.median(found["ssh -L"][act]) for act in ACTS}
    for name, acts in found.items():
        down, up, exchange = (statistics.median(acts[act]) for act in ACTS)
        ratios = f"{down / base['down']:.2f} | {up / base['up']:.2f}"
        lines.append(f"| {name} | {down:.0f} | {up:.0f} | {exchange:.2f} | {ratios} |")
    return [*lines, f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors"]


if __name__ == "__main__":
    sys.exit(main())
