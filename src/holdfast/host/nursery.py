"""Finding or starting the nursery, and asking it for a keeper."""

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

from holdfast.model.errors import Impossible, Unavailable, Usage
from holdfast.model.limits import SPAWN_WAIT_S
from holdfast.model.probe import probe
from holdfast.transport import unix
from holdfast.wire import keeper as wire


class Nursery:
    def __init__(self, run: str) -> None:
        self.run = run
        self.descriptors: tuple[int, int] | None = None     # the limit sessions start with: the user's, not the host's own
        self.pid = 0                                        # of the one that this host started
        self._starting = asyncio.Lock()

    async def spawn(self, request: wire.Spawn) -> int:
        """A running keeper's pid; the program has been executed. Refusals say what was wrong with the request."""
        loop = asyncio.get_running_loop()
        sock = await self._connect()
        try:
            async with asyncio.timeout(SPAWN_WAIT_S):
                await loop.sock_sendall(sock, wire.spawn(request))
                probe("host.spawn.sent")
                head = await _read(loop, sock, wire.SPAWN_REPLY.size)
                result, number, pid, length = wire.SPAWN_REPLY.unpack(head)
                text = (await _read(loop, sock, length)).decode("utf-8", "replace")
        except TimeoutError as e:
            raise Unavailable("no keeper came up in time", "try again; `holdfast doctor` if it persists") from e
        except OSError as e:
            raise Unavailable(f"the nursery went away: {e}", "try again") from e
        finally:
            sock.close()
        if result != wire.SPAWN_OK:
            if number == errno.EOPNOTSUPP:
                from holdfast.host.checks.isolation import allow_namespaces  # rarely needed, and it loads ctypes

                raise Impossible(f"no contained session on this machine: {text}", f"{allow_namespaces(os.geteuid())}; or leave out --contained")
            if number in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.E2BIG, errno.ELOOP, errno.ENAMETOOLONG):
                raise Usage(f"cannot run {text}", "check the command and --cwd")
            raise Impossible(f"cannot start a session: {text}", "`holdfast doctor` says what this machine can do")
        return int(pid)

    async def warm(self) -> None:
        """Starts the nursery if there is none, so that the first session does not wait for it."""
        sock = await self._connect(probe_only=True)
        sock.close()

    def dismiss(self) -> None:
        """While no host runs it has nothing to do, and keepers do not need it."""
        try:
            with unix.connect(f"{self.run}/nursery.sock", blocking=False) as sock:
                os.kill(unix.peer(sock)[0], signal.SIGTERM)
        except OSError:
            pass

    async def _connect(self, probe_only: bool = False) -> socket.socket:
        async with self._starting:
            for attempt in range(3):
                try:
                    return unix.connect(f"{self.run}/nursery.sock", blocking=False)
                except BlockingIOError as e:               # stopped, and its queue is full
                    raise Unavailable("the nursery does not answer", "it may be stopped: `ps`, `kill -CONT`") from e
                except (FileNotFoundError, ConnectionRefusedError):
                    await self._start(attempt)
        raise Unavailable("the nursery does not start", f"look at {self.run}/../host.log")

    async def _start(self, attempt: int) -> None:
        """Apart from this host in every way: its own session, no inherited descriptors; it survives us."""
        process = subprocess.Popen(nursery_command(self.run), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   start_new_session=True, cwd=self.run)
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
        self.pid = process.pid
        _children.append(process)


_children: list[subprocess.Popen[bytes]] = []   # kept so that they are reaped without a warning


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
