"""A real shell with Holdfast's hooks on a real PTY, driven the way the host drives it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.core.screen.onlcr import OnlcrInverse
from holdfast.core.session.shell_marks import (
    Effect,
    Mark,
    MarkScanner,
    PromptShown,
    RunDone,
    RunStarted,
    Shell,
)
from holdfast.host.shell import Launch, SessionDirectories, clear_run, prepare, write_run

DEADLINE_S = 120.0
NONCE = "0123456789abcdefNONCE"
ARGV = {"bash": ["bash"], "zsh": ["zsh"], "dash": ["dash"]}
MARKS = re.compile(rb"\x1b\](?:7717|133);[^\x07]*\x07")


@dataclass(frozen=True)
class Result:
    exit: int
    output: bytes  # as the program wrote it
    raw: bytes  # as the bytes passed the terminal
    cut_short: bool


class ShellSession:
    """Reads all output of the shell, scans it for marks and keeps the state they drive."""

    def __init__(
        self,
        argv: list[str],
        directory: Path,
        home: Path,
        *,
        env: dict[str, str] | None = None,
        login: bool = False,
        edit: Callable[[Path], None] | None = None,
    ) -> None:
        for path in (directory, home):
            path.mkdir(mode=0o700, exist_ok=True)
        zshrc = home / ".zshrc"
        if not zshrc.exists():
            zshrc.touch()  # otherwise zsh asks a new user for a configuration
        base = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        self.directory = directory
        writable = directory / "own"
        writable.mkdir(mode=0o700, exist_ok=True)
        self.directories = SessionDirectories.as_outside(directory, writable)
        whole = {**base, **(env or {})}
        self.launch: Launch = prepare(argv, self.directories, NONCE, whole, login)
        if edit is not None:
            edit(directory)
        self.scanner = MarkScanner(NONCE)
        self.shell = Shell(marks_start=self.launch.kind != "posix")
        self.marks: list[Mark] = []
        self.effects: list[Effect] = []
        self.stream = bytearray()
        self.runs = 0
        self.ended = False
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.closerange(3, 1024)  # descriptors that the test runner inherited
                os.chdir(home)
                os.execvpe(self.launch.argv[0], self.launch.argv, self.launch.env)
            finally:
                os._exit(99)
        os.set_blocking(self.fd, False)

    def close(self) -> None:
        """End the shell and all programs left in the session, each by pid."""
        os.close(self.fd)
        for pid in self._members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not self.ended:
            os.waitpid(self.pid, 0)

    def _members(self) -> list[int]:
        members = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path("/proc", entry, "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(stat.rpartition(")")[2].split()[3]) == self.pid:
                    members.append(int(entry))
        return members

    def send(self, data: bytes) -> None:
        self.shell.typed(data, time.monotonic())
        while data:
            data = data[os.write(self.fd, data) :]

    def _over(self, what: str) -> NoReturn:
        """Report how the shell ended. bash 5.2.15 can corrupt memory at an unfinished `$(`."""
        _, status = os.waitpid(self.pid, 0)
        self.ended = True
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
            pytest.skip(
                f"{self.launch.argv[0]} aborted: a defect of this shell, not of the rc file"
            )
        tail = bytes(self.stream[-800:])
        raise AssertionError(f"the shell ended ({status}); no {what}; its last output: {tail!r}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Reads until the condition holds."""
        end = time.monotonic() + DEADLINE_S
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"no {what}; the end of the stream: {bytes(self.stream[-800:])!r}"
            poll.poll(left * 1000)
            try:
                chunk = os.read(self.fd, 65536)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            if not chunk:
                self._over(what)
            for mark in self.scanner.feed(len(self.stream), chunk):
                self.marks.append(mark)
                self.effects += self.shell.handle(mark, time.monotonic())
            self.stream += chunk

    def exit_code(self) -> int:
        """Waits for the shell itself to end."""
        end = time.monotonic() + DEADLINE_S
        while True:
            select.select([self.fd], [], [], 0.05)
            try:
                while chunk := os.read(self.fd, 65536):
                    self.stream += chunk
            except OSError:
                pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended = True
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, "the shell did not end"

    def prompt(self) -> None:
        self.wait(lambda: self.shell.at_prompt and not self.shell.line_dirty, "prompt")

    def line(self, text: str) -> bytes:
        """Type a line as a person does; return the output until the next prompt, without marks."""
        self.prompt()
        start, seen = len(self.stream), self._count(PromptShown)
        self.send(text.encode() + b"\r")
        self.wait(lambda: self._count(PromptShown) > seen, "prompt after a line")
        prompts = [effect for effect in self.effects if isinstance(effect, PromptShown)]
        return MARKS.sub(b"", bytes(self.stream[start : prompts[seen].offset]))

    def start(self, text: str) -> str:
        """Begin a run and wait until the shell has started."""
        self.prompt()
        self.runs += 1
        run = f"r{self.runs}"
        assert self.launch.kind is not None
        self.send(write_run(self.directories, self.launch.kind, run, text))
        self.wait(
            lambda: any(isinstance(e, RunStarted) and e.run == run for e in self.effects),
            f"start of {text[:80]!r}",
        )
        return run

    def finish(self, run: str) -> Result:
        self.wait(
            lambda: any(isinstance(e, RunDone) and e.run == run for e in self.effects),
            f"end of run {run}",
        )
        done = next(e for e in self.effects if isinstance(e, RunDone) and e.run == run)
        raw = bytes(self.stream[done.output_start : done.output_end])
        inverse = OnlcrInverse()
        clear_run(self.directories)
        return Result(done.exit, inverse.feed(raw) + inverse.close(), raw, done.cut_short)

    def run(self, text: str) -> Result:
        return self.finish(self.start(text))

    def expect(self, data: bytes) -> None:
        """In the output of the open run."""
        start = self.shell.run_output_start
        assert start is not None
        self.wait(lambda: data in self.stream[start:], repr(data))

    def in_foreground(self, program: str) -> None:
        """Wait until the program has the terminal: before the exec a shell may lose a Ctrl-C."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                if Path(f"/proc/{os.tcgetpgrp(self.fd)}/comm").read_text().strip() == program:
                    return
            except (FileNotFoundError, ProcessLookupError):
                pass
            assert time.monotonic() < end, f"{program} did not come to the foreground"
            select.select([self.fd], [], [], 0.01)

    def _count(self, kind: type[PromptShown]) -> int:
        return sum(isinstance(effect, kind) for effect in self.effects)
