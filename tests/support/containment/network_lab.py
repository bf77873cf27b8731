"""A machine on a network of the test: namespaces, addresses, servers; no traffic leaves them.

    session (own network) ─ connector ─ "machine": 203.0.113.1 ─ veth ─ "world": 203.0.113.10

The tests of a file run inside of "machine", as root and as an ordinary user: `run_inside` runs the
file again there. `INSIDE` says which of the two runs it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.containment import network
from tests.support.ordinary_user import needs, ordinary_user

MACHINE, WORLD, NAME = "203.0.113.1", "203.0.113.10", "server.test"
TCP_PORT, LOOPBACK_PORT, OPEN_PORT = 8000, 8001, 8002
GREETING = "hello from"
LOOPBACK_RESOLVER, WORLD_RESOLVER = "127.0.0.53", WORLD
INSIDE = os.environ.get("HOLDFAST_TEST_LAB") == "1"

# Answers every question for an address with that of the server in "world".
_DNS = """
import socket, sys
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind((sys.argv[1], 53))
print("ready", flush=True)
while True:
    asked, peer = line.recvfrom(2000)
    question = asked[12 : asked.index(0, 12) + 5]
    a_record = question[-4:-2] == b"\\0\\1"
    head = asked[:2] + b"\\x81\\x80\\0\\1\\0" + bytes([a_record]) + bytes(4)
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + socket.inet_aton(sys.argv[2])
    line.sendto(head + question + (answer if a_record else b""), peer)
"""
_TCP = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    one, peer = server.accept()
    one.sendall(b"hello from %s\\n" % sys.argv[1].encode())
    one.close()
"""
_HOLD = """
mount --make-rprivate / && mount -t tmpfs -o mode=0755 none {place}/dev &&
mknod -m 0666 {place}/dev/tun c 10 200 && mount --bind {place}/dev/tun /dev/net/tun &&
mount --bind {place}/resolv.conf "$(readlink -f /etc/resolv.conf)" && {hide} echo ready &&
exec sleep 86400
"""


def installed() -> list[network.Program]:
    """The connectors that are not hidden."""
    found = (network.Program(n, shutil.which(n) or "") for n in network.PROGRAMS)
    return [program for program in found if program.path]


def connect(publish: tuple[int, ...] = ()) -> tuple[bytes, ...]:
    """The commands of the connectors, for a request to the nursery."""
    made = network.commands(installed(), os.getuid() == 0, publish)
    return tuple("\0".join(command).encode() for command in made)


class Lab:
    """The two namespaces and what runs in them."""

    def __init__(self, place: Path, resolver: str, hidden: list[str]) -> None:
        self._programs: list[subprocess.Popen[str]] = []
        (place / "dev").mkdir()
        place.chmod(0o755)
        (place / "resolv.conf").write_text(f"nameserver {resolver}\n")
        hide = "".join(f"mount --bind /dev/null {path} && " for path in hidden)
        hold = _HOLD.format(place=place, hide=hide)
        self.machine = self._start(["unshare", "--mount", "--net", "sh", "-ec", hold]).pid
        world = self._start(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 86400"]).pid
        self._ip(self.machine, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        self._ip(self.machine, "link", "set", "v1", "netns", str(world))
        for pid, device, address in ((self.machine, "v0", MACHINE), (world, "v1", WORLD)):
            self._ip(pid, "addr", "add", f"{address}/24", "dev", device)
            self._ip(pid, "link", "set", device, "up")
            self._ip(pid, "link", "set", "lo", "up")
        self._ip(self.machine, "route", "add", "default", "via", WORLD)
        self._start(_in(world, sys.executable, "-c", _TCP, WORLD, str(TCP_PORT)))
        self._start(_in(self.machine, sys.executable, "-c", _TCP, "127.0.0.1", str(LOOPBACK_PORT)))
        self._start(_in(self.machine, sys.executable, "-c", _TCP, "0.0.0.0", str(OPEN_PORT)))
        where = self.machine if resolver == LOOPBACK_RESOLVER else world
        self._start(_in(where, sys.executable, "-c", _DNS, resolver, WORLD))

    def _start(self, argv: list[str]) -> subprocess.Popen[str]:
        program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self._programs.append(program)
        assert program.stdout is not None and program.stdout.readline() == "ready\n", argv
        return program

    def _ip(self, pid: int, *words: str) -> None:
        subprocess.run(_in(pid, "ip", *words), check=True)

    def inside(self, *argv: str) -> list[str]:
        """A command that runs on the machine of the test."""
        return ["nsenter", f"--mount=/proc/{self.machine}/ns/mnt", *_in(self.machine, *argv)[1:]]

    def close(self) -> None:
        for program in reversed(self._programs):
            program.kill()
            program.wait()


def _in(pid: int, *argv: str) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *argv]


@contextlib.contextmanager
def lab(resolver: str, connector: str) -> Iterator[Lab]:
    """A machine with one connector. Skips, with the reason, where none can be made."""
    if os.getuid() != 0:
        pytest.skip("needs root to make a network")
    needs("ip", "nsenter", "unshare", "setpriv")
    if not os.path.exists(network.TUN):
        pytest.skip(f"this machine has no {network.TUN}")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        made = None
        try:
            hidden = [os.path.realpath(p.path) for p in installed() if p.name != connector]
            made = Lab(Path(place), resolver, hidden)
            yield made
        finally:
            if made is not None:
                made.close()


def run_inside(file: str, resolver: str, connector: str, as_user: bool) -> None:
    """Run the tests of a file on the machine of the test, which has only this connector."""
    if shutil.which(connector) is None:
        pytest.skip(f"{connector} is not installed")
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(lab(resolver, connector))
        user = stack.enter_context(ordinary_user()) if as_user else None
        home = str(user.home) if user else stack.enter_context(tempfile.TemporaryDirectory())
        python = user.python("pytest", "hypothesis") if user else sys.executable
        source = Path(__file__).parents[3]
        paths = (source / "src", source, Path(pytest.__file__).resolve().parent.parent)
        become = (
            ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
            if user
            else []
        )
        done = subprocess.run(
            made.inside(
                *become,
                *(python, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"),
                *("--import-mode=importlib", "--rootdir", str(source), file),
            ),
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "LANG": "C.UTF-8",
                "HOME": home,
                "TMPDIR": home,
                "USER": user.name if user else "root",
                "PYTHONPATH": ":".join(map(str, paths)),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOLDFAST_TEST_LAB": "1",
            },
            cwd=home,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
