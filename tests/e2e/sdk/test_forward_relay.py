"""Ports of a session on another machine, through a real relay (T8, T1)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands.through_relay import invitation
from tests.support.installation import DEADLINE_S, Installation, installation
from tests.support.peers.ports import exchanged, free_port, serve
from tests.support.relays import RelayProcess

EXAMPLE = Path(__file__).parents[3] / "examples/take_port.py"


@pytest.fixture(scope="module")
def way(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RelayProcess, Installation, Installation]]:
    """A relay, a machine, and a client's home that is paired with the machine."""
    with (
        RelayProcess(str(tmp_path_factory.mktemp("relay") / "data")) as relay,
        installation(tmp_path_factory.mktemp("there")) as there,
        installation(tmp_path_factory.mktemp("here")) as here,
    ):
        there.ready("dev")
        token = there.user / "token"
        token.write_text(relay.token())
        there.ok("host", "connect", relay.url, "--token", f"@{token}")
        joined = here.ok("join", invitation(there), "--as", "ann", "--json").json
        here.ok("machines", "rename", joined["as"], "box")
        yield relay, there, here


def test_t8_the_example_takes_a_port_through_a_relay_and_over_restarts(
    way: tuple[RelayProcess, Installation, Installation],
) -> None:
    relay, there, here = way
    port = free_port()
    serve(there, "dev", port)
    program = subprocess.Popen(
        [sys.executable, str(EXAMPLE), "box/dev", str(port)],
        env=here.env,
        cwd=here.user,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    address = program.stdout.readline().strip().removeprefix("http://").removesuffix("/")

    def works() -> None:
        data = bytes(300_000)
        got = asyncio.run(asyncio.wait_for(exchanged(address, b"E", data), DEADLINE_S))
        assert got == data + b"300000"

    works()
    relay.restart()
    works()
    os.kill(there.host_pid, signal.SIGKILL)
    there.ok("up", "--detach")
    works()
    there.ok("end", "dev")
    out, err = program.communicate(timeout=DEADLINE_S)
    assert "the session has ended" in out, err
    opened = [
        e["operator"]
        for e in there.ok("events", "--json").records
        if e["event"] == "forward.opened"
    ]
    assert len(opened) >= 3 and set(opened) == {"ann"}
