"""Starts the host's worker programs: they save sessions, or enter them for files and sockets.

A service manager hardens the unit of the host, and children inherit that: they may neither trace
processes nor enter namespaces. Then the nursery, which is not hardened, starts the workers.
Otherwise the host does. A worker gets the numbers of its descriptors after its other arguments,
and ends when its socket to the host closes.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from holdfast.home import cores
from holdfast.transport import unix
from holdfast.wire import keeper as wire

ANSWER_S: Final = 10.0  # of the nursery

# The socket of the nursery that starts the workers, and their environment.
_nursery: list[tuple[str, list[bytes]]] = []


def let_nursery_start(path: str, environment: Mapping[bytes, bytes]) -> None:
    """Have the nursery with this socket start all workers of this process from now on."""
    _nursery[:] = [(path, [name + b"=" + value for name, value in environment.items()])]


class WorkerProgram:
    def __init__(self, command: Sequence[str], descriptors: Sequence[int]) -> None:
        """Blocks until the program is started. OSError if that is impossible."""
        self._child: subprocess.Popen[bytes] | None = None
        if _nursery:
            self.pid = _ask(*_nursery[0], command, descriptors)
        else:
            with cores.original_limit():
                self._child = subprocess.Popen(
                    [*command, *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                )
            self.pid = self._child.pid
        self._pidfd = os.pidfd_open(self.pid)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._pidfd)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def exits(self, most_s: float | None) -> bool:
        """Whether it exits in time. A child of the host stays a zombie, its number in use."""
        waiting = select.poll()  # select(2) knows no large descriptors
        waiting.register(self._pidfd, select.POLLIN)
        return bool(waiting.poll(None if most_s is None else most_s * 1000))

    def wait(self) -> None:
        self.exits(None)
        if self._child is not None:
            self._child.wait()

    @property
    def over(self) -> bool:
        if done := self.exits(0):
            self.wait()
        return done


def _ask(
    path: str, environment: list[bytes], command: Sequence[str], descriptors: Sequence[int]
) -> int:
    request = wire.worker([os.fsencode(word) for word in command], environment)
    with unix.connect(path) as sock:
        sock.settimeout(ANSWER_S)
        sent = socket.send_fds(sock, [request], descriptors)
        sock.sendall(request[sent:])
        reply = sock.recv(wire.SPAWN_REPLY.size, socket.MSG_WAITALL)
        if len(reply) < wire.SPAWN_REPLY.size:
            raise ConnectionResetError("the nursery started no worker")
        result, number, pid, length = wire.SPAWN_REPLY.unpack(reply)
        if result != wire.SPAWN_OK:
            raise OSError(number, sock.recv(length, socket.MSG_WAITALL).decode("utf-8", "replace"))
        return int(pid)
