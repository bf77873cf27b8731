"""An operator that says whatever it likes on the wire, and a session that writes down every line it was given."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.e2e.harness import Installation, eventually, state_of

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError
from holdfast.testing.workload import command
from holdfast.wire import frames

WAIT_S = 120.0


class Wire(Link):
    """A client with an id of its own choice. What it asks in the ordinary way goes through `request`; anything else through `say`."""

    def __init__(self, hf: Installation, operator: str, client: int) -> None:
        super().__init__(homes.resolve(hf.env), operator, "test", autostart=False)
        self.client, self.sequence = (
            client,
            time.monotonic_ns(),
        )  # nobody before it, with the same id, has used these numbers
        self.connect()

    def say(self, *said: bytes) -> Wire:
        for frame in said:
            self.send(frame)
        return self

    def attach(self, session: str, **fields: Any) -> dict[str, Any]:
        return self.request(
            "attach", **{"session": session, "cols": 80, "rows": 24, "scrollback": 0, **fields}
        )

    def until(self, event: str, **facts: Any) -> dict[str, Any]:
        """The next such event."""
        while True:
            kind, payload = self.receive(WAIT_S)
            if kind == frames.EVENT:
                body = frames.read_json(payload)
                if body["event"] == event and facts.items() <= body.items():
                    return body

    def taken(self, number: int) -> None:
        """Waits until the session has taken that input."""
        while True:
            kind, payload = self.receive(WAIT_S)
            if (kind == frames.OUTPUT and frames.read_output(payload)[2] >= number) or (
                kind == frames.SCREEN and frames.read_screen(payload)[1] >= number
            ):
                return

    def dropped(self) -> HoldfastError:
        """Waits until the host ends the connection, and gives what it said."""
        try:
            while True:
                self.receive(WAIT_S)
        except HoldfastError as e:
            assert self.sock is None, e
            return e


class Lines:
    """A session whose program writes each line it reads into a file."""

    def __init__(self, hf: Installation, name: str) -> None:
        self.hf, self.name, self.path = hf, name, Path(hf.user, f"{name}.lines")
        hf.new(name, "--", *command("lines", str(self.path)))
        hf.wait(name, "text:READY")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def become(self, *lines: str) -> None:
        """Waits until the program has read as many, and compares."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: len(self.lines) >= len(lines), "lines")
        assert self.lines == list(lines)

    def free(self, *wires: Wire) -> None:
        """Gives the turn of these operators back, by another client of each: numbers are not to get mixed up."""
        for wire in wires:
            other = Wire(self.hf, wire.operator, wire.client + 1)
            other.request("turn", session=self.name, act="release")
            other.close()


def crash(hf: Installation) -> None:
    """The host dies without a word, and another one serves."""
    pid = hf.host_pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(pid) in "XZ", "the host's end")
    hf.quick("up", "--detach")
    eventually(lambda: hf.host_pid != pid, "another host")
