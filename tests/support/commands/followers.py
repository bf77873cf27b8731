"""Readers of commands with `--follow --json`."""

from __future__ import annotations

import json
import queue
import signal
import threading
from typing import Any

from tests.support.installation import DEADLINE_S, Installation


class Following:
    """A command with `--follow --json` beside the test. `notify` follows without the option."""

    def __init__(self, hf: Installation, command: str, *args: str) -> None:
        follow = () if command == "notify" else ("--follow",)
        self.process = hf.start(command, *args, *follow, "--json")
        self.lines: list[Any] = []  # all that were read
        self._lines: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self) -> Any:
        found = self._lines.get(timeout=DEADLINE_S)
        assert found is not None, self.process.communicate()
        self.lines.append(found)
        return found

    def ends(self) -> int:
        while (found := self._lines.get(timeout=DEADLINE_S)) is not None:
            self.lines.append(found)
        return self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        """Ends the command as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.ends()


class Follower(Following):
    """`holdfast attention --follow --json` beside the test."""

    def __init__(self, hf: Installation, *args: str) -> None:
        super().__init__(hf, "attention", *args)

    def until(self, kind: str, **facts: Any) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = self.next()
            if found["kind"] == kind and facts.items() <= found.items():
                return found
