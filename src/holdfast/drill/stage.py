"""The installation under drill: a throw-away installation of this build, or the real (`live`).

A throw-away installation has a separate home, account directory, host and sessions. A live drill
makes and ends new sessions on the account's installation, and changes no other state there.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from holdfast import home as homes
from holdfast.home import programs
from holdfast.model.errors import HoldfastError
from holdfast.sdk.client import Client, connect
from holdfast.sdk.observed import Event
from holdfast.sdk.session import Session

T = TypeVar("T")
SOON_S: Final = 30.0  # for a signature to appear; milliseconds on a quiet machine
POLL_S: Final = 0.02
PIECE_BYTES: Final = 1 << 16
LEASE_TERM_S: Final = 8.0  # longer than a takeover takes that does not wait
LEASE_DRIFT: Final = 0.25
CONFIG: Final = "[turn]\nidle_s = 600\n[session]\nring_bytes = 1048576\n"
INHERITED: Final = ("PATH", "LANG", "PYTHONPATH", "HOLDFAST_CRIU")  # variables of the caller
FIRST: Final = "ann"  # the first operator of the installation


class Broken(Exception):
    """A promise that did not hold, and the evidence."""


class NotHere(Exception):
    """What a check needs is not installed here."""


class Terminal(NamedTuple):
    """`holdfast attach` on a terminal of its own."""

    process: subprocess.Popen[bytes]
    keyboard: int  # a descriptor

    async def raw(self) -> bool:
        """Whether keys reach the session: before, the terminal discards them."""
        return not termios.tcgetattr(self.keyboard)[3] & termios.ICANON

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


async def refuses(act: Awaitable[object], kind: type[HoldfastError], otherwise: str) -> None:
    try:
        await act
    except kind:
        return
    raise Broken(otherwise)


class Stage:
    def __init__(self, live: bool = False) -> None:
        self.live = live
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-drill-"))
        self.home, self.account = self.base / "home", self.base / "account"
        self.account.mkdir(mode=0o700)
        (self.account / ".bashrc").write_text("PS1='$ '\n")
        self.first = FIRST
        if live:
            self.home = Path(homes.resolve(os.environ).state)
            self.first = os.environ.get("HOLDFAST_AS") or getpass.getuser()
        else:
            self.prepare(self.home, "start = false")
        self.environ = {
            **{name: os.environ[name] for name in INHERITED if name in os.environ},
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_AS": self.first,
            "HOME": str(self.account),
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
        }
        self.homes = [self.home]  # of the throw-away installations
        self._clients: dict[tuple[str, str], Client] = {}  # by operator and home
        self._terminals: list[subprocess.Popen[bytes]] = []
        self._sessions: list[Session] = []
        self._branches: list[Session] = []
        self._run, self._count = f"drill-{os.urandom(3).hex()}", 0

    def prepare(self, home: Path, relay: str, more: str = "") -> None:
        """Write the configuration; all homes of a drill share one store of leases."""
        home.mkdir(mode=0o700, exist_ok=True)
        lease = f'term_s = {LEASE_TERM_S}\ndrift = {LEASE_DRIFT}\npath = "{self.base}/leases.db"'
        text = f"[relay]\n{relay}\n[lease]\n{lease}\n{CONFIG}{more}"
        (home / "config.toml").write_text(text)

    # ------------------------------------------------------------ operators and sessions

    def client(self, operator: str = "", home: Path | None = None) -> Client:
        """The client of an operator. `home`: that of a lossy line.

        A client starts the host of a throw-away installation.
        """
        name, place = operator or self.first, str(home or self.home)
        if (name, place) not in self._clients:
            start = home is None and not self.live
            self._clients[name, place] = connect(operator=name, home=place, start=start)
        return self._clients[name, place]

    async def lossy(self) -> LossyLine:
        """A connection to the host that can lose an answer; its separate home has our key."""
        home = self.base / f"line-{self._count}"
        for directory in (home, home / "run", home / "keys"):
            directory.mkdir(mode=0o700)
        shutil.copy2(self.home / f"keys/{self.first}.key", home / "keys")
        return await LossyLine.open(home, self.home / "run/host.sock")

    async def session(self, contained: bool = False) -> Session:
        """A new session with a shell that has shown a prompt."""
        self._count += 1
        session = await self.client().sessions.new(
            f"{self._run}-{self._count}",
            command=("/bin/bash",),
            cwd=str(self.workspace()),
            env=self.environ,
            contained=contained,
        )
        self._sessions.append(session)
        await session.wait("idle", timeout=SOON_S)
        return session

    async def branch(self, word: str) -> Session:
        """A branch of a session of this drill; the end of the drill discards the branch."""
        branch = await self.client().sessions.get(word)
        self._branches.append(branch)
        return branch

    def workspace(self) -> Path:
        place = self.base / f"work-{self._count}"
        place.mkdir(exist_ok=True)
        return place

    async def operator(self, name: str, rights: str, kind: str = "human") -> Client:
        """A second operator with these rights, and a client of that operator."""
        await self.command("operator", "add", name, "--kind", kind)
        await self.command("grant", name, "--rights", rights)
        return self.client(name)

    async def command(self, *words: str, code: int = 0, home: Path | None = None) -> str:
        """A command of the command line; `code` is the expected exit code."""
        found, out, err = await self.attempt(*words, home=home)
        if found != code:
            said = (err or out).strip()[:200]
            raise Broken(f"`{' '.join(words[:3])}` ended with {found}: {said}")
        return out

    async def attempt(self, *words: str, home: Path | None = None) -> tuple[int, str, str]:
        """A command with its exit code, output and errors."""
        process = await asyncio.create_subprocess_exec(
            *programs.module("holdfast", *words),
            env=self.environ | self._at(home),
            cwd=self.base,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def _at(self, home: Path | None) -> dict[str, str]:
        """Variables for another home: its host has the account directory of the first host."""
        if home is None:
            return {}
        first = _variables(Path(f"/proc/{self._host_pid()}"))
        own = next((one for one in first if one.startswith(b"HOME=")), b"HOME=/")
        return {"HOME": os.fsdecode(own[5:]), "HOLDFAST_HOME": str(home)}

    def attach(self, session: Session, *words: str) -> Terminal:
        """`holdfast attach` on a new terminal."""
        theirs, ours = pty.openpty()
        process = subprocess.Popen(
            programs.module("holdfast", "attach", session.id, *words),
            env=self.environ,
            cwd=self.base,
            stdin=ours,
            stdout=ours,
            stderr=ours,
            start_new_session=True,
        )
        os.close(ours)
        asyncio.get_running_loop().add_reader(theirs, _discard, theirs)
        self._terminals.append(process)
        return Terminal(process, theirs)

    # ------------------------------------------------------------ signatures

    async def events(self, session: Session, name: str) -> list[Event]:
        found = [event async for event in self.client().events()]
        return [e for e in found if e.event == name and e.session == session.id]

    async def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, summed over the series with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in (await self.command("metrics")).splitlines()
            if re.match(rf"{name}[{{ ]", line) and all(one in line for one in wanted)
        )

    @contextlib.asynccontextmanager
    async def counted(self, name: str, **labels: str) -> AsyncIterator[None]:
        """The block provokes something that this metric counts; Broken if it does not grow."""
        before = await self.metric(name, **labels)
        yield

        async def grown() -> bool:
            return await self.metric(name, **labels) > before

        await self.until(grown, f"{name} above {before:g}")

    async def host_pid(self) -> int:
        return self._host_pid()

    def _host_pid(self) -> int:
        return int((self.home / "run/host.lock").read_text())

    async def kill_host(self) -> int:
        pid = await self.host_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    async def until(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Waits for a signature; raises Broken if the signature does not appear."""
        end = time.monotonic() + SOON_S
        while not (found := await check()):
            expect(time.monotonic() < end, f"not within {SOON_S:g} s: {what}")
            await asyncio.sleep(POLL_S)
        return found

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """Ends every process of this installation, and removes the files."""
        for process in self._terminals:
            process.kill()
            process.wait()
        for branch in self._branches:
            with contextlib.suppress(Exception):
                await branch.discard()
        for one in self._sessions:
            with contextlib.suppress(Exception):
                await one.end()
        if self.live:
            for one in (*self._branches, *self._sessions):  # those that are left
                with contextlib.suppress(Exception):
                    await self.command("forget", one.id)
        else:
            for home in self.homes:
                with contextlib.suppress(Exception):
                    await self.command("down", home=home)
        await asyncio.gather(
            *(client.close() for client in self._clients.values()), return_exceptions=True
        )
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        if self.live:
            return shutil.rmtree(self.base, ignore_errors=True)
        marks = {f"HOLDFAST_HOME={home}".encode() for home in self.homes}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and marks & _variables(entry):
                    os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)


class LossyLine:
    """Passes bytes between clients and a host, and can lose an answer and the connection."""

    def __init__(self, home: Path, host: Path) -> None:
        self.home, self._host = home, host
        self._losing = False
        self.lost = 0

    @classmethod
    async def open(cls, home: Path, host: Path) -> LossyLine:
        line = cls(home, host)
        await asyncio.start_unix_server(line._join, home / "run/host.sock")
        return line

    def lose_next(self) -> None:
        """The next bytes from the host do not arrive, and the connection breaks."""
        self._losing = True

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            host_reader, host_writer = await asyncio.open_unix_connection(self._host)
            await asyncio.wait(
                (
                    asyncio.ensure_future(self._pass(reader, host_writer, False)),
                    asyncio.ensure_future(self._pass(host_reader, writer, True)),
                ),
                return_when=asyncio.FIRST_COMPLETED,
            )
            host_writer.close()
        writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                if answers and self._losing:
                    self._losing, self.lost = False, self.lost + 1
                    return
                writer.write(data)
                await writer.drain()


def _variables(process: Path) -> set[bytes]:
    return set((process / "environ").read_bytes().split(b"\0"))


def _discard(fd: int) -> None:
    try:
        if os.read(fd, 1 << 16):
            return
    except OSError:
        pass
    asyncio.get_running_loop().remove_reader(fd)
    os.close(fd)
