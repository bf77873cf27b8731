"""Sockets in the network namespace of another process.

A socket belongs to the namespace of the process that made the socket. A thread of the host must not
change its namespace, and the kernel lets only a process with a single thread enter a user
namespace. So a worker process enters the namespaces and sends new sockets to the host.

Run as `python -m holdfast.host.processes.net_entry CONTROL USER NET` with three descriptors.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import sys
from typing import Final

from holdfast.home import programs
from holdfast.host.runtime.worker_programs import WorkerProgram
from holdfast.model.errors import Impossible

ANSWER_S: Final = 20.0  # for the worker to start and to make a socket


def namespace(pid: int) -> str:
    """The network namespace of a process, by its name; empty for a process that is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class NetEntry:
    """A worker in the network namespace of a process; blocking, for use in a thread."""

    def __init__(self, pid: int) -> None:
        self.namespace = namespace(pid)
        self._control, theirs = socket.socketpair()
        self._control.settimeout(ANSWER_S)
        places: list[int] = []
        try:
            places += [
                os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
                for name in ("user", "net")
            ]
            self._worker = WorkerProgram(programs.module(__name__), (theirs.fileno(), *places))
        except OSError as e:
            self._control.close()
            raise Impossible(f"the session's network cannot be entered: {e.strerror}") from e
        finally:
            theirs.close()
            for fd in places:
                os.close(fd)

    def socket(self, family: socket.AddressFamily) -> socket.socket:
        try:
            self._control.sendall(bytes([family]))
            _, fds, _, _ = socket.recv_fds(self._control, 1, 1)
        except OSError as e:
            raise Impossible(f"the session's network cannot be entered: {e}") from e
        if not fds:
            raise Impossible("the session's network cannot be entered from here")
        return socket.socket(fileno=fds[0])

    def close(self) -> None:
        """The worker ends with the end of its control socket."""
        self._control.close()
        self._worker.kill()
        self._worker.wait()


def main(control: int, user: int, net: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(net, 0) and (libc.setns(user, 0) or libc.setns(net, 0)):
        raise OSError(ctypes.get_errno(), "setns")
    line = socket.socket(fileno=control)
    while asked := line.recv(1):
        with socket.socket(asked[0], socket.SOCK_STREAM) as made:
            told = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))
            line.sendmsg([b"."], [told])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
