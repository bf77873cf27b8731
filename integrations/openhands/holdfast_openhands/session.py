"""A terminal session of OpenHands that is a Holdfast session.

It keeps the contract of OpenHands' own `TerminalSession`: timeouts, continued output, keys, and the
texts that the tool's description teaches the model. Its commands are acts of an operator with the
exit code that the shell reports. OpenHands reads prompts from the screen instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from openhands.sdk.utils import maybe_truncate
from openhands.tools.terminal.constants import TIMEOUT_MESSAGE_TEMPLATE
from openhands.tools.terminal.definition import TerminalAction, TerminalObservation
from openhands.tools.terminal.env import build_terminal_env
from openhands.tools.terminal.metadata import CmdOutputMetadata
from openhands.tools.terminal.terminal import terminal_session as upstream
from openhands.tools.terminal.terminal.interface import (
    SUPPORTED_SPECIAL_KEYS,
    TerminalSessionBase,
    parse_ctrl_key,
)
from openhands.tools.terminal.timeout_policy import foreground_timeout_rejection_for
from openhands.tools.terminal.utils.command import split_bash_commands
from pydantic import BaseModel, ConfigDict

import holdfast
from holdfast_openhands.command import Command

T = TypeVar("T")
Status = upstream.TerminalCommandStatus
START_S: Final = 60.0  # for the first prompt of a new session
SIZE: Final = (256, 200)  # columns and lines, as OpenHands gives to tmux
STILL_RUNS: Final = (
    "The previous command is still running, and the terminal takes no other before its end. "
    "Set `is_input` to interact with it"
)
MANY: Final = (
    "Cannot execute multiple commands at once.\n"
    "Run each command separately, or chain them with && or ;\nProvided commands:\n"
)


class HoldfastConfig(BaseModel):
    """Options of the tool, the executor and the session."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operator: str | None = None
    """The identity to act as; by default `HOLDFAST_AS`, else the login name."""
    home: str | None = None
    """The Holdfast installation; by default `HOLDFAST_HOME`, else the XDG directories."""
    machine: str = ""
    """A paired machine; the empty name is the machine here."""
    contained: bool | None = None
    """Whether a new session is contained; by default for agents and services."""
    name: str | None = None
    """The name of the session. A running session of that name is used again."""
    keep: bool = False
    """Leave the session running when the tool closes."""
    hold: float | None = None
    """Seconds to wait for an approval, if the policy asks for one."""


class HoldfastSession(TerminalSessionBase):
    """The session: one command at a time."""

    def __init__(
        self,
        work_dir: str,
        username: str | None = None,
        no_change_timeout_seconds: int | None = None,
        *,
        env: Mapping[str, str] | None = None,
        config: HoldfastConfig | None = None,
    ) -> None:
        """`username` is ignored: a session has the account of its host."""
        super().__init__(str(work_dir), username, no_change_timeout_seconds)
        self.prev_status: upstream.TerminalCommandStatus | None = None
        self._env, self._config = env, config or HoldfastConfig()
        self._command: Command | None = None
        self._loop = asyncio.new_event_loop()
        self._left = False

    # ------------------------------------------------------------ the calls of OpenHands

    def initialize(self) -> None:
        threading.Thread(target=self._loop.run_forever, name="holdfast", daemon=True).start()
        self._do(self._start())
        self._initialized = True

    def execute(self, action: TerminalAction) -> TerminalObservation:
        if not self._initialized:
            raise RuntimeError("the session is not initialized")
        return self._do(self._execute(action))

    def interrupt(self) -> bool:
        async def press() -> bool:
            if self._command is None or self._command.over:
                return False
            await self._command.interrupt()
            return True

        return self._do(press())

    def is_running(self) -> bool:
        return self._command is not None and not self._command.over

    def close(self, end: bool = False) -> None:
        """Ends the session, unless the option `keep` says otherwise; `end`: in any case."""
        if self._initialized and not self._left and not sys.is_finalizing():
            self._closed = self._left = True
            self._do(self._leave(end or not self._config.keep))
            self._loop.call_soon_threadsafe(self._loop.stop)

    def export(self, variables: Mapping[str, str]) -> None:
        """Sets variables of the shell. Their values stay out of the record."""
        self._do(self._export(variables))

    # ------------------------------------------------------------ in the thread of the client

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        config = self._config
        self._client = await holdfast.connect(operator=config.operator, home=config.home)
        env = {"GIT_PAGER": "cat", "PAGER": "cat", **build_terminal_env(self._env)}
        self._session = await self._client.sessions.new(
            config.name,
            command=["bash"],
            cwd=self.work_dir,
            env=env if not config.machine else self._env,
            size=SIZE,
            contained=config.contained,
            exist_ok=config.name is not None,
            machine=config.machine,
        )
        await self._session.wait("idle", timeout=START_S)
        self._pid = (await self._session.info()).pid

    async def _leave(self, end: bool) -> None:
        if self._command is not None:
            await self._command.leave()
        if end:
            with contextlib.suppress(holdfast.NotFound):  # its shell has exited
                await self._session.end()
        await self._client.close()

    async def _export(self, variables: Mapping[str, str]) -> None:
        path = f"/tmp/.holdfast-{threading.get_ident():x}-{id(variables):x}"
        quoted = (f"export {name}={_quoted(value)}\n" for name, value in variables.items())
        await self._session.files.write_bytes(path, "".join(quoted).encode(), mode=0o600)
        await self._session.run(f". {path}; rm -f {path}")

    async def _execute(self, action: TerminalAction) -> TerminalObservation:
        text = action.command.strip()
        rejected = foreground_timeout_rejection_for(
            command=text, is_input=action.is_input, timeout=action.timeout
        )
        if rejected is not None:
            return _error(text, rejected)
        if self._command is None and not text:
            return _error(text, "No previous running command to retrieve logs from.")
        if self._command is None and action.is_input:
            return _error(text, "No previous running command to interact with.")
        if len(parts := split_bash_commands(text)) > 1:
            listed = "\n".join(f"({number}) {one}" for number, one in enumerate(parts, 1))
            return _error(text, MANY + listed)
        rest = ""
        if text and not action.is_input:
            if self._command is not None:
                if not self._command.over:
                    return self._still_runs(text)
                rest = self._command.take()[0]
            self._command = Command(self._session, text, self._config.hold)
        assert self._command is not None
        if text and action.is_input and not self._command.over:
            await self._input(text)
        if (limit := await self._watched(self._command, action.timeout)) is not None:
            return self._timed_out(text, rest, action.timeout is not None, limit)
        return await self._completed(text, rest, action.is_input)

    async def _input(self, text: str) -> None:
        assert self._command is not None
        self._command.news.clear()
        key = parse_ctrl_key(text)
        if key == "C-c":
            await self._command.interrupt()
        elif key or text.upper() in SUPPORTED_SPECIAL_KEYS:
            await self._session.send(keys=[key or {"BS": "BSpace"}.get(text.upper(), text)])
        else:
            await self._session.send(text, enter=True)

    async def _watched(self, command: Command, timeout: float | None) -> float | None:
        """Waits for the end of the command; gives the limit in seconds that came first."""
        limit = float(self.no_change_timeout_seconds) if timeout is None else timeout
        end = self._loop.time() + limit
        while not command.over:
            command.news.clear()
            try:
                async with asyncio.timeout_at(end):
                    await command.news.wait()
            except TimeoutError:
                return limit
            if timeout is None:
                end = self._loop.time() + limit
        return None

    # ------------------------------------------------------------ observations

    def _timed_out(self, text: str, rest: str, hard: bool, limit: float) -> TerminalObservation:
        self.prev_status = Status.HARD_TIMEOUT if hard else Status.NO_CHANGE_TIMEOUT
        why = "timed out after" if hard else "has no new output after"
        seconds = limit if hard else self.no_change_timeout_seconds
        suffix = f"\n[The command {why} {seconds} seconds. {TIMEOUT_MESSAGE_TEMPLATE}]"
        return self._unfinished(text, rest, suffix)

    def _still_runs(self, text: str) -> TerminalObservation:
        suffix = f'\n[Your command "{text}" is NOT executed. {STILL_RUNS}: '
        return self._unfinished(text, "", f"{suffix}{TIMEOUT_MESSAGE_TEMPLATE}]", error=True)

    def _unfinished(
        self, text: str, rest: str, suffix: str, error: bool = False
    ) -> TerminalObservation:
        command = self._command
        assert command is not None
        prefix = "[Below is the output of the previous command.]\n" if command.seen else ""
        command.seen = True
        note = f"\n[holdfast: {command.note}]" if command.note else ""
        metadata = CmdOutputMetadata(prefix=prefix, suffix=note + suffix)
        return _observation(text, rest + command.take()[0], metadata, error)

    async def _completed(self, text: str, rest: str, is_input: bool) -> TerminalObservation:
        command, self._command = self._command, None
        assert command is not None
        self.prev_status = Status.COMPLETED
        output, lines = command.take()
        if is_input:
            output = output.lstrip().removeprefix(text).lstrip()
        code = -1 if command.code is None else command.code
        prefix = (
            f"[Previous command outputs are truncated. Showing the last {lines} lines of the "
            "output below.]\n"
            if lines
            else ""
        )
        key = parse_ctrl_key(text) if is_input else None
        sent = f" CTRL+{key[-1].upper()} was sent." if key else ""
        suffix = f"\n[The command completed with exit code {code}.{sent}]"
        if command.ended:
            self._closed = True  # the executor makes a new session
            suffix += "\n[holdfast: the session has ended]"
        else:
            self._cwd = await self._directory()
        if command.note:
            suffix = f"\n[holdfast: {command.note}]"
        metadata = CmdOutputMetadata(
            exit_code=code, working_dir=self._cwd, prefix=prefix, suffix=suffix
        )
        return _observation(text, rest + output, metadata, command.refused)

    async def _directory(self) -> str:
        """The present directory of the shell."""
        for process in (await self._session.graph()).raw["processes"]:
            if process["pid"] == self._pid and process["cwd"]:
                return str(process["cwd"])
        return self._cwd


def _observation(
    command: str, text: str, metadata: CmdOutputMetadata, error: bool
) -> TerminalObservation:
    return TerminalObservation.from_text(
        command=command,
        text=maybe_truncate(text.rstrip(), truncate_after=upstream.MAX_CMD_OUTPUT_SIZE),
        metadata=metadata,
        exit_code=metadata.exit_code,
        is_error=error,
    )


def _error(command: str, text: str) -> TerminalObservation:
    return TerminalObservation.from_text(command=command, text=text, is_error=True)


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
