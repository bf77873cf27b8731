"""The runtime and the deployment that SWE-ReX and SWE-agent expect.

A bash session of SWE-ReX is a Holdfast session. It survives the harness, people can attach to it,
and the record attributes each act.

SWE-agent calls each coroutine in an event loop of its own (`asyncio.run` per call). The adapter
therefore uses `holdfast.sync`, which belongs to no event loop, in worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import threading
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime import abstract as rex

import holdfast
import holdfast.sync
from holdfast_swerex.shell import SIGINT_S, Shell, failed

START_S: Final = 60.0  # for the first prompt of a new session


class HoldfastConfig(BaseModel):
    """Options of `HoldfastRuntime` and `HoldfastDeployment`."""

    model_config = ConfigDict(extra="forbid")

    operator: str | None = None
    """The identity to act as; by default `HOLDFAST_AS`, else the login name."""
    home: str | None = None
    """The Holdfast installation; by default `HOLDFAST_HOME`, else the XDG directories."""
    machine: str = ""
    """A paired machine; the empty name is the machine here."""
    cwd: str | None = None
    """The directory of new sessions; by default that of this process."""
    contained: bool | None = None
    """Whether new sessions are contained; by default for agents and services."""
    name: str | None = None
    """Sessions are called NAME-SESSION. A running session of that name is used again."""
    keep: bool = False
    """Leave the sessions running when the runtime closes."""
    hold: float | None = None
    """Seconds to wait for an approval, if the policy asks for one."""

    def get_deployment(self) -> HoldfastDeployment:
        return HoldfastDeployment(**self.model_dump())


class HoldfastRuntime(rex.AbstractRuntime):
    """The runtime: bash sessions, commands and files of one machine."""

    def __init__(self, *, logger: logging.Logger | None = None, **options: Any) -> None:
        self.config: Final = HoldfastConfig(**options)
        self.logger = logger or logging.getLogger("holdfast-swerex")
        self._lock = threading.RLock()  # of the fields below
        self._one_command = threading.Lock()  # `execute` has one session
        self._client: holdfast.sync.Client | None = None
        self._shells: dict[str, Shell] = {}
        self._own: Shell | None = None
        self._scratch = ""

    # ------------------------------------------------------------ the calls of SWE-ReX

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        def ask() -> rex.IsAliveResponse:
            try:
                self._connected().sessions.list(self.config.machine)
            except holdfast.HoldfastError as e:
                return rex.IsAliveResponse(is_alive=False, message=str(e))
            return rex.IsAliveResponse(is_alive=True)

        return await asyncio.to_thread(ask)

    async def create_session(
        self, request: rex.CreateBashSessionRequest
    ) -> rex.CreateBashSessionResponse:
        return await asyncio.to_thread(self._create, request)

    async def run_in_session(
        self, action: rex.BashAction | rex.BashInterruptAction
    ) -> rex.BashObservation:
        shell = self._shell(action.session)
        if isinstance(action, rex.BashInterruptAction):
            return await asyncio.to_thread(shell.interrupt, action.timeout, action.n_retry)
        if action.is_interactive_command or action.is_interactive_quit:
            return await asyncio.to_thread(shell.type, action)
        return await asyncio.to_thread(shell.run, action)

    async def close_session(
        self, request: rex.CloseBashSessionRequest
    ) -> rex.CloseBashSessionResponse:
        shell = self._shell(request.session)
        await asyncio.to_thread(shell.end)
        del self._shells[request.session]
        return rex.CloseBashSessionResponse()

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        return await asyncio.to_thread(self._execute, command)

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        def read() -> rex.ReadFileResponse:
            try:
                data = self._files().read_bytes(request.path)
            except holdfast.NotFound as e:
                raise FileNotFoundError(e.message) from e
            text = data.decode(request.encoding or "utf-8", request.errors or "strict")
            return rex.ReadFileResponse(content=text)

        return await asyncio.to_thread(read)

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        data = request.content.encode()
        await asyncio.to_thread(lambda: self._files().write_bytes(request.path, data, parents=True))
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        await asyncio.to_thread(self._upload, request.source_path, request.target_path)
        return rex.UploadResponse()

    async def close(self) -> rex.CloseResponse:
        await asyncio.to_thread(self._close)
        return rex.CloseResponse()

    # ------------------------------------------------------------ in worker threads

    def _shell(self, name: str) -> Shell:
        if name not in self._shells:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._shells[name]

    def _connected(self) -> holdfast.sync.Client:
        with self._lock:
            if self._client is None:
                self._client = holdfast.sync.connect(
                    operator=self.config.operator, home=self.config.home
                )
            return self._client

    def _open(self, word: str) -> Shell:
        """The running session NAME-WORD, or a new one."""
        sessions, config = self._connected().sessions, self.config
        name = None if config.name is None else f"{config.name}-{word}"
        try:
            if name is None:
                raise holdfast.NotFound("sessions without a name are new")
            found = sessions.get(f"{config.machine}/{name}" if config.machine else name)
        except holdfast.NotFound:
            found = sessions.new(
                name,
                command=["bash"],
                cwd=config.cwd,
                contained=config.contained,
                machine=config.machine,
            )
            found.wait("idle", timeout=START_S)
        return Shell(found, config.hold)

    def _create(self, request: rex.CreateBashSessionRequest) -> rex.CreateBashSessionResponse:
        with self._lock:
            if request.session in self._shells:
                raise SessionExistsError(f"session {request.session!r} already exists")
            shell = self._shells[request.session] = self._open(request.session)
        output = ""
        for path in request.startup_source:
            action = rex.BashAction(command=f"source {path}", check="silent")
            action.timeout = max(request.startup_timeout, START_S)
            output += shell.run(action).output
        return rex.CreateBashSessionResponse(output=output)

    def _files(self) -> holdfast.sync.Files:
        """Files as the first session sees them: a contained session has a root of its own."""
        with self._lock:
            shell = next(iter(self._shells.values()), None) or self._side()
        return shell.session.files

    def _side(self) -> Shell:
        """The session of `execute`, which SWE-ReX runs outside of its sessions."""
        with self._lock:
            if self._own is None:
                self._own = self._open("execute")
            return self._own

    def _execute(self, command: rex.Command) -> rex.CommandResponse:
        with self._one_command:
            side = self._side()
            if not self._scratch:
                made = side.run(rex.BashAction(command="mktemp -d"))
                self._scratch = made.output.strip()
            out, err = f"{self._scratch}/out", f"{self._scratch}/err"
            text = f"( {_words(command)} ) </dev/null >{out} "
            text += "2>&1" if command.merge_output_streams else f"2>{err}"
            action = rex.BashAction(command=text, check="silent", timeout=command.timeout)
            try:
                done = side.run(action)
            except CommandTimeoutError:
                side.interrupt(SIGINT_S, 1)
                raise
            if done.failure_reason:
                raise NonZeroExitCodeError(done.failure_reason)
            paths = [out] if command.merge_output_streams else [out, err]
            files = side.session.files
            texts = [files.read_bytes(one).decode(errors="backslashreplace") for one in paths]
        stdout, stderr = [*texts, ""][:2]
        if command.check and done.exit_code:
            raise failed(command.command, done.exit_code, stdout + stderr, command.error_msg)
        return rex.CommandResponse(stdout=stdout, stderr=stderr, exit_code=done.exit_code)

    def _upload(self, source: str, target: str) -> None:
        files = self._files()
        if not os.path.isdir(source):
            files.put(source, target, parents=True)
            return
        for directory, _, names in os.walk(source, followlinks=True):
            there = os.path.normpath(os.path.join(target, os.path.relpath(directory, source)))
            for name in names:
                files.put(os.path.join(directory, name), f"{there}/{name}", parents=True)
            if not names:  # a file makes its directory
                files.write_bytes(f"{there}/.holdfast", b"", parents=True)
                files.rm(f"{there}/.holdfast")

    def _close(self) -> None:
        with self._lock:
            if self._own is not None:
                if self._scratch:
                    self._own.session.files.rm(self._scratch, recursive=True)
                self._own.end()
            if not self.config.keep:
                for shell in self._shells.values():
                    shell.end()
            self._shells, self._own, self._scratch = {}, None, ""
            if self._client is not None:
                self._client.close()
                self._client = None


class HoldfastDeployment(AbstractDeployment):
    """What SWE-agent takes as `deployment`: starts and stops a `HoldfastRuntime`."""

    def __init__(self, *, logger: logging.Logger | None = None, **options: Any) -> None:
        self.logger = logger or logging.getLogger("holdfast-swerex")
        self._config = HoldfastConfig(**options)
        self._hooks = CombinedDeploymentHook()
        self._runtime: HoldfastRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        if self._runtime is None:
            return rex.IsAliveResponse(is_alive=False, message="the deployment is not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        self._runtime = HoldfastRuntime(logger=self.logger, **self._config.model_dump())

    async def stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> HoldfastRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _words(command: rex.Command) -> str:
    given = command.command
    argv = [given] if isinstance(given, str) else given
    argv = ["sh", "-c", *argv] if command.shell else argv
    if command.env is not None:
        argv = ["env", "-i", *(f"{key}={value}" for key, value in command.env.items()), *argv]
    move = "" if command.cwd is None else f"cd -- {shlex.quote(command.cwd)} && "
    return move + shlex.join(argv)
