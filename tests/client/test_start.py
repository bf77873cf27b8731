"""Clients that find no host start one host, not one each."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client import start
from holdfast.home import Home
from holdfast.transport import unix

CLIENTS = 8


class Machine:
    """A home whose host answers when every client has looked for it three times."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.launched = 0
        self._looks: Counter[int] = Counter()

    def launch(self, *_: Any) -> subprocess.Popen[bytes]:
        self.launched += 1
        return subprocess.Popen(["true"], process_group=0)

    def connect(self, *_: Any) -> io.BytesIO:
        self._looks[threading.get_ident()] += 1
        if not self.launched or sum(n > 2 for n in self._looks.values()) < self.clients:
            raise ConnectionRefusedError
        return io.BytesIO()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = homes.resolve({"HOLDFAST_HOME": str(tmp_path / "hf")})
    homes.prepare(made)
    return made


def on(patch: pytest.MonkeyPatch, machine: Machine) -> Machine:
    patch.setattr(start, "launch", machine.launch)
    patch.setattr(unix, "connect", machine.connect)
    patch.setattr(subprocess.Popen, "poll", lambda self: None)
    return machine


def test_of_many_clients_one_starts_the_host(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = on(monkeypatch, Machine(CLIENTS))
    threads = [threading.Thread(target=start.start_host, args=(home,)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.launched == 1


def test_a_client_that_is_stopped_in_its_turn_delays_no_other_client_for_long(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = on(monkeypatch, Machine(1))
    monkeypatch.setattr(start, "OTHER_CLIENT_S", 0.0)
    with open(os.open(f"{home.run}/start.lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        start.start_host(home)
    assert machine.launched == 1
