"""Finds or starts the nursery, and asks the nursery for a keeper.

A service manager that runs this host also runs the nursery, in a separate unit (`apart`). The host
then starts no nursery: sessions would inherit the restrictions of the host's unit. The host waits
while the manager restarts the nursery.
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
import time
from collections.abc import Awaitable, Callable

from holdfast.home import cores, programs
from holdfast.model.errors import Impossible, Unavailable, Usage
from holdfast.model.limits import SPAWN_WAIT_S
from holdfast.model.probe import probe
from holdfast.transport import unix
from holdfast.wire import keeper as wire

APART_WAIT_S = 5.0  # for a service manager to restart the nursery
LOOK_S = 0.05


class NoNetwork(Impossible):
    """No connector of the session's own network could start; `why`: what the last one said."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"no network of its own: {why}",
            "`holdfast doctor` says what connects one here; or choose --net host or none",
        )
        self.why = why


class TreeChanged(Unavailable):
    """A path of a contained session's tree was replaced or removed after the host looked."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the session's file tree changes while it is being assembled: {what}",
            "wait until the path is in place again (a package upgrade?), then try again",
        )
        self.what = what


class Nursery:
    def __init__(
        self,
        run: str,
        on_found: Callable[[int], None] = lambda pid: None,
        apart: str = "",
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        """`apart`: the unit that runs the nursery; empty if the host starts the nursery.

        `descriptors`: the limit that sessions start with: the user's limit, not the host's.
        """
        self.run, self.apart = run, apart
        self._on_found, self._descriptors = on_found, descriptors
        self.pid = 0  # of the nursery that answered last
        self._starting = asyncio.Lock()

    async def spawn(
        self,
        request: wire.Spawn,
        complete: Callable[[wire.Spawn], Awaitable[wire.Spawn]] | None = None,
        patience_s: float = SPAWN_WAIT_S,
    ) -> int:
        """Starts a keeper and its program; returns the keeper's pid.

        A refusal names the fault in the request. `complete` makes the session's control group. The
        nursery must run first, because a manager that starts a nursery removes empty groups of the
        unit.
        """
        loop = asyncio.get_running_loop()
        sock = await self._connect()
        try:
            async with asyncio.timeout(patience_s):
                if complete is not None:
                    request = await complete(request)
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
            if number == errno.EOPNOTSUPP and text.startswith(wire.NO_NETWORK):
                raise NoNetwork(text.removeprefix(wire.NO_NETWORK))
            if number == errno.EOPNOTSUPP and text.startswith(wire.NOT_AS_PLANNED):
                raise TreeChanged(text.removeprefix(wire.NOT_AS_PLANNED))
            if number == errno.EOPNOTSUPP:
                # Imported here because it loads ctypes and is rarely needed.
                from holdfast.host.doctor.isolation import allow_namespaces

                raise Impossible(
                    f"no contained session on this machine: {text}",
                    f"{allow_namespaces(os.geteuid())}; or leave out --contained",
                )
            if number == errno.EBUSY and text.startswith("no exec gate"):
                from holdfast.host.exec_gate.gate import refused  # rarely needed

                why = refused(errno.EBUSY) if text.endswith(os.strerror(errno.EBUSY)) else text
                raise Impossible(
                    f"no exec gate: {why.removeprefix('no exec gate: ')}",
                    "a person can choose --gate input: then the policy sees what is typed and "
                    "run; `holdfast doctor` says why the kernel allows no more",
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
        """Whether a nursery is running."""
        try:
            self._found(unix.connect(f"{self.run}/nursery.sock", blocking=False)).close()
        except OSError:
            return False
        return True

    async def warm(self) -> None:
        """Starts the nursery if there is none, so that the first session does not wait."""
        sock = await self._connect()
        sock.close()

    def dismiss(self) -> None:
        """Ends the nursery, which has no work without a host; keepers do not need a nursery."""
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
                except BlockingIOError as e:  # a stopped nursery with a full queue
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
            self._on_found(pid)
        return sock

    async def _start(self, attempt: int) -> None:
        """Starts a nursery that survives this host: a new session, without our descriptors."""
        with cores.original_limit():
            process = subprocess.Popen(
                nursery_command(self.run),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                cwd=self.run,
            )
        assert process.stdout is not None
        if self._descriptors is not None:
            with contextlib.suppress(OSError):
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._descriptors)
        with process.stdout as out:
            line = await asyncio.get_running_loop().run_in_executor(None, out.readline)
        if line.strip() != b"ready":
            process.poll()
            if attempt:
                await asyncio.sleep(0.05 * attempt)
        _children.append(process)


_children: list[subprocess.Popen[bytes]] = []  # kept so that Python reaps them without a warning


def nursery_command(run: str) -> list[str]:
    return programs.module("holdfast.keeper.nursery", run)


async def _read(loop: asyncio.AbstractEventLoop, sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = await loop.sock_recv(sock, length - len(data))
        if not piece:
            raise ConnectionResetError(os.strerror(errno.ECONNRESET))
        data += piece
    return data
