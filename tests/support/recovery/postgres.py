"""A PostgreSQL server of the test: in a temporary directory, as an ordinary user, on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import eventually
from tests.support.ordinary_user import ordinary_user

DATABASE = "postgres"


def _programs() -> Path:
    """The newest PostgreSQL; Debian keeps the server's programs out of PATH."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if found:
        return max(found, key=lambda path: float(path.parts[-3])).parent
    if (path := shutil.which("postgres")) is None or shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed here")
    return Path(path).parent


class Postgres:
    def __init__(self, programs: Path, place: Path, port: int, account: dict[str, Any]) -> None:
        self.programs, self.place, self.port = programs, place, port
        self._account = account
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        made = [str(self.programs / "initdb"), "-D", f"{self.place}/data", "-A", "trust"]
        self._run([*made, "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8"])
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off"
        argv = [str(self.programs / "postgres"), "-D", f"{self.place}/data", "-k", str(self.place)]
        with open(self.place / "log", "wb") as log:
            self._server = subprocess.Popen(
                [*argv, *options.split()], stdout=log, stderr=log, cwd="/", **self._account
            )
        eventually(lambda: self._ready() or None, "PostgreSQL to be ready")

    def _run(self, argv: list[str]) -> None:
        subprocess.run(argv, check=True, capture_output=True, cwd="/", **self._account)

    def _ready(self) -> bool:
        assert self._server is not None and self._server.poll() is None, self.log
        argv = [str(self.programs / "pg_isready"), "-q", "-h", str(self.place)]
        return subprocess.run([*argv, "-p", str(self.port)]).returncode == 0

    def close(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={DATABASE}"

    @property
    def log(self) -> str:
        return (self.place / "log").read_text(errors="replace")

    def sql(self, text: str) -> list[list[str]]:
        """The rows of the last statement; the error's text if it failed."""
        argv = ["psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", str(self.place)]
        done = subprocess.run(
            [*argv, "-p", str(self.port), "-U", "postgres", DATABASE],
            input=text,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return [line.split("|") for line in done.stdout.splitlines()]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    programs = _programs()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg")))
        account: dict[str, Any] = {}
        if os.getuid() == 0:  # the server refuses to run as root
            user = stack.enter_context(ordinary_user())
            os.chown(place, user.uid, user.gid)
            account = {"user": user.uid, "group": user.gid, "extra_groups": []}
        made = Postgres(programs, place, _free_port(), account)
        stack.callback(made.close)
        made.start()
        yield made
