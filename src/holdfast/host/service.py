"""The service manager that runs this host, if one does (core/units.py has the units).

It is told when the host serves, when it stops and when it is replaced in place. When it wants the host to end, the host asks what is to follow: a restart, and
clients are told to come back by themselves; or nothing, and then it is as if somebody had said `holdfast down`. A signal alone does not say.

The home remembers that there is a manager (`home.service`), so that a client that finds no host has the manager start it: in the right group, hardened, and
with a nursery apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

from holdfast.home import Home
from holdfast.transport import readiness

HOST_UNIT = "holdfast-host.service"
NURSERY_UNIT = "holdfast-nursery.service"
ASK_S = 2.0  # for the manager to say what it is about to do
_COMES_BACK = frozenset(("restart", "try-restart", "start"))


class Service:
    """`kind`: of HOLDFAST_SERVICE, "user" or "system"; else nobody runs this host. `address`: of NOTIFY_SOCKET."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind if kind in ("user", "system") else ""
        self.address = address

    @property
    def nursery(self) -> str:
        """The unit of the nursery; empty if the host is to start one itself."""
        return NURSERY_UNIT if self.kind else ""

    def begin(self, home: Home) -> None:
        """With the home's lock held."""
        if not self.kind:
            with contextlib.suppress(OSError):
                os.unlink(home.service)
            return
        with contextlib.suppress(OSError):
            os.unlink(home.stopped)  # the manager was asked for a host
        _write(home.service, self.kind)

    def ready(self, sessions: int) -> None:
        readiness.tell(
            self.address,
            readiness.READY,
            f"STATUS=serves {sessions} session{'' if sessions == 1 else 's'} that ran already"
            if sessions
            else "STATUS=serves",
        )

    def stopping(self) -> None:
        readiness.tell(self.address, readiness.STOPPING)

    def replaced(self) -> None:
        readiness.tell(
            self.address, readiness.RELOADING, f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
        )

    def is_now(self, pid: int) -> None:
        """Another process is the host from now on."""
        readiness.tell(self.address, f"MAINPID={pid}")

    async def comes_back(self) -> bool:
        """Whether the manager that ends this host starts the next one. If it does not say, it does."""
        command = (
            "systemctl",
            *(("--user",) if self.kind == "user" else ()),
            "list-jobs",
            "--no-legend",
            "--plain",
            "--no-pager",
        )
        try:
            async with asyncio.timeout(ASK_S):
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                out, _ = await process.communicate()
        except (OSError, TimeoutError):
            return True
        return process.returncode != 0 or ends_in_a_start(out.decode("utf-8", "replace"))


def ends_in_a_start(jobs: str) -> bool:
    """From `systemctl list-jobs`: number, unit, kind, state. No job of ours at all: a signal from somebody else."""
    kinds = [
        words[2]
        for line in jobs.splitlines()
        if len(words := line.split()) >= 4 and words[1] == HOST_UNIT
    ]
    return any(kind in _COMES_BACK for kind in kinds)


def leave_stopped(home: Home) -> None:
    """Nobody is to start a host until a person or the manager wants one."""
    _write(home.stopped, "")


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
