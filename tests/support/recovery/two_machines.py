"""Two machines and a relay, each in namespaces of its own, joined by links that can be spoiled.

    with two_machines(tmp) as (here, there, net):
        there.power_off()       # every process of it dies at once, as without power
        here.cut(); here.join() # the link to the relay
        here.slow("8mbit"); here.lossy(5); here.clear()

A machine has its own pid, mount, network and host name; the account's home and the workspace are
at the same paths on both and have different contents. The relay is in a network of its own, with a
veth pair to each machine. All of it needs root, and ends with the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.installation import DEADLINE_S, Installation, Result
from tests.support.relays import RelayProcess

_INIT = """
import os, signal, socket, sys
socket.sethostname(sys.argv[1])
signal.signal(signal.SIGCHLD, lambda *_: None)
print("ready", flush=True)
while True:
    signal.sigtimedwait({signal.SIGUSR1}, 1)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
_libc = ctypes.CDLL(None, use_errno=True)
ADDRESS = "10.77.0.1"  # of the relay
CONFIG = '[contain]\nnet = "none"\n'


def _run(*argv: str | int) -> None:
    subprocess.run([str(one) for one in argv], check=True, capture_output=True, timeout=DEADLINE_S)


def _enter(network: int) -> None:
    if _libc.setns(network, 0):
        raise OSError(ctypes.get_errno(), "setns")


class Space:
    """Namespaces held by a process 1 that collects its orphans."""

    def __init__(self, name: str, *options: str) -> None:
        self.holder = subprocess.Popen(
            ["unshare", *options, "--fork", "--kill-child", sys.executable, "-c", _INIT, name],
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        self.pid = int(children.split()[0])

    def inside(self, *argv: str | bytes) -> list[str | bytes]:
        spaces = ["-m", "-u", "-n", "-p"]
        return ["nsenter", "-t", str(self.pid), *spaces, "--", *argv]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.holder.kill()
        self.holder.wait()
        assert self.holder.stdout is not None
        self.holder.stdout.close()


class Machine(Installation):
    """An installation on a machine of its own."""

    def __init__(
        self, base: Path, name: str, number: int, top: Path, net: Network, config: str = ""
    ) -> None:
        base.mkdir()
        super().__init__(base, CONFIG + config)
        self.name, self._number, self._net = name, number, net
        self._top = top
        self.python = str(sys.executable)
        self.env["HOME"] = str(top / "account")
        self.work = top / "work"
        (base / "work").mkdir()
        self.boot()

    # ------------------------------------------------------------ the machine

    def boot(self) -> None:
        options = ("--mount", "--uts", "--net", "--pid", "--mount-proc", "--propagation=private")
        self.space = Space(self.name, *options)
        for inside, own in (("account", "account"), ("work", "work")):
            _run(*self._in("mount", "--bind", self.base / own, self._top / inside))
        self._net.join(self.space, self._number)

    def power_off(self) -> None:
        """Every process of the machine ends at once, and its links."""
        self.space.end()
        for socket in (self.home / "run").glob("*.sock"):
            socket.unlink(missing_ok=True)

    def kill(self, pid: int) -> None:
        """`pid`: as the machine itself counts."""
        _run(*self._in("kill", "-KILL", pid))

    def mount(self, path: str, over: str) -> None:
        """Only this machine sees another file there."""
        _run(*self._in("mount", "--bind", path, over))

    def unmount(self, path: str) -> None:
        _run(*self._in("umount", path))

    def _in(self, *argv: Any) -> list[str]:
        return [str(one) for one in self.space.inside(*map(str, argv))]

    # ------------------------------------------------------------ the link

    def cut(self) -> None:
        _run(*self._in("ip", "link", "set", "up0", "down"))

    def join(self) -> None:
        _run(*self._in("ip", "link", "set", "up0", "up"))
        _run(*self._in("ip", "route", "replace", "default", "via", f"10.77.{self._number}.1"))

    def slow(self, rate: str) -> None:
        """What this machine sends; such as 8mbit."""
        tbf = ("tbf", "rate", rate, "burst", "32k", "latency", "400ms")
        _run(*self._in("tc", "qdisc", "replace", "dev", "up0", "root", *tbf))

    def lossy(self, percent: int) -> None:
        """Drop that share of the packets that arrive."""
        rules = (
            "add table ip loss; add chain ip loss in { type filter hook input priority 0 ; }; "
            f"add rule ip loss in iifname up0 numgen random mod 100 < {percent} drop"
        )
        _run(*self._in("nft", rules))

    def clear(self) -> None:
        """End `slow` and `lossy`."""
        for command in ("tc qdisc del dev up0 root", "nft delete table ip loss"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run(*self._in(*command.split()))

    # ------------------------------------------------------------ commands

    def argv(self, args: tuple[str | bytes, ...]) -> list[str | bytes]:
        self._no_relay(args)
        command = ("env", "-C", str(self.user), sys.executable, "-m", "holdfast", *args)
        return self.space.inside(*command)

    def cli(
        self,
        *args: str | bytes,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = DEADLINE_S,
    ) -> Result:
        done = subprocess.run(
            self.argv(args),
            input=stdin or None,
            stdin=None if stdin else subprocess.DEVNULL,
            capture_output=True,
            env={**self.env, **(env or {})},
            timeout=timeout,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))

    def attempt(self, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        return self.cli(*args, stdin=stdin, env=env)

    def says(self, session: str, command: str) -> str:
        return self.ok("run", session, "--", command).out

    def here(self, argv: str) -> list[int]:
        """Processes of this machine with that text in their arguments, by the test's numbers."""
        space, found = os.readlink(f"/proc/{self.space.pid}/ns/mnt"), []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if argv in words and os.readlink(f"/proc/{entry}/ns/mnt") == space:
                    found.append(int(entry))
        return found

    def close(self) -> None:
        for terminal in self.terminals:
            terminal.close()
        for process in self.background:
            process.kill()
            process.communicate()
        self.power_off()
        log = self.home / "host.log"
        said = log.read_text(errors="replace") if log.exists() else ""
        assert "Traceback" not in said, f"a host failed at something: {said[-6000:]}"
        assert not (odd := self.odd_events()), odd


class Network:
    """The relay's own network, and its links to the machines."""

    def __init__(self, directory: Path) -> None:
        self.space = Space("relay", "--net", "--uts", "--mount", "--propagation=private")
        inside = ("nsenter", "-t", self.space.pid, "-n", "ip")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        self._inside = os.open(f"/proc/{self.space.pid}/ns/net", os.O_RDONLY)
        ours = os.open("/proc/self/ns/net", os.O_RDONLY)
        _enter(self._inside)
        try:  # the process that the relay becomes inherits this thread's network
            self.relay = RelayProcess(
                str(directory / "relay"), "--name", ADDRESS, address="0.0.0.0"
            )
        finally:
            _enter(ours)
            os.close(ours)

    def join(self, space: Space, number: int) -> None:
        there = ("nsenter", "-t", self.space.pid, "-n", "ip")
        here = ("nsenter", "-t", space.pid, "-n", "ip")
        with contextlib.suppress(subprocess.CalledProcessError):
            _run(*there, "link", "del", f"m{number}")
        peer = ("peer", "name", "up0", "netns", space.pid)
        _run(*there, "link", "add", f"m{number}", "type", "veth", *peer)
        _run(*there, "addr", "add", f"10.77.{number}.1/24", "dev", f"m{number}")
        _run(*there, "link", "set", f"m{number}", "up")
        _run(*here, "link", "set", "lo", "up")
        _run(*here, "addr", "add", f"10.77.{number}.2/24", "dev", "up0")
        _run(*here, "link", "set", "up0", "up")
        _run(*here, "route", "add", "default", "via", f"10.77.{number}.1")

    @property
    def url(self) -> str:
        """One address for both machines, with the pin of the relay's certificate."""
        return self.relay.reached[0]

    def token(self) -> str:
        return self.relay.token()

    def close(self) -> None:
        self.relay.stop()
        self.space.end()
        os.close(self._inside)


class Two(NamedTuple):
    here: Machine
    there: Machine
    net: Network


@contextlib.contextmanager
def two_machines(directory: Path, trusting: bool = True, config: str = "") -> Iterator[Two]:
    """`trusting`: the machine `here` may send copies to `there`, which it knows as `vault`.

    `config`: more options of both machines.
    """
    if os.getuid():
        pytest.skip("machines of their own need root")
    top = directory / "top"
    for one in (top, top / "account", top / "work"):
        one.mkdir()
    net, made = Network(directory), list[Machine]()
    try:
        for number, name in enumerate(("desk", "vault"), 1):
            machine = Machine(directory / name, name, number, top, net, config)
            made.append(machine)
            (machine.base / "token").write_text(net.token())
            url = net.url
            machine.ok("host", "connect", url, "--token", f"@{machine.base / 'token'}")
        here, there = made
        if trusting:
            pair(there, here)
            here.ok("machines", "trust", "vault")
        yield Two(here, there, net)
    finally:
        for machine in made:
            machine.close()
        net.close()


def pair(there: Machine, here: Machine, operator: str = "ann") -> None:
    """Lets `ann` of `here` reach `there` with all rights, as `vault`."""
    url = there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]["url"]
    joined = here.ok("join", url, "--as", operator, "--json").json
    here.ok("machines", "rename", joined["as"], there.name)
