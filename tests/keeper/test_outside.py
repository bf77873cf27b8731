"""A restored session's own network: connections to peers outside are ended, others go on (R4)."""

from __future__ import annotations

import subprocess
import sys

from tests.support.ordinary_user import SOURCE
from tests.support.recovery.two_networks import PORT, THERE, two_networks

PROGRAM = """
import socket, sys
from holdfast.keeper import outside
def pair(family, address):
    server = socket.socket(family)
    server.bind((address, 0))
    server.listen()
    target = server.getsockname()[1]
    kind = socket.AF_INET if address == "::" else family
    one = socket.socket(kind)
    one.connect(("127.0.0.1" if kind == socket.AF_INET else "::1", target))
    return one, server.accept()[0], server
__import__("os").system("ip link set lo up")
out = socket.create_connection((sys.argv[1], int(sys.argv[2])))
v4, v6 = socket.AF_INET, socket.AF_INET6
inside = [pair(v4, "127.0.0.1"), pair(v6, "::1"), pair(v6, "::")]
print(outside.close_connections(), outside.close_connections())
try:
    out.recv(1)
except OSError as e:
    print(type(e).__name__)
for one, other, server in inside:
    one.sendall(b"x")
    print(other.recv(1).decode(), end="")
    other.sendall(b"y")
    print(one.recv(1).decode(), end="")
"""


def test_r4_only_connections_that_leave_the_network_are_ended() -> None:
    with two_networks() as networks:
        argv = networks.inside(sys.executable, "-c", PROGRAM, THERE, str(PORT))
        done = subprocess.run(
            argv, env={"PYTHONPATH": f"{SOURCE}/src", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True, text=True,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1 0\nConnectionAbortedError\nxyxyxy"), done.stderr
