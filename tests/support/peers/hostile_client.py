"""An operator that sends arbitrary frames, and a session that writes down every input line."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError
from holdfast.wire import frames
from tests.support.installation import Installation, eventually, state_of
from tests.support.workload import command

WAIT_S = 120.0


class Wire(Link):
    """A client with a chosen id.

    Ordinary requests go through `request`; all other frames through `say`.
    """

    def __init__(self, hf: Installation, operator: str, client: int) -> None:
        super().__init__(homes.resolve(hf.env), operator, "test", autostart=False)
        self.client, self.sequence = (
            client,
            time.monotonic_ns(),
        )  # no earlier client with the same id has used these numbers
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
        """The next event with this name and these facts."""
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
        """Wait until the host ends the connection, and return the error that the host sent."""
        try:
            while True:
                self.receive(WAIT_S)
        except HoldfastError as e:
            assert self.sock is None, e
            return e


class Lines:
    """A session whose program writes each input line into a file."""

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
        """Release the turn of these operators by another client of each, to keep numbers apart."""
        for wire in wires:
            other = Wire(self.hf, wire.operator, wire.client + 1)
            other.request("turn", session=self.name, act="release")
            other.close()


def crash(hf: Installation) -> None:
    """Kill the host without a goodbye, and start the next host."""
    pid = hf.host_pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(pid) in "XZ", "the host's end")
    hf.quick("up", "--detach")
    eventually(lambda: hf.host_pid != pid, "another host")
