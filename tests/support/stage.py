"""A throwaway installation whose processes a test may kill, and the loop of its clients.

Tests are single-threaded: `Pump` reads all terminals and sockets of a test's clients, and `until`
runs it until a condition holds or a deadline passes. No function here sleeps. Hosts are started,
armed and killed by name and pid; the home lies in /tmp with a short path.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from holdfast import home as homes
from holdfast.client import start
from holdfast.client.link import Link
from holdfast.home import keys
from holdfast.host.processes import process
from holdfast.host.processes.cgroups import Groups
from holdfast.host.storage.remembered import Remembered
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from tests.support.kernel import words_of
from tests.support.peers.forged_clients import Forge
from tests.support.workload import READY, command

SOURCE = Path(__file__).resolve().parents[2] / "src"
DEADLINE_S = 120.0  # on the slowest and busiest machine: only a hanging process needs this long
SOON_S = (
    # For operations that wait for no other process: milliseconds on an idle machine, bench/ has the
    # figures
    30.0
)
TURN_S = 0.02
COLS, ROWS = 80, 24


class Pump:
    """Runs the callbacks of ready descriptors, and those that want to be called every turn."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._every: list[Callable[[], None]] = []

    def add(self, fd: int, ready: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def remove(self, fd: int) -> None:
        self._selector.unregister(fd)

    def every(self, act: Callable[[], None]) -> None:
        self._every.append(act)

    def no_more(self, act: Callable[[], None]) -> None:
        self._every.remove(act)

    def turn(self, wait_s: float = TURN_S) -> None:
        for key, _ in self._selector.select(wait_s):
            key.data()
        for act in tuple(self._every):
            act()

    def until(
        self,
        condition: Callable[[], Any],
        what: str | Callable[[], object],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, (
                f"not within {deadline_s:g} s: {what() if callable(what) else what}"
            )
            self.turn()

    def during(self, seconds: float) -> None:
        """Serve clients for that long.

        This is the length of a fault (a host away, a pause before a kill), never a wait for a
        result.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(min(left, TURN_S))


class Said:
    """The output of a command, read by the pump."""

    def __init__(self, pump: Pump, stream: IO[bytes]) -> None:
        self.data, self.over = bytearray(), False
        self._pump, self._stream = pump, stream
        os.set_blocking(stream.fileno(), False)
        pump.add(stream.fileno(), self._ready)

    def _ready(self) -> None:
        try:
            piece = os.read(self._stream.fileno(), 1 << 16)
        except BlockingIOError:
            return
        self.data += piece
        if not piece:
            self._pump.remove(self._stream.fileno())
            self.over = True

    def close(self) -> None:
        if not self.over:
            self._pump.remove(self._stream.fileno())
        self._stream.close()


class Stage:
    def __init__(self, config: str = "") -> None:
        self.directory = tempfile.mkdtemp(prefix="hf-", dir="/tmp")
        self.path = f"{self.directory}/h"
        os.makedirs(self.path, mode=0o700)
        # Without titles of attach: clients compare bytes, and the title with the model's.
        fixed = "[relay]\nstart = false\n[attach]\ntitle = false\n"
        Path(self.path, "config.toml").write_text(f"{config}\n{fixed}")
        self.env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": self.directory,
            "HOLDFAST_HOME": self.path,
            "USER": "tester",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "PYTHONPATH": str(SOURCE),
            "HISTFILE": "",
        }
        self.home = homes.resolve(self.env)
        homes.prepare(self.home)
        self.pump = Pump()
        self.forge = Forge(self.env)
        self.host = 0
        self.kills = 0
        self.clients: list[Any] = []
        self._link: Link | None = None

    # ------------------------------------------------------------ the host

    def autostart(self, allowed: bool) -> None:
        """Whether clients may start a host by themselves (they may not after `holdfast down`)."""
        start.mark_stopped(self.home, not allowed)

    def start_host(self, probe: str = "", wait: bool = True) -> int:
        env = self.env | ({"HOLDFAST_PROBE": probe} if probe else {})
        self.host = self.forge.host(env)
        if wait:
            self.pump.until(
                self.host_answers, lambda: f"the host answers; its log: {self.log()[-2000:]}"
            )
        return self.host

    def host_answers(self) -> bool:
        try:
            return int(self.link().request("ping")["pid"]) == self.host
        except HoldfastError:
            self._link = None
            return False

    def kill_host(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.host, number)
        self.host_ended()

    def host_ended(self) -> int:
        """Wait for the end of the host; return its status.

        0 if another process started the host: only that process can know the status.
        """
        pid, self.host = self.host, 0
        self.kills += 1
        if pid in self.forge.made:
            return self.forge.wait(pid)
        self.pump.until(lambda: not self.running(pid), f"host {pid} ends")
        return 0

    def find_host(self) -> int:
        """The host that serves now, no matter which process started it."""

        def answers() -> bool:
            try:
                self.host = int(self.link().request("ping")["pid"])
            except HoldfastError:
                self._link = None
                return False
            return True

        self.pump.until(answers, "a host serves")
        return self.host

    def cut_power(self) -> None:
        """Kill all processes of this home at once: host, nursery, keepers and programs."""
        self.pump.until(lambda: not self._kill_all(), "no process of this home is left")
        self.host_ended()
        self._link = None

    def _kill_all(self) -> list[int]:
        found = [pid for pid in members(self.path) if pid != self.forge.pid]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return found

    def no_hosts(self) -> None:
        """Kill every host of this home.

        Clients that started a host at the same time leave losers behind, which wait for the lock.
        """
        if self.host:
            self.kill_host()

        def none_left() -> bool:
            found = self.hosts()
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            return not found

        self.pump.until(none_left, "no host is left")

    def hosts(self) -> list[int]:
        """Hosts of this home that clients have started, from their first instruction on."""

        def is_host(pid: int) -> bool:
            try:
                return b"holdfast.host.main" in process.read_proc(f"/proc/{pid}/cmdline")
            except FileNotFoundError:  # the process has just ended
                return False

        return [pid for pid in members(self.path) if is_host(pid)]

    def running(self, pid: int) -> bool:
        """Also while only some of its threads have ended: living threads hold files and locks."""
        found = process.read_stat(pid)
        if found is None or found.state not in ("Z", "X"):
            return found is not None
        try:
            return len(os.listdir(f"/proc/{pid}/task")) > 1
        except FileNotFoundError:
            return False

    def log(self) -> str:
        try:
            return Path(self.home.log).read_text()
        except FileNotFoundError:
            return ""

    # ------------------------------------------------------------ asking

    def link(self) -> Link:
        """A connection for requests; made anew after a host died."""
        if self._link is None or self._link.sock is None:
            self._link = Link(self.home, "tester", "cli", autostart=False)
        return self._link

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Make a request that outlives the deaths of hosts: ask until a host answers."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self.link().request(op, **fields)
            except (Unavailable, OutcomeUnknown):
                self._link = None
                if time.monotonic() > end:
                    raise
                self.pump.turn()

    def new(
        self, name: str, argv: list[str], size: tuple[int, int] = (COLS, ROWS)
    ) -> dict[str, Any]:
        env = {k: v for k, v in self.env.items() if k != "PYTHONPATH"}
        return self.ask("new", name=name, argv=argv, cwd=self.directory, env=env, size=list(size))

    def work(self, name: str, *workload: str | int) -> dict[str, Any]:
        """A session that runs a workload, once that listens."""
        made = self.new(name, command(*map(str, workload)))
        self.pump.until(
            lambda: self.session(name)["output"]["end"] >= len(READY), f"{name} listens"
        )
        return made

    def session(self, name: str) -> dict[str, Any]:
        return self.ask("get", session=name)

    def view(self, name: str) -> dict[str, Any]:
        return self.ask("view", session=name)

    def identity(self, name: str) -> tuple[int, int] | None:
        """(pid, start time) of the session's program, as the kernel has it now."""
        pid = int(self.session(name)["pid"])
        found = process.read_stat(pid)
        return (pid, found.start) if found is not None and found.state not in ("Z", "X") else None

    def identities(self, *names: str) -> dict[str, tuple[int, int]]:
        found = {name: self.identity(name) for name in names}
        assert None not in found.values(), found
        return {name: who for name, who in found.items() if who is not None}

    def ended(self, name: str) -> dict[str, Any] | None:
        found = self.session(name)
        return found if found["state"] == "ended" else None

    def exit_code(self, name: str) -> int | None:
        """The exit code of a session that is ending; waits until the host has it."""
        self.pump.until(lambda: self.ended(name), f"{name} ends")
        code: int | None = self.session(name)["exit_code"]
        return code

    def description(self, name: str) -> dict[str, Any] | None:
        """The stored description of a session, from a copy of the database."""
        with tempfile.TemporaryDirectory() as place:
            for suffix in ("", "-wal"):
                if os.path.exists(self.home.database + suffix):
                    shutil.copy(self.home.database + suffix, f"{place}/copy{suffix}")
            db = sqlite3.connect(f"{place}/copy")
            rows = db.execute("SELECT session, body FROM remembered").fetchall()
            db.close()
        key = keys.remembered_key(keys.machine(self.home, time.time()))
        return Remembered(rows, key).take(self.session(name)["id"])

    def shells(self) -> list[int]:
        """The processes of sessions' own shells."""
        return [pid for pid in members(self.path) if any("bash.rc" in w for w in words_of(pid))]

    def events(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("events", session=name, limit=1000)["events"]
        return found

    def cli(self, *argv: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start the real command line as a process, to be ended by the test (`finish`)."""
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *argv],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            **more,
        )

    def finish(
        self, command: subprocess.Popen[bytes], deadline_s: float = DEADLINE_S
    ) -> tuple[int, bytes, str]:
        """Wait for the end of a command; return its code and output.

        Clients are served meanwhile: on a busy machine a command takes longer than a viewer may
        lag.
        """
        out, err = self._collect(command.stdout), self._collect(command.stderr)
        try:
            self.pump.until(
                lambda: out.over and err.over and command.poll() is not None,
                f"the end of {command.args!r}",
                deadline_s,
            )
        except AssertionError:
            command.kill()
            raise
        finally:
            for said in (out, err):
                said.close()
            command.wait()
        return command.returncode, bytes(out.data), err.data.decode("utf-8", "replace")

    def _collect(self, stream: IO[bytes] | None) -> Said:
        assert stream is not None
        return Said(self.pump, stream)

    def json(self, *argv: str) -> Any:
        code, out, err = self.finish(self.cli(*argv, "--json"))
        assert code == 0, (argv, code, err)
        return json.loads(out)

    def rss(self, pid: int) -> int:
        """Resident memory of a process in bytes, without memory shared by file or memfd."""
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError(f"{pid} has no memory")

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        for client in list(self.clients):
            client.close()
        self.forge.close()
        end = time.monotonic() + DEADLINE_S
        while (left := members(self.path)) and time.monotonic() < end:
            for pid in left:  # one of them may just have started another
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([], [], [], 0.01)
        groups = Groups(self.home.state)  # no host was left to remove them
        while groups.sweep(set()) and time.monotonic() < end:
            select.select([], [], [], 0.01)
        shutil.rmtree(self.directory, ignore_errors=True)


def members(home: str) -> list[int]:
    """Processes that belong to this home, except this one.

    They have the home in their environment or arguments, no matter which process started them.
    """
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            state = process.read_stat(int(entry))
            if state is None or state.state in ("Z", "X"):
                continue
            if any(home in word for word in words_of(int(entry))):
                found.append(int(entry))
        except OSError:
            continue
    return found
