"""A bash session of SWE-ReX as a Holdfast session, without `await`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from typing import Final

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
)
from swerex.runtime import abstract as rex

import holdfast
import holdfast.sync

SIGINT_S: Final = 1.0  # for a program to react to an interrupt; SWE-ReX's own 0.2 s kills too early
KILL_S: Final = 30.0  # for the prompt after SIGKILL
NOT_ALLOWED: Final = 126  # the exit code of a command that the policy refused; it did not start

_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")
_PROMPT = re.compile(rb"\x1b\]133;[AD]")  # the shell's mark before a prompt


class Shell:
    """A bash session of SWE-ReX."""

    def __init__(self, session: holdfast.sync.Session, hold: float | None) -> None:
        self.session: Final = session
        self._hold = hold
        self._notice = ""  # of a program that an interrupt had to kill, for the next observation

    def run(self, action: rex.BashAction) -> rex.BashObservation:
        """Runs a command until it ends, or until its output has an expected text."""
        _check_syntax(action.command)
        observed = rex.BashObservation(exit_code=0)
        if action.command.strip():
            try:
                observed = self._run(action)
            except (holdfast.Busy, holdfast.TurnHeld, holdfast.Unfinished) as e:
                raise CommandTimeoutError(f"{action.command!r} has not begun: {e.message}") from e
            except (holdfast.GateRefused, holdfast.Held) as e:
                observed = _refused(e)
        observed.output = self._noticed() + observed.output
        code = observed.exit_code
        if action.check == "ignore":
            observed.exit_code = None
        elif action.check == "raise" and code is None and not observed.expect_string:
            raise NoExitCodeError(f"{action.command!r}: {observed.failure_reason}")
        elif action.check == "raise" and code:
            raise failed(action.command, code, observed.output, action.error_msg)
        return observed

    def _run(self, action: rex.BashAction) -> rex.BashObservation:
        running = self.session.start(action.command, timeout=action.timeout, hold=self._hold)
        try:
            data = b""
            for chunk in running if action.expect else ():
                data += chunk.data
                if found := _expected(_plain(data), action.expect):
                    return rex.BashObservation(output=found[0], expect_string=found[1])
            done = running.wait()
        finally:
            running.leave()
        if done.state == "running":
            raise _timeout(action)
        why = "the session has ended" if done.state == "ended" else ""
        return rex.BashObservation(
            output=_plain(done.data), exit_code=done.exit_code, failure_reason=why
        )

    def type(self, action: rex.BashAction) -> rex.BashObservation:
        """Types a line into an interactive program, and waits for a text or the shell's prompt."""
        line = action.command.removesuffix("\n")
        try:
            sent = self.session.send(line, enter=True, hold=self._hold)
        except (holdfast.GateRefused, holdfast.Held) as e:
            return _refused(e)
        start = sent.offset or 0
        texts = [f"text:{one}" for one in action.expect]
        try:
            since = start if texts else None
            self.session.wait("idle", *texts, timeout=action.timeout, since=since)
        except holdfast.TimedOut as e:
            raise _timeout(action) from e
        text = _plain(_before_prompt(self._output(start)))
        output, matched = _expected(text, action.expect) or (text, "")
        if (echo := output.lstrip("\n")).startswith(line):
            output = echo.removeprefix(line).removeprefix("\n")
        return rex.BashObservation(
            output=self._noticed() + output, exit_code=0, expect_string=matched
        )

    def interrupt(self, timeout: float, retries: int) -> rex.BashObservation:
        """Presses Ctrl-C, and kills the program in the foreground if that does not help.

        SWE-agent ignores this observation. So the next one begins with a notice that a program was
        killed.
        """
        start = self.session.send(keys=["C-c"]).offset or 0
        for again in range(max(1, retries)):
            if again:
                self.session.send(keys=["C-c"])
            if self._prompt(max(timeout, SIGINT_S)):
                break
        else:
            self._kill()
            if not self._prompt(KILL_S):
                raise CommandTimeoutError("the shell has no prompt after its program was killed")
        output = _plain(_before_prompt(self._output(start)))
        return rex.BashObservation(output=output.strip(), exit_code=0)

    def _prompt(self, timeout: float) -> bool:
        try:
            self.session.wait("idle", timeout=timeout)
        except holdfast.TimedOut:
            return False
        return True

    def _kill(self) -> None:
        graph = self.session.graph()
        if graph.terminal is None or graph.terminal.foreground.pgrp is None:
            return
        program = graph.terminal.foreground
        for process in graph.raw["processes"]:
            if process["pgrp"] == program.pgrp:
                self.session.signal(process["pid"], "KILL")
        self._notice = f"holdfast: killed {program.command}, which ignored Ctrl-C\n"

    def _output(self, start: int) -> bytes:
        return b"".join(chunk.data for chunk in self.session.read(start))

    def _noticed(self) -> str:
        notice, self._notice = self._notice, ""
        return notice

    def end(self) -> None:
        try:
            self.session.end()
        except holdfast.NotFound:  # its shell has exited
            pass


def _check_syntax(command: str) -> None:
    """Lets bash parse the command without running it, as SWE-ReX does."""
    seen = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True)
    if seen.returncode:
        facts = {"bash_stdout": seen.stdout, "bash_stderr": seen.stderr}
        raise BashIncorrectSyntaxError(f"{command!r}: {seen.stderr}", extra_info=facts)


def _expected(text: str, patterns: Iterable[str]) -> tuple[str, str] | None:
    """The text before the first match of a pattern, and the pattern."""
    found = [(match.start(), one) for one in patterns if (match := re.search(one, text))]
    return (text[: min(found)[0]], min(found)[1]) if found else None


def _before_prompt(data: bytes) -> bytes:
    return _PROMPT.split(data, maxsplit=1)[0]


def _plain(data: bytes) -> str:
    return _CONTROL.sub("", data.decode("utf-8", "backslashreplace")).replace("\r\n", "\n")


def _refused(why: holdfast.HoldfastError) -> rex.BashObservation:
    """A refusal is an observation: the model reads it and can choose another command."""
    text = f"holdfast: {why.message}\n"
    return rex.BashObservation(output=text, exit_code=NOT_ALLOWED, failure_reason=why.message)


def _timeout(action: rex.BashAction) -> CommandTimeoutError:
    return CommandTimeoutError(f"{action.command!r} runs for more than {action.timeout} seconds")


def failed(command: object, code: int, output: str, message: str) -> NonZeroExitCodeError:
    text = f"{command!r} failed with exit code {code}. Here is the output:\n{output!r}"
    return NonZeroExitCodeError(f"{message}: {text}" if message else text)
