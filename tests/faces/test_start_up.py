"""The modules that a command loads: interpreter start and imports are most of its time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire import frames
from tests.support.commands.start_up import argv, environ
from tests.support.peers.scripted_host import Peer, host

SESSION: dict[str, Any] = {
    "id": "s",
    "name": "work",
    "state": "live",
    "exit_code": None,
    "turn": None,
    "operators": [],
    "created": 1.0,
    "idle_s": 2.0,
    "size": {"cols": 80, "rows": 24},
    "output": {"start": 0, "end": 9},
    "liveness": {"process": "running"},
    "machine": "here",
}
RUN: dict[str, Any] = {"exit_code": 0, "output": {"start": 0, "end": 0}, "shaped": []}
VIEW: dict[str, Any] = {"lines": ["$ "], "text": "$ "}
SAVED: dict[str, Any] = {
    "name": "work",
    "saved": {
        "checkpoint": "cp-000000000001",
        "bytes": 1,
        "added": 1,
        "frozen_ms": 1.0,
        "ended": False,
        "losses": [],
        "copies": [],
    },
}
RESTORED: dict[str, Any] = {
    "name": "work",
    "epoch": 2,
    "at": 1.0,
    "checkpoint": "cp-000000000001",
    "losses": [],
    "connections": [],
    "replaced": [],
}


def answers(body: dict[str, Any]) -> Callable[[Peer], None]:
    def play(peer: Peer) -> None:
        peer.welcome()
        while True:
            number, _ = peer.request()
            peer.sock.sendall(frames.reply(number, body))

    return play


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["ls"], {"sessions": [SESSION]}),
        (["ls", "--all", "--json"], {"sessions": [SESSION]}),
        (["run", "work", "--", "true"], RUN),
        (["view", "work"], VIEW),
        (["checkpoint", "work"], SAVED),
        (["restore", "work"], RESTORED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_everyday_command_loads_nothing_heavy(
    words: list[str], body: dict[str, Any], tmp_path: Path
) -> None:
    with host(tmp_path, answers(body)):
        done = subprocess.run(
            argv(*words),
            env=environ({"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_AS": "ann"}),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert done.stderr == "0 []\n", done
