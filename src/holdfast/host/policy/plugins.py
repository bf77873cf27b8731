"""Plug-in policies: found by the entry point group `holdfast.policy`, each run in a worker process.

A plug-in is a function that gets an act as a dictionary. The function returns None (no opinion), or
a dictionary with `verdict` (allow, ask, refuse, nothing) and `because`, for `ask` also `by` and
`approvals`. The plug-in runs in a worker process, not in the host. If a plug-in hangs, raises, eats
memory, forks or answers nonsense, only the worker suffers. The host refuses the act with that
reason. A worker that hangs, dies or breaks the protocol is killed, and a new worker starts with the
next act. A plug-in that fails repeatedly is not started for a while, and every act is refused
meanwhile: a policy that cannot be asked has not allowed the act.

This does not confine a malicious plug-in. The worker runs as the host's account, and a child that
leaves the worker's process group outlives the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final, NamedTuple

from holdfast.core.policy.policy import APPROVALS_MAX, KINDS, Decision, Verdict
from holdfast.core.policy.shown import shown
from holdfast.home import programs
from holdfast.host.policy.plugin_worker import LENGTH

GROUP: Final = "holdfast.policy"
ANSWER_S: Final = 3.0  # for one act
START_S: Final = 10.0  # for the worker and the plug-in's imports
# Address space of a worker; the interpreter itself maps about 200 MB.
MEMORY_BYTES: Final = 1024 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024
FAILURES_MAX: Final = 5  # within PATIENCE_S: then the worker is not started for as long
PATIENCE_S: Final = 10.0
BECAUSE_CHARS: Final = 300
_ANSWER_KEYS: Final = {"verdict", "because", "rule", "by", "approvals"}


class Plugin(NamedTuple):
    name: str
    target: str  # module:function
    version: str = ""


def discover(group: str = GROUP) -> list[Plugin]:
    """The installed plug-ins, ordered by name."""
    found = [
        Plugin(e.name, e.value, e.dist.version if e.dist is not None else "")
        for e in metadata.entry_points(group=group)
    ]
    return sorted(found)


class Failed(Exception):
    """The plug-in gave no valid answer."""


class Worker:
    """One plug-in. Any thread may call `ask` and `judge`; the worker takes one act at a time."""

    def __init__(
        self,
        plugin: Plugin,
        answer_s: float = ANSWER_S,
        start_s: float = START_S,
        memory: int = MEMORY_BYTES,
        paths: Sequence[str] = (),
    ) -> None:
        self.plugin = plugin
        self.answer_s, self.start_s, self.memory = answer_s, start_s, memory
        self.paths = list(paths)
        self.starts = 0
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._number = 0
        self._failures: list[float] = []

    def judge(self, question: Mapping[str, object], version: str = "") -> Decision:
        """The verdict of the plug-in; a refusal with the reason if there is no verdict."""
        try:
            return self._decision(self.ask(question), version)
        except Failed as e:
            return self._refused(str(e), version)

    def ask(self, question: Mapping[str, object]) -> object:
        """The answer of the plug-in, of any form; Failed if there is none in time."""
        begun = time.monotonic()
        if not self._lock.acquire(timeout=self.answer_s):
            raise Failed("it was busy for too long")
        try:
            return self._ask(question, begun)
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start the worker before the first act. An error shows up with that act."""
        with self._lock, contextlib.suppress(Failed):
            self._ready()

    def close(self) -> None:
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    # ------------------------------------------------------------ asking

    def _ask(self, question: Mapping[str, object], begun: float) -> object:
        fresh = self._ready()
        self._number += 1
        body = json.dumps({**question, "number": self._number}).encode()
        deadline = (time.monotonic() if fresh else begun) + self.answer_s
        try:
            self._send(LENGTH.pack(len(body)) + body, deadline)
            said = self._receive(deadline)
            if said.get("number") != self._number:
                raise Failed("it answered another question")
        except Failed:
            self._fail()
            raise
        if "error" in said:
            raise Failed(f"it failed: {said['error']}")
        return said.get("answer")

    def _ready(self) -> bool:
        """Make sure that the worker runs. Returns whether this call started the worker."""
        if self._child is not None and self._child.poll() is None:
            return False
        if self._child is not None:
            self._fail()
        now = time.monotonic()
        self._failures = [t for t in self._failures if now - t < PATIENCE_S]
        if len(self._failures) >= FAILURES_MAX:
            raise Failed("it keeps failing and is not started for a while")
        self._spawn()
        try:
            said = self._receive(time.monotonic() + self.start_s)
            if said.get("ready") is not True:
                raise Failed(f"it did not load: {said.get('broken', 'no reason given')}")
        except Failed:
            self._fail()
            raise
        return True

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = programs.module(
                "holdfast.host.policy.plugin_worker",
                str(theirs.fileno()),
                self.plugin.target,
                str(self.memory),
                *self.paths,
            )
            try:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as e:
                ours.close()
                self._failures.append(time.monotonic())
                raise Failed(f"it did not start: {e.strerror}") from e
        ours.setblocking(False)
        self._link = ours
        self.starts += 1

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(select.POLLOUT, deadline)
            try:
                view = view[self._open().send(view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Failed("its process ended") from None

    def _receive(self, deadline: float) -> dict[str, object]:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size, deadline))
        if length > ANSWER_BYTES_MAX:
            raise Failed("its answer is too large")
        try:
            said = json.loads(self._exactly(length, deadline))
        except (ValueError, RecursionError):
            raise Failed("its answer is not JSON") from None
        if not isinstance(said, dict):
            raise Failed("its answer is not JSON of the expected form")
        return said

    def _exactly(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._wait(select.POLLIN, deadline)
            try:
                piece = self._open().recv(length - len(data))
            except BlockingIOError:
                continue
            except OSError:
                piece = b""
            if not piece:
                raise Failed("its process ended")
            data += piece
        return bytes(data)

    def _open(self) -> socket.socket:
        if self._link is None:
            raise Failed("its process ended")
        return self._link

    def _wait(self, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._open(), event)
        if left <= 0 or not poll.poll(left * 1000):
            raise Failed("it did not answer in time")

    def _fail(self) -> None:
        self._failures.append(time.monotonic())
        self._end()

    def _end(self) -> None:
        """Kill the worker and its process group."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._child = None

    # ------------------------------------------------------------ the answer

    def _refused(self, why: str, version: str) -> Decision:
        return Decision(
            Verdict.REFUSE,
            "",
            f"the policy {self.plugin.name} gave no answer: {shown(why)}",
            "",
            self.plugin.name,
            version,
        )

    def _decision(self, said: object, version: str) -> Decision:
        name = self.plugin.name
        if said is None:
            return Decision(Verdict.NOTHING, "", "it has no opinion", "", name, version)
        if not isinstance(said, dict) or set(said) - _ANSWER_KEYS:
            return self._refused("its answer does not have the documented form", version)
        verdict, because, rule = said.get("verdict"), said.get("because", ""), said.get("rule", "")
        by, approvals = said.get("by", []), said.get("approvals", 1)
        fits = (
            verdict in list(Verdict)
            and isinstance(because, str)
            and isinstance(rule, str)
            and isinstance(by, list)
            and all(k in KINDS for k in by)
            and type(approvals) is int
            and 1 <= approvals <= APPROVALS_MAX
        )
        if not fits:
            return self._refused("its answer does not have the documented form", version)
        return Decision(
            Verdict(str(verdict)),
            rule[:BECAUSE_CHARS],
            because[:BECAUSE_CHARS] or f"the policy {name} says so",
            "",
            name,
            version,
            (),
            tuple(by),
            approvals,
        )
