"""The service manager that runs this host, if there is one (core/systemd_units.py has the units).

The host tells the manager when it serves, when it stops and when it is replaced in place. When the
manager ends the host, the host asks for the next job, because a signal does not name it. If a
restart follows, clients are told to reconnect; if not, the stop is the same as `holdfast down`.

The home remembers that there is a manager (`home.service`). A client that finds no host then asks
the manager to start the host: in the right group, hardened, with the nursery in a separate unit.
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
ASK_S = 2.0  # for the manager's answer
_COMES_BACK = frozenset(("restart", "try-restart", "start"))


class Service:
    """`kind`: HOLDFAST_SERVICE, "user" or "system"; otherwise there is no manager.

    `address`: NOTIFY_SOCKET.
    """

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind if kind in ("user", "system") else ""
        self.address = address

    @property
    def nursery(self) -> str:
        """The unit of the nursery; empty if the host starts the nursery."""
        return NURSERY_UNIT if self.kind else ""

    def begin(self, home: Home) -> None:
        """Remembers the manager in the home. The caller holds the home's lock."""
        if not self.kind:
            with contextlib.suppress(OSError):
                os.unlink(home.service)
            return
        with contextlib.suppress(OSError):
            os.unlink(home.stopped)  # the manager was asked to start a host
        _write(home.service, self.kind)

    def ready(self, sessions: int) -> None:
        status = "STATUS=serves"
        if sessions:
            status += f" {sessions} session{'' if sessions == 1 else 's'} that ran already"
        readiness.tell(self.address, readiness.READY, status)

    def stopping(self) -> None:
        readiness.tell(self.address, readiness.STOPPING)

    def replaced(self) -> None:
        readiness.tell(
            self.address, readiness.RELOADING, f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
        )

    def is_now(self, pid: int) -> None:
        """Tells the manager that a new process is the host from now on."""
        readiness.tell(self.address, f"MAINPID={pid}")

    async def comes_back(self) -> bool:
        """Whether the manager that ends this host starts the next host; yes without an answer."""
        user = ("--user",) if self.kind == "user" else ()
        command = ("systemctl", *user, "list-jobs", "--no-legend", "--plain", "--no-pager")
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
    """Whether a job of the host's unit in `systemctl list-jobs` starts the unit again.

    Columns are number, unit, kind, state. Without a job, the signal did not come from the manager.
    """
    kinds = [
        words[2]
        for line in jobs.splitlines()
        if len(words := line.split()) >= 4 and words[1] == HOST_UNIT
    ]
    return any(kind in _COMES_BACK for kind in kinds)


def leave_stopped(home: Home) -> None:
    """Keeps clients from starting a host until a person or the manager asks for a host."""
    _write(home.stopped, "")


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
