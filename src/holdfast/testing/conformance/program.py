"""The client program under test: one JSON command per line in, one JSON answer per line out."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.testing.conformance.report import WAIT_S, Failed, Skipped

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

ANSWER_BYTES: Final = 16 << 20  # of one line
LEAVE_S: Final = 5.0  # for the program to exit after the end of its input


@dataclass(frozen=True)
class Answer:
    """The answer to a command: `body` of a success, or the error's name, code and advice."""

    body: Json
    error: Json | None

    def result(self) -> Json:
        if self.error is not None:
            raise Failed(f"the client reports {self.error}")
        return self.body

    def failure(self) -> Json:
        if self.error is None:
            raise Failed(f"the client reports success where the host refused: {self.body}")
        return self.error


class Program:
    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number, self._buffer = 0, b""

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def do(self, command: str, **fields: object) -> None:
        """Sends a command, without waiting for the answer."""
        self._number += 1
        words = json.dumps({"id": self._number, "do": command, **fields})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(words.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as e:
            raise Failed(f"the client program has ended: {e.strerror}") from e

    def answer(self) -> Answer:
        """The answer to the last command; Skipped if the program does not offer the command."""
        line = self._line()
        try:
            body = json.loads(line)
        except ValueError as e:
            raise Failed(f"the client program wrote {line[:80]!r}, which is no JSON") from e
        if not isinstance(body, dict) or body.get("id") != self._number:
            raise Failed(f"the client program wrote {line[:80]!r}, no answer to {self._number}")
        if body.get("unsupported") is True:
            raise Skipped("the client does not offer this")
        if body.get("ok") is True:
            return Answer(body, None)
        error = body.get("error")
        if body.get("ok") is not False or not isinstance(error, dict) or "name" not in error:
            raise Failed("an answer has ok true, or ok false with an error that has a name")
        return Answer({}, error)

    def _line(self) -> bytes:
        fd, end = self.fileno(), time.monotonic() + WAIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Failed(f"the client program gave no answer within {WAIT_S:g} s")
                data = os.read(fd, 1 << 16)
                if not data or len(self._buffer) > ANSWER_BYTES:
                    raise Failed("the client program ended without an answer")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
