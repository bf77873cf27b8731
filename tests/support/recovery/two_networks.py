"""Two network namespaces with a link between them, and a TCP server in one. Root only.

    "here" 203.0.113.1 ─ veth ─ "there" 203.0.113.10, the server

No traffic leaves them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.ordinary_user import needs

HERE, THERE, PORT = "203.0.113.1", "203.0.113.10", 8000

# Accepts connections. A line "reset" or "close" ends the oldest one, in that way.
_SERVER = """
import socket, struct, sys, threading
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
def accept():
    while True:
        held.append(server.accept()[0])
        print("accepted", flush=True)
held = []
threading.Thread(target=accept, daemon=True).start()
for line in sys.stdin:
    one = held.pop(0)
    if line == "reset\\n":
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
    print("ended", flush=True)
"""


class TwoNetworks:
    def __init__(self, start: contextlib.ExitStack) -> None:
        self._start = start
        self.here, self.there = self._namespace(), self._namespace()
        self._ip(self.here, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        self._ip(self.here, "link", "set", "v1", "netns", str(self.there))
        for pid, device, address in ((self.here, "v0", HERE), (self.there, "v1", THERE)):
            self._ip(pid, "addr", "add", f"{address}/24", "dev", device)
            self._ip(pid, "link", "set", device, "up")
        argv = ["nsenter", f"--net=/proc/{self.there}/ns/net", sys.executable, "-c", _SERVER]
        self._server = self._run([*argv, THERE, str(PORT)])

    def _run(self, argv: list[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        made = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        self._start.callback(made.wait)
        self._start.callback(made.kill)
        assert made.stdout is not None and made.stdout.readline() == "ready\n", argv
        return made

    def _namespace(self) -> int:
        return self._run(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 86400"]).pid

    def _ip(self, pid: int, *words: str) -> None:
        subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words], check=True)

    def accepted(self) -> None:
        """Wait until the server has the next connection."""
        assert self._server.stdout is not None and self._server.stdout.readline() == "accepted\n"

    def end(self, how: str) -> None:
        """End the oldest connection: "reset" or "close"."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(f"{how}\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == "ended\n"

    def link(self, state: str) -> None:
        """Set the far end of the link "up" or "down": packets are lost without a sign here."""
        self._ip(self.there, "link", "set", "v1", state)

    def inside(self, *argv: str) -> list[str]:
        """A command that runs in "here"."""
        return ["nsenter", f"--net=/proc/{self.here}/ns/net", *argv]


@contextlib.contextmanager
def two_networks() -> Iterator[TwoNetworks]:
    if os.getuid() != 0:
        pytest.skip("needs root to make network namespaces")
    needs("unshare", "nsenter", "ip")
    with contextlib.ExitStack() as start:
        yield TwoNetworks(start)
