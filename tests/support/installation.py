"""A throwaway installation, used like by a person or a script: real commands, PTYs and processes.

Every test module has its own home. At the end, `close` ends all sessions, the host and the nursery.
Then it searches /proc for processes that still have this home in their environment. Such a process
is a defect of the product or of the test: the module fails with its pid, and the process is ended
so that it does not disturb other tests.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import apsw
import avt

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.core.session import events
from holdfast.faces.cli.main import run as command_line
from holdfast.host.processes.cgroups import Groups
from tests.support.commands import warm
from tests.support.kernel import words_of

SOURCE = Path(__file__).resolve().parents[2] / "src"
DEADLINE_S = 120.0  # however slow and busy the machine is: only what hangs needs this long
SOON_S = (
    30.0  # for what waits for nobody: milliseconds where nothing else runs, bench/ has the figures
)
POLL_S = 0.01
# Options of `new --contained`. The tests' own Python lies outside of the account's home, so that a
# contained session sees it only if it is shared.
SHARE_PYTHON = [] if sys.base_prefix.startswith("/usr") else [f"--share={sys.base_prefix}"]
T = TypeVar("T")


def eventually(check: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Polls until `check` gives something true. A file that does not exist yet counts as false."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            if found := check():
                return found
        except FileNotFoundError:
            pass
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        select.select([], [], [], POLL_S)


def alive(pid: int) -> bool:
    """Runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@dataclass(frozen=True)
class Result:
    """What one command gave back."""

    rc: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.raw.splitlines()]


class Installation:
    def __init__(
        self, base: Path, config: str = "", home: Path | None = None, relay: bool = False
    ) -> None:
        self.base = base
        self.relay = relay  # whether `up` starts one here, which takes longer than all the rest
        self.home = home or base / "hf"
        # Commands run in another directory: the home cannot be a contained session's workspace.
        self.user, self.account = base / "user", base / "account"
        for directory in (self.user, self.account):
            directory.mkdir()
        (self.account / ".bashrc").write_text("PS1='$ '\n")
        (self.account / ".zshrc").write_text("PS1='$ '\n")
        if config:
            self.configure(config)
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(self.account),
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
            "USER": "tester",
            "PYTHONPATH": str(SOURCE),
            "HOLDFAST_HOME": str(self.home),
        }
        self.python = sys.executable  # of the environment whose Holdfast is run
        self.terminals: list[Terminal] = []
        self.background: list[subprocess.Popen[bytes]] = []

    def configure(self, text: str) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def _no_relay(self, args: tuple[str | bytes, ...]) -> None:
        """Said in the configuration, before the first `up`."""
        if self.relay or "up" not in args[:3]:
            return
        file = self.home / "config.toml"
        with contextlib.suppress(OSError):
            if not self.home.exists():
                self.home.mkdir(mode=0o700)
            text = file.read_text() if file.exists() else ""
            if "[relay]" not in text:
                file.touch(mode=0o600)
                file.write_text(
                    f"{text}\n[relay]\nstart = false\n" if text else "[relay]\nstart = false\n"
                )

    # ------------------------------------------------------------ commands

    def argv(self, args: tuple[str | bytes, ...]) -> list[str | bytes]:
        self._no_relay(args)
        return [self.python, "-m", "holdfast", *args]

    def cli(
        self,
        *args: str | bytes,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = DEADLINE_S,
    ) -> Result:
        """Runs the command line to its end."""
        environment = {**self.env, **(env or {})}
        if self.python == sys.executable and warm.fits(args, stdin, environment):
            self._no_relay(args)
            found = warm.run(args, stdin, environment, str(cwd or self.user), timeout)
            return Result(found.code, found.out, found.err.decode("utf-8", "replace"))
        done = subprocess.run(
            self.argv(args),
            input=stdin or None,
            stdin=None if stdin else subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            cwd=cwd or self.user,
            timeout=timeout,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))

    def ok(self, *args: str | bytes, **how: Any) -> Result:
        result = self.cli(*args, **how)
        assert result.rc == 0, (args, result)
        return result

    def people(
        self, *names: str, rights: str = "admin", kind: str = "human", plain: bool = True
    ) -> None:
        """Operators beside the one who tests. `plain`: agents may steer plain sessions."""
        for name in names:
            self.ok("operator", "add", name, "--kind", kind)
            wanted = [rights] if rights else []
            if plain and kind == "agent":
                wanted.append("plain")
            if wanted:
                self.ok("grant", name, "--rights", ",".join(wanted))

    def start(
        self,
        *args: str | bytes,
        env: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """A command that goes on beside the test; ended with the installation."""
        process = subprocess.Popen(
            self.argv(args),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**self.env, **(env or {})},
            cwd=self.user,
        )
        self.background.append(process)
        return process

    def attach(
        self, *args: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None
    ) -> Terminal:
        """`holdfast attach` on a terminal of its own, or another command if it is named."""
        command = args if args and args[0] in ("new", "up", "attach", "--as") else ("attach", *args)
        terminal = Terminal(self.argv(command), {**self.env, **(env or {})}, self.user, size)
        self.terminals.append(terminal)
        return terminal

    def spawn(
        self, argv: list[str], size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None
    ) -> Terminal:
        """Any other program on a terminal."""
        terminal = Terminal(list(argv), {**self.env, **(env or {})}, self.user, size)
        self.terminals.append(terminal)
        return terminal

    # ------------------------------------------------------------ helpers around the tested part

    def attempt(self, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        """Run a command in this process, in a tenth of the time. Only commands that print text."""
        self._no_relay(args)
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, {**self.env, **(env or {})}, clear=True),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
            contextlib.chdir(self.user),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = command_line(list(args))
        return Result(code, out.getvalue().encode(), err.getvalue())

    def quick(self, *args: str, env: dict[str, str] | None = None) -> str:
        """The same, for commands that are not under test at that moment and must succeed."""
        result = self.attempt(*args, env=env)
        assert result.rc == 0, (args, result)
        return result.out

    def ask(self, op: str, operator: str = "tester", /, **fields: Any) -> dict[str, Any]:
        """A request without the command line around it."""
        link = Link(homes.resolve(self.env), operator, autostart=False)
        try:
            return link.request(op, **fields)
        finally:
            link.close()

    def under_way(self, op: str, count: int) -> None:
        """Waits until the host has that many such requests to answer."""
        eventually(
            lambda: self.ask("stats")["under_way"].get(op, 0) >= count, f"{count} requests of {op}"
        )

    def new(self, name: str, *args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.quick("new", name, "--json", *args, env=env))
        return made

    def ready(self, name: str, *args: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        """A new session whose shell has shown its first prompt."""
        made = self.new(name, *args, env=env)
        self.wait(name, "idle")
        return made

    def gate(self, name: str) -> Gate:
        """For a command that is to go on until the test lets it: `cat GATE` does not end before."""
        return Gate(self.user / name)

    def wait(self, name: str, what: str) -> None:
        self.quick("wait", name, "--for", what, "--timeout", f"{DEADLINE_S:g}")

    def end(self, *names: str) -> None:
        self.quick("end", *names)

    def ls(self, *args: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.quick("ls", "--json", *args))
        return found

    def get(self, name: str) -> dict[str, Any]:
        return next(s for s in self.ls("--all") if name in (s["name"], s["id"]))

    def view(self, name: str) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(self.quick("view", name, "--json"))
        return seen

    def screen(self, name: str) -> str:
        return self.quick("view", name)

    # ------------------------------------------------------------ processes

    @property
    def host_pid(self) -> int:
        return int(eventually((self.home / "run/host.lock").read_text, "a host in the lock file"))

    def peer(self, name: str) -> int | None:
        """The process that listens on a socket of this home."""
        return socket_owner(self.home / "run" / name)

    def processes(self) -> dict[int, str]:
        """Every process whose environment names this home, and what it is."""
        mark = f"HOLDFAST_HOME={self.home}"
        found = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and mark in words_of(int(entry)) and alive(int(entry)):
                    words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry)] = words.decode("utf-8", "replace")[:200]
        return found

    def keepers(self) -> list[int]:
        """Those of this home that run now."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "hf-keeper\n":
                    found.append(pid)
        return found

    def close(self) -> None:
        """Ends everything, then looks whether something is left."""
        for terminal in self.terminals:
            terminal.close()
        for process in self.background:
            process.kill()
            process.communicate()
        problems = self._stop() if self.home.is_dir() else []
        end = time.monotonic() + DEADLINE_S
        while (left := self.processes()) and time.monotonic() < end:
            if self.keepers():  # a session whose keeper was killed came back meanwhile
                problems = self._stop()
            for pid in left if all("keeper.nursery" in words for words in left.values()) else ():
                with contextlib.suppress(
                    ProcessLookupError
                ):  # a host that was on its way to nowhere had begun one
                    os.kill(pid, signal.SIGTERM)
            select.select([], [], [], POLL_S)
        told = {pid: f"{words} ({what_it_does(pid)})" for pid, words in left.items()}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        Groups(str(self.home)).sweep(set())  # of sessions that ended while no host was there
        assert not left, f"processes of {self.home} are left: {told}; {problems}"
        log = self.home / "host.log"
        said = log.read_text(errors="replace") if log.exists() else ""
        assert "Traceback" not in said, f"a host failed at something: {said[-6000:]}"
        assert not (odd := self.odd_events()), odd

    def odd_events(self) -> list[str]:
        """Stored events that are missing in the table of events. Call it after the last host ended,
        because a host locks the database."""
        if not (self.home / "state.db").is_file():
            return []
        with contextlib.suppress(apsw.Error):  # some tests damage it
            rows = (
                apsw.Connection(str(self.home / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
                .execute("SELECT event, body FROM events")
                .fetchall()
            )
            return sorted(
                {
                    fault
                    for name, body in rows
                    for fault in events.faults(str(name), json.loads(str(body)))
                }
            )
        return []

    def _stop(self) -> list[str]:
        problems = []
        for pid in (p for p, words in self.processes().items() if state_of(p) == "T"):
            os.kill(pid, signal.SIGCONT)
        if any((self.home / "run").glob("*.keeper")):
            for args in (("up", "--detach"), *(("end", s["id"]) for s in self._running())):
                result = self.attempt(*args)
                if result.rc:
                    problems.append(f"{args}: {result.err}")
        if (
            self._hosts()
        ):  # one that a client asked for before it was killed may still be on its way
            self.attempt("up", "--detach")
            with contextlib.suppress(AssertionError):  # the last look at what is left tells
                eventually(lambda: len(self._hosts()) < 2, "hosts that were too late to leave")
        self.attempt("down")
        nursery = self.peer("nursery.sock") if (self.home / "run").is_dir() else None
        if nursery is not None:
            with contextlib.suppress(ProcessLookupError):  # it ends by itself when nobody needs it
                os.kill(nursery, signal.SIGTERM)
        return problems

    def _hosts(self) -> list[int]:
        return [pid for pid, words in self.processes().items() if "holdfast.host.main" in words]

    def _running(self) -> list[dict[str, Any]]:
        self.attempt("up", "--detach")
        result = self.attempt("ls", "--json")
        found: list[dict[str, Any]] = result.json if result.rc == 0 else []
        return [one for one in found if one["state"] != "ended"]


class Gate:
    """A named pipe: its reader waits until the test opens the pipe, however slow the machine is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Lets who reads it go on, and waits until it does."""

        def opened() -> bool:
            try:
                os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as e:
                if e.errno != errno.ENXIO:  # nobody reads it yet
                    raise
                return False
            return True

        eventually(opened, f"somebody to read {self.path}")


def what_it_does(pid: int) -> str:
    """Title, state, parent and kernel function of a process, for the report about a leftover."""
    found = []
    for name in ("comm", "stat", "wchan", "syscall", "stack"):
        with contextlib.suppress(OSError):
            found.append(" ".join(Path(f"/proc/{pid}/{name}").read_text().split()[:12]))
    with contextlib.suppress(OSError):
        found += [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return "; ".join(found)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def socket_owner(path: Path) -> int | None:
    """By the kernel's word (SO_PEERCRED), not by a file's. None if nobody listens."""
    directory = os.open(path.parent, os.O_PATH)
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as sock:
                try:
                    sock.connect(f"/proc/self/fd/{directory}/{path.name}")
                except OSError:
                    continue
                return int(
                    struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[
                        0
                    ]
                )
    finally:
        os.close(directory)
    return None


class Terminal:
    """A program on its own PTY. A second emulator shows the screen; `output` has every byte."""

    def __init__(
        self,
        argv: list[str | bytes] | list[str],
        env: dict[str, str],
        cwd: Path,
        size: tuple[int, int],
    ) -> None:
        self.master, self.slave = os.openpty()
        self.output = bytearray()
        self._vt = avt.Vt(*size)
        self._pending = b""
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)
        slave = self.slave
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.set_blocking(self.master, False)

    # ------------------------------------------------------------ in

    def send(self, data: bytes | str) -> None:
        left = data.encode() if isinstance(data, str) else data
        end = time.monotonic() + DEADLINE_S
        while left:
            try:
                left = left[os.write(self.master, left) :]
            except BlockingIOError:
                assert time.monotonic() < end, "the program does not read"
                self.drain(POLL_S)

    def resize(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        if cols and rows:
            self._vt.resize(cols, rows)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    # ------------------------------------------------------------ out

    def drain(self, wait_s: float = 0.0) -> bool:
        """Takes what there is; False if nothing came."""
        if self.master < 0:
            return False
        readable, _, _ = select.select([self.master], [], [], wait_s)
        if not readable:
            return False
        try:
            data = os.read(self.master, 1 << 16)
        except (BlockingIOError, OSError):
            return False
        self.output += data
        text = self._pending + data
        cut = _utf8_end(text)
        self._pending = text[cut:]
        self._vt.feed_str(text[:cut].decode("utf-8", "replace"))
        return bool(data)

    def until(
        self, check: Callable[[], T], what: str, deadline_s: float = DEADLINE_S, each: bool = False
    ) -> T:
        """`each`: looks after every piece of output, for what does not stay."""
        end = time.monotonic() + deadline_s
        while True:
            while self.drain():
                if each and (found := check()):
                    return found
            if found := check():
                return found
            assert time.monotonic() < end, (
                f"no {what}; screen: {self.rows()}; end of output: {bytes(self.output[-600:])!r}"
            )
            self.drain(POLL_S)

    def drain_for(self, seconds: float) -> None:
        """Takes what comes for that long: the length of a fault, never a wait for a result."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.drain(min(left, POLL_S))

    def expect(self, pattern: bytes | str, since: int = 0) -> int:
        """Waits for a regular expression in the output after `since`; gives the offset after it."""
        compiled = re.compile(pattern.encode() if isinstance(pattern, str) else pattern, re.DOTALL)
        found = self.until(lambda: compiled.search(self.output, since), f"{pattern!r}")
        assert found is not None
        return found.end()

    def see(self, text: str) -> None:
        """Waits until it stands on the screen, be it for a moment."""
        self.until(
            lambda: any(text in row for row in self.rows()), f"{text!r} on the screen", each=True
        )

    def rows(self) -> list[str]:
        return [line.text.rstrip() for line in self._vt.view()]

    @property
    def cursor(self) -> tuple[int, int]:
        return self._vt.cursor.col, self._vt.cursor.row

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    @property
    def restored(self) -> bool:
        return self.attributes() == self.before

    def leave(self) -> int:
        """Detaches by the default prefix key and gives the exit code."""
        self.send(b"\x1cd")
        return self.wait()

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """The exit code, with all output taken."""
        self.until(lambda: self.process.poll() is not None, "end of the program", deadline_s)
        while self.drain():
            pass
        return int(self.process.returncode)

    def hang_up(self) -> None:
        """The terminal itself vanishes, as when a window is closed."""
        for fd in (self.master, self.slave):
            os.close(fd)
        self.master = self.slave = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.master >= 0:
            self.hang_up()
        self.process.wait()


def _utf8_end(data: bytes) -> int:
    """Where the last complete character ends."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
        if byte < 0x80:
            break
    return len(data)


@contextlib.contextmanager
def installation(
    base: Path, config: str = "", home: Path | None = None, relay: bool = False
) -> Iterator[Installation]:
    made = Installation(base, config, home, relay)
    try:
        yield made
    finally:
        made.close()
