"""One adapter per tool: starts, creates, attaches, lists and ends sessions.

The measures know a tool only through its adapter. Each adapter has a directory of its own for
sockets, configuration and state, and an environment whose BENCH_TAG all its processes inherit. A
closed adapter leaves no process and no file behind.

Holdfast is a Python program, and installed ones have their bytecode compiled. Where this harness
runs, writing bytecode may be switched off, which would add 50 ms and more to every start that is
measured. So the adapter gives Holdfast its own bytecode cache, filled before the first timing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from bench import processes
from bench.terminal import COLS, ROWS, Terminal, read_until

COMMAND_S = 60.0
# Variables that would tell a tool that it runs inside itself
NESTED = (
    "TMUX",
    "STY",
    "DTACH",
    "ABDUCO_SESSION",
)


class Peer(ABC):
    name: ClassVar[str]
    program: ClassVar[str | None] = None  # the program that must be installed; None: no program
    keeps_sessions: ClassVar[bool] = True  # whether sessions outlive their client
    detach_keys: ClassVar[bytes] = b""  # the keys a user types to leave; empty: not measured

    def __init__(self, scrollback: int | None = None) -> None:
        self.scrollback = scrollback  # lines asked for; None: the tool's own default
        self.label = self.name
        self.tag = f"BENCH_TAG={uuid.uuid4().hex}"
        self.dir = tempfile.mkdtemp(prefix="hb")  # short: the paths of unix sockets are
        key, _, value = self.tag.partition("=")
        self.environ = {
            k: v for k, v in os.environ.items() if k not in NESTED and not k.startswith("HOLDFAST_")
        }
        self.environ |= {
            key: value,
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "SHELL": "/bin/sh",
        }
        self.configure()

    @classmethod
    def available(cls) -> bool:
        return cls.program is None or shutil.which(cls.program) is not None

    # ------------------------------------------------------------ provided by each tool

    def configure(self) -> None:  # noqa: B027 - most tools need less than all of these
        """Write files and set variables; starts no process."""

    @abstractmethod
    def start(self, name: str, argv: Sequence[str]) -> None:
        """A detached session."""

    @abstractmethod
    def attach_argv(self, name: str) -> list[str]: ...

    @abstractmethod
    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]: ...

    @abstractmethod
    def names(self) -> list[str]: ...

    def list_argv(self) -> list[str] | None:
        """The command that lists sessions for people."""
        return None

    def run_argv(self, name: str) -> list[str] | None:
        """The command that runs `true` through the tool and waits for the exit."""
        return None

    def end(self, name: str) -> None:
        processes.kill_all([self.tag, f"BENCH_SESSION={name}"])

    def shut_down(self) -> None:  # noqa: B027
        """Stop the server, if there is one."""

    # ------------------------------------------------------------ called by the measures

    def fresh(self) -> Peer:
        """The same tool with no process running."""
        return type(self)(self.scrollback)

    def warm_up(self) -> None:  # noqa: B027
        """The preparation that must happen once before the first timing."""

    def attach(self, name: str) -> Terminal:
        return Terminal(self.attach_argv(name), self.environ)

    def create(self, name: str, argv: Sequence[str]) -> Terminal:
        return Terminal(self.create_argv(name, argv), self._of_session(name))

    def close(self) -> None:
        try:
            self.shut_down()
        finally:
            processes.kill_all([self.tag])
            shutil.rmtree(self.dir, ignore_errors=True)

    def command(self, argv: Sequence[str], session: str | None = None, check: bool = True) -> str:
        environ = self._of_session(session) if session else self.environ
        done = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
            check=False,
        )
        text = done.stdout.decode("utf-8", "replace")
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)[:200]} failed ({done.returncode}): {text[-500:]}")
        return text

    def _of_session(self, name: str) -> Mapping[str, str]:
        return self.environ | {"BENCH_SESSION": name}

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)


class Raw(Peer):
    """No tool: the program on the harness's own terminal. The yardstick, not a strict limit."""

    name = "raw"
    keeps_sessions = False

    def start(self, name: str, argv: Sequence[str]) -> None:
        raise NotImplementedError("a bare terminal keeps no sessions")

    def attach_argv(self, name: str) -> list[str]:
        raise NotImplementedError("a bare terminal keeps no sessions")

    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def names(self) -> list[str]:
        return []


class Tmux(Peer):
    name = program = "tmux"
    detach_keys = b"\x02d"

    def configure(self) -> None:
        with open(self.path("conf"), "w") as f:
            f.write(f"set -g history-limit {self.scrollback}\n" if self.scrollback else "")
        self._tmux = ["tmux", "-S", self.path("s"), "-f", self.path("conf")]

    def start(self, name: str, argv: Sequence[str]) -> None:
        self.command(
            [*self._tmux, "new-session", "-d", "-s", name, "-x", str(COLS), "-y", str(ROWS), *argv],
            name,
        )

    def ask(self, *words: str) -> str:
        return self.command([*self._tmux, *words])

    def control_argv(self, name: str) -> list[str]:
        """A client for programs: commands on standard input."""
        return [*self._tmux[:3], "-C", "attach", "-t", name]

    def attach_argv(self, name: str) -> list[str]:
        return [*self._tmux, "attach", "-t", f"={name}"]

    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        return [*self._tmux, "new-session", "-s", name, *argv]

    def list_argv(self) -> list[str]:
        return [*self._tmux, "ls"]

    def run_argv(self, name: str) -> list[str]:
        return [*self._tmux, "run-shell", "true"]

    def names(self) -> list[str]:
        return self.command([*self._tmux, "ls", "-F", "#S"], check=False).split()

    def end(self, name: str) -> None:
        self.command([*self._tmux, "kill-session", "-t", f"={name}"], check=False)

    def shut_down(self) -> None:
        self.command([*self._tmux, "kill-server"], check=False)


class Screen(Peer):
    """GNU screen makes a client wait until one second after a killed one.

    Hence the `away` time before a reattach.
    """

    name = program = "screen"

    def configure(self) -> None:
        with open(self.path("rc"), "w") as f:
            f.write(
                "startup_message off\n"
                + (f"defscrollback {self.scrollback}\n" if self.scrollback else "")
            )
        os.mkdir(self.path("S"), 0o700)
        self.environ["SCREENDIR"] = self.path("S")
        self._screen = ["screen", "-c", self.path("rc")]

    def start(self, name: str, argv: Sequence[str]) -> None:
        self.command([*self._screen, "-dmS", name, *argv], name)

    def attach_argv(self, name: str) -> list[str]:
        return [*self._screen, "-x", name]

    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        return [*self._screen, "-S", name, *argv]

    def names(self) -> list[str]:
        return re.findall(
            r"^\t\d+\.(\S+)", self.command([*self._screen, "-ls"], check=False), re.MULTILINE
        )

    def end(self, name: str) -> None:
        self.command([*self._screen, "-S", name, "-X", "quit"], check=False)


class Dtach(Peer):
    name = program = "dtach"
    _options = ("-E", "-z", "-r", "winch")

    def start(self, name: str, argv: Sequence[str]) -> None:
        self.command(["dtach", "-n", self.path(name), *self._options, *argv], name)

    def attach_argv(self, name: str) -> list[str]:
        return ["dtach", "-a", self.path(name), *self._options]

    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        return ["dtach", "-c", self.path(name), *self._options, *argv]

    def names(self) -> list[str]:
        return os.listdir(self.dir)


class Abduco(Peer):
    name = program = "abduco"

    def configure(self) -> None:
        self.environ["ABDUCO_SOCKET_DIR"] = self.dir

    def start(self, name: str, argv: Sequence[str]) -> None:
        self.command(["abduco", "-n", name, *argv], name)

    def attach_argv(self, name: str) -> list[str]:
        return ["abduco", "-a", name]

    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        return ["abduco", "-c", name, *argv]

    def names(self) -> list[str]:
        return re.findall(r"\t(\S+)$", self.command(["abduco"], check=False), re.MULTILINE)


class Holdfast(Peer):
    name = "holdfast"
    detach_keys = b"\x1cd"
    _bytecode: ClassVar[
        dict[str, str]
    ] = {}  # source tree -> its compiled modules, for the whole run

    def __init__(
        self, scrollback: int | None = None, tree: str | None = None, label: str | None = None
    ) -> None:
        self.tree = tree  # another source tree to run; None: the installed tree
        super().__init__(scrollback)
        self.label = label or self.name

    def configure(self) -> None:
        self.environ["HOLDFAST_HOME"] = self.path("home")
        self.environ["PYTHONPYCACHEPREFIX"] = (
            self._bytecode.setdefault(self.tree or "", "") or self._new_cache()
        )
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if self.tree:
            self.environ["PYTHONPATH"] = self.tree
        script = os.path.join(os.path.dirname(sys.executable), "holdfast")
        self._holdfast = (
            [script] if os.access(script, os.X_OK) else [sys.executable, "-m", "holdfast"]
        )

    def _new_cache(self) -> str:
        self._bytecode[self.tree or ""] = made = tempfile.mkdtemp(prefix="hbpyc")
        return made

    @classmethod
    def forget_caches(cls) -> None:
        for path in cls._bytecode.values():
            shutil.rmtree(path, ignore_errors=True)
        cls._bytecode.clear()

    def fresh(self) -> Peer:
        return Holdfast(self.scrollback, self.tree, self.label)

    def warm_up(self) -> None:
        """Every module on the way to an attached session gets compiled."""
        terminal = self.create("warm", ["sh", "-c", "printf 'WA%s' RM; exec sleep 60"])
        try:
            read_until([terminal], [b"WARM"], COMMAND_S)
        finally:
            terminal.close()
        self.names()
        self.end("warm")

    def files_argv(self, act: str, name: str, *paths: str) -> list[str]:
        """A transfer on this machine."""
        return [*self._holdfast, "files", act, name, *paths]

    def forward_argv(self, name: str, port: int) -> list[str]:
        """A forward of a port of the session; prints its address."""
        return [*self._holdfast, "forward", name, str(port), "--json"]

    def follow_argv(self, name: str) -> list[str]:
        return [*self._holdfast, "read", name, "--follow"]

    def host_pid(self) -> int:
        with open(self.path("home/run/host.lock")) as f:
            return int(f.read())

    def ask(self, *words: str) -> str:
        """Run one command of Holdfast's command line."""
        return self.command([*self._holdfast, *words])

    def start(self, name: str, argv: Sequence[str], *options: str) -> None:
        self.command([*self._holdfast, "new", "--no-attach", *options, name, "--", *argv], name)

    def attach_argv(self, name: str) -> list[str]:
        return [*self._holdfast, "attach", name]

    def create_argv(self, name: str, argv: Sequence[str]) -> list[str]:
        return [*self._holdfast, "new", name, "--", *argv]

    def list_argv(self) -> list[str]:
        return [*self._holdfast, "ls"]

    def run_argv(self, name: str) -> list[str]:
        return [*self._holdfast, "run", name, "--", "true"]

    def names(self) -> list[str]:
        return [str(s["name"]) for s in json.loads(self.command([*self._holdfast, "ls", "--json"]))]

    def end(self, name: str) -> None:
        self.command([*self._holdfast, "end", name], check=False)

    def shut_down(self) -> None:
        self.command([*self._holdfast, "down"], check=False)


class Unspooled(Holdfast):
    """Holdfast without the spool: beside `holdfast`, this shows the cost of the spool."""

    name = "holdfast-no-spool"

    def configure(self) -> None:
        super().configure()
        home = self.path("home")
        os.makedirs(home, mode=0o700, exist_ok=True)
        with open(f"{home}/config.toml", "w") as file:
            file.write("[session]\nspool_bytes = 0\n")

    def fresh(self) -> Peer:
        return Unspooled(self.scrollback, self.tree, self.label)


class Relayed(Holdfast):
    """Holdfast from another home, through a relay of its own on loopback, sealed end to end."""

    name = "holdfast-relay"
    door = "websocket"

    def __init__(
        self, scrollback: int | None = None, tree: str | None = None, label: str | None = None
    ) -> None:
        super().__init__(scrollback, tree, label)
        self._away = [*self._holdfast]
        self._relay: subprocess.Popen[str] | None = None

    def fresh(self) -> Peer:
        return type(self)(self.scrollback, self.tree, self.label)

    def _there(self) -> None:
        """Start the relay and the machine's line to it, and pair the other home."""
        if self._relay is not None:
            return
        data, url = self.path("relay"), self._serve("127.0.0.1:0")
        token = self.path("token")
        with open(token, "w") as file:
            said = self.command([*self._holdfast, "relay", "token", "--data", data]).split()
            file.write(next(word for word in said if word.startswith("hfr_")))
        self.command([*self._holdfast, "host", "connect", url, "--token", f"@{token}"])
        link = json.loads(
            self.command([*self._holdfast, "invite", "--rights", "admin", "--no-wait", "--json"])
        )["url"]
        self._away = ["env", f"HOLDFAST_HOME={self.path('elsewhere')}", *self._holdfast]
        joined = json.loads(self.command([*self._away, "join", link, "--as", "ann", "--json"]))
        self.command([*self._away, "machines", "rename", joined["as"], "box"])

    def start(self, name: str, argv: Sequence[str], *options: str) -> None:
        super().start(name, argv, *options)
        self._there()

    def _serve(self, listen: str) -> str:
        """Start the relay; return its address when it listens."""
        self._relay = subprocess.Popen(
            [
                *self._holdfast,
                "relay",
                "serve",
                *self._listening(listen),
                "--data",
                self.path("relay"),
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environ,
        )
        assert self._relay.stdout is not None
        url = str(json.loads(self._relay.stdout.readline())["listening"][self.door])
        self._listen = url.partition("//")[2].rstrip("/")
        return url

    def _listening(self, address: str) -> tuple[str, ...]:
        return (
            ("--listen", address)
            if self.door == "websocket"
            else ("--listen", "127.0.0.1:0", "--grpc", address)
        )

    def restart_relay(self, number: signal.Signals, away_s: float = 0.0) -> None:
        """End the relay and start a new one at the same address; return when it listens."""
        assert self._relay is not None
        self._relay.send_signal(number)
        self._relay.wait(COMMAND_S)
        time.sleep(away_s)
        self._serve(self._listen)

    def relay_pid(self) -> int:
        assert self._relay is not None
        return self._relay.pid

    def attach_argv(self, name: str) -> list[str]:
        return [*self._away, "attach", f"box/{name}"]

    def files_argv(self, act: str, name: str, *paths: str) -> list[str]:
        """A transfer through the relay."""
        return [*self._away, "files", act, f"box/{name}", *paths]

    def forward_argv(self, name: str, port: int) -> list[str]:
        """A forward through the relay."""
        return [*self._away, "forward", f"box/{name}", str(port), "--json"]

    def shut_down(self) -> None:
        super().shut_down()
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait(COMMAND_S)


class RelayedByGrpc(Relayed):
    """The same, both by the relay's gRPC door."""

    name = "holdfast-relay-grpc"
    door = "grpc"


class SshTmux(Tmux):
    """tmux at the other end of ssh, on loopback: the usual way to work from another machine."""

    name = "ssh+tmux"
    program = "sshd"

    @classmethod
    def available(cls) -> bool:
        return Tmux.available() and cls._sshd() is not None and shutil.which("ssh") is not None

    @staticmethod
    def _sshd() -> str | None:
        return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")

    def configure(self) -> None:
        super().configure()
        for key in ("host", "me"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(key)], check=True
            )
        shutil.copy(self.path("me.pub"), self.path("authorized"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        with open(self.path("sshd_config"), "w") as file:
            file.write(
                f"ListenAddress 127.0.0.1\nPort {self._port}\nHostKey {self.path('host')}\n"
                f"AuthorizedKeysFile {self.path('authorized')}\nStrictModes no\n"
                "UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n"
                "Subsystem sftp internal-sftp\n"
            )
        os.makedirs("/run/sshd", exist_ok=True)
        self._server = subprocess.Popen(
            [self._sshd() or "sshd", "-D", "-f", self.path("sshd_config")],
            stderr=subprocess.DEVNULL,
            env=self.environ,
        )

    def copy_argv(self, source: str, target: str) -> list[str]:
        """scp; a path at the other end begins with `there:`."""
        both = [one.replace("there:", "127.0.0.1:", 1) for one in (source, target)]
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        port = ["-P", str(self._port), "-i", self.path("me")]
        return ["scp", "-q", "-F", "none", *port, *options, *both]

    def tunnel_argv(self, here: int, there: int) -> list[str]:
        """`ssh -L` between two ports of loopback."""
        ports = ["-L", f"127.0.0.1:{here}:127.0.0.1:{there}", "-p", str(self._port)]
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        key = ["-i", self.path("me"), "-o", "ExitOnForwardFailure=yes"]
        return ["ssh", "-N", "-q", "-F", "none", *ports, *key, *options, "127.0.0.1"]

    def attach_argv(self, name: str) -> list[str]:
        return [
            "ssh",
            "-tt",
            "-q",
            "-e",
            "none",
            "-F",
            "none",
            "-p",
            str(self._port),
            "-i",
            self.path("me"),
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "127.0.0.1",
            shlex.join(super().attach_argv(name)),
        ]

    def shut_down(self) -> None:
        super().shut_down()
        self._server.terminate()
        self._server.wait(COMMAND_S)


ALL: tuple[type[Peer], ...] = (Raw, Dtach, Abduco, Screen, Tmux, Holdfast)
# Only if these are asked for by name
FROM_ELSEWHERE: tuple[type[Peer], ...] = (
    Unspooled,
    SshTmux,
    Relayed,
    RelayedByGrpc,
)
