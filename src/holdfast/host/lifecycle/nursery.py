"""Finding or starting the nursery, and asking it for a keeper.

Where a service manager runs this host, it runs the nursery too, in a unit of its own (`apart`). Then none is started here: sessions would inherit all that
this host is forbidden. One that is just being restarted is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from holdfast.home import cores
from holdfast.model.errors import Impossible, Unavailable, Usage
from holdfast.model.limits import SPAWN_WAIT_S
from holdfast.model.probe import probe
from holdfast.transport import unix
from holdfast.wire import keeper as wire

APART_WAIT_S = 5.0  # for a service manager to start it again
LOOK_S = 0.05


class Nursery:
    def __init__(self, run: str) -> None:
        self.run = run
        self.apart = ""  # the unit that it is run by, if it is
        self.on_found: Callable[[int], None] = lambda pid: None
        self.descriptors: tuple[int, int] | None = (
            None  # the limit sessions start with: the user's, not the host's own
        )
        self.pid = 0  # of the one that answered last
        self._starting = asyncio.Lock()

    async def spawn(
        self, request: wire.Spawn, group: Callable[[], Awaitable[str]] | None = None
    ) -> int:
        """A running keeper's pid; the program has been executed. Refusals say what was wrong with the request. `group` makes the group that it starts
        in, once there is a nursery: a manager that starts one removes what is empty in its unit's group."""
        loop = asyncio.get_running_loop()
        sock = await self._connect()
        try:
            async with asyncio.timeout(SPAWN_WAIT_S):
                if group is not None:
                    request = request._replace(cgroup=os.fsencode(await group()))
                await loop.sock_sendall(sock, wire.spawn(request))
                probe("host.spawn.sent")
                head = await _read(loop, sock, wire.SPAWN_REPLY.size)
                result, number, pid, length = wire.SPAWN_REPLY.unpack(head)
                text = (await _read(loop, sock, length)).decode("utf-8", "replace")
        except TimeoutError as e:
            raise Unavailable(
                "no keeper came up in time", "try again; `holdfast doctor` if it persists"
            ) from e
        except OSError as e:
            raise Unavailable(f"the nursery went away: {e}", "try again") from e
        finally:
            sock.close()
        if result != wire.SPAWN_OK:
            if number == errno.EOPNOTSUPP:
                from holdfast.host.checks.isolation import (
                    allow_namespaces,
                )  # rarely needed, and it loads ctypes

                raise Impossible(
                    f"no contained session on this machine: {text}",
                    f"{allow_namespaces(os.geteuid())}; or leave out --contained",
                )
            if number == errno.EBUSY and text.startswith("no exec gate"):
                from holdfast.host.execgate import refused  # rarely needed

                why = refused(errno.EBUSY) if text.endswith(os.strerror(errno.EBUSY)) else text
                raise Impossible(
                    f"no exec gate: {why.removeprefix('no exec gate: ')}",
                    "leave out --gate exec: then the policy sees what is typed and run; `holdfast doctor` says why the kernel allows no more",
                )
            if number in (
                errno.ENOENT,
                errno.EACCES,
                errno.ENOTDIR,
                errno.ENOEXEC,
                errno.E2BIG,
                errno.ELOOP,
                errno.ENAMETOOLONG,
            ):
                raise Usage(f"cannot run {text}", "check the command and --cwd")
            raise Impossible(
                f"cannot start a session: {text}", "`holdfast doctor` says what this machine can do"
            )
        return int(pid)

    def look(self) -> bool:
        """Whether there is one already."""
        try:
            self._found(unix.connect(f"{self.run}/nursery.sock", blocking=False)).close()
        except OSError:
            return False
        return True

    async def warm(self) -> None:
        """Starts the nursery if there is none, so that the first session does not wait for it."""
        sock = await self._connect()
        sock.close()

    def dismiss(self) -> None:
        """While no host runs it has nothing to do, and keepers do not need it."""
        if self.apart:
            return
        try:
            with unix.connect(f"{self.run}/nursery.sock", blocking=False) as sock:
                os.kill(unix.peer(sock)[0], signal.SIGTERM)
        except OSError:
            pass

    async def _connect(self) -> socket.socket:
        until = time.monotonic() + APART_WAIT_S
        attempt = 0
        async with self._starting:
            while attempt < 3:
                try:
                    return self._found(unix.connect(f"{self.run}/nursery.sock", blocking=False))
                except BlockingIOError as e:  # stopped, and its queue is full
                    raise Unavailable(
                        "the nursery does not answer", "it may be stopped: `ps`, `kill -CONT`"
                    ) from e
                except (FileNotFoundError, ConnectionRefusedError):
                    if not self.apart:
                        await self._start(attempt)
                        attempt += 1
                    elif time.monotonic() > until:
                        raise Unavailable(
                            "the nursery does not run; it is a service of its own",
                            f"start {self.apart}: `systemctl start`, with --user if it is your own",
                        ) from None
                    else:
                        await asyncio.sleep(LOOK_S)
        raise Unavailable("the nursery does not start", f"look at {self.run}/../host.log")

    def _found(self, sock: socket.socket) -> socket.socket:
        pid = unix.peer(sock)[0]
        if pid != self.pid:
            self.pid = pid
            self.on_found(pid)
        return sock

    async def _start(self, attempt: int) -> None:
        """Apart from this host in every way: its own session, no inherited descriptors; it survives us."""
        with cores.as_before():
            process = subprocess.Popen(
                nursery_command(self.run),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                cwd=self.run,
            )
        assert process.stdout is not None
        if self.descriptors is not None:
            with contextlib.suppress(OSError):
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self.descriptors)
        with process.stdout as out:
            line = await asyncio.get_running_loop().run_in_executor(None, out.readline)
        if line.strip() != b"ready":
            process.poll()
            if attempt:
                await asyncio.sleep(0.05 * attempt)
        _children.append(process)


_children: list[subprocess.Popen[bytes]] = []  # kept so that they are reaped without a warning


def nursery_command(run: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.keeper.nursery", run]


async def _read(loop: asyncio.AbstractEventLoop, sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = await loop.sock_recv(sock, length - len(data))
        if not piece:
            raise ConnectionResetError(os.strerror(errno.ECONNRESET))
        data += piece
    return data
