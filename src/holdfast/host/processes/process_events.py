"""Forks, execs and exits of this machine as the kernel tells them: the process connector, a netlink multicast.

It works for root, and since Linux 6.6 for ordinary users; not in another pid, user or network namespace than the machine's first (a container). There the question is refused, or
not answered at all: so nothing counts as told before the first message has come (`told`), and whoever needs to know looks at /proc instead, now and then.

The kernel tells of all processes of the machine; which are a session's is decided by whoever listens. Messages carry a number per processor: a hole means that some were lost, and so does
ENOBUFS. Then `on_lost` is called, and the listener looks for itself. Exits of threads are left out: only that of a whole process matters. But the kernel tells no more than that its first
thread is gone, and it may live on in others, or become another program in one of them: whoever finds it alive says so (`threads`), and is told of the exits of the others.
If all of it is gone before anybody could look, its exit code is what its first thread said.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

from holdfast.host.telling import failed

RECEIVE_BYTES: Final = 8 << 20  # of the socket's queue, where that is allowed
MESSAGES_AT_ONCE: Final = 512  # before the loop goes on with other things
CATCH_UP_MAX: Final = 16_384  # when what else is known must not be taken before them

_NETLINK_CONNECTOR, _IDX_PROC, _VAL_PROC = 11, 1, 1
_LISTEN = 1
_SO_RCVBUFFORCE = 33
_NLMSG = struct.Struct("=IHHII")  # length, type, flags, seq, pid
_CN = struct.Struct("=IIIIHH")  # idx, val, seq, ack, length, flags
_EVENT = struct.Struct("=IIQ")  # what, cpu, time
_FORK = struct.Struct("=IIII")  # parent pid, parent tgid, child pid, child tgid
_EXIT = struct.Struct("=IIII")  # pid, tgid, code, signal
_EXEC = struct.Struct("=II")  # pid, tgid
_NONE, _FORKED, _EXECUTED, _UID, _GID, _EXITED = 0, 0x1, 0x2, 0x4, 0x40, 0x80000000
_STATUS = struct.Struct("=I")
_NLMSG_DONE = 3
_BODY = _NLMSG.size + _CN.size
_FACTS = _BODY + _EVENT.size
_SMALLEST = _FACTS + 16  # of all kinds the same: a union
MESSAGE_BYTES: Final = 4096


class Events:
    """One per host. Callbacks come on the loop."""

    def __init__(
        self,
        on_fork: Callable[[int, int], None],
        on_exit: Callable[[int, int], None],
        on_lost: Callable[[], None],
        on_exec: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """OSError with the reason if the kernel refuses to tell."""
        self._on_fork, self._on_exit, self._on_lost, self._on_exec = (
            on_fork,
            on_exit,
            on_lost,
            on_exec,
        )
        self.on_account: Callable[[int], None] = lambda pid: (
            None
        )  # a process goes on as somebody else, or in another group: sudo, for example
        self.threads: set[int] = (
            set()
        )  # processes whose first thread is gone: the exit of any other may be theirs
        self._numbers: dict[int, int] = {}  # of each processor, the last message's
        self.told = False  # the kernel has begun
        self.lost = 0  # how often something was
        self.heard = 0  # messages
        self._loop = asyncio.get_running_loop()
        self._sock = _subscribed()
        self._loop.add_reader(self._sock.fileno(), self._read)

    def catch_up(self) -> None:
        """Everything that the kernel has said up to now: a fork is told before the new process, or its parent, does anything else."""
        self._read(CATCH_UP_MAX)

    def _read(self, most: int = MESSAGES_AT_ONCE) -> None:
        for _ in range(most):
            try:
                data = self._sock.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    return self.close()
                self._missed()
                continue
            try:
                self._message(data)
            except Exception as e:  # whoever catches up needs the rest
                failed("what processes did", e)
                self._missed()

    def _message(self, data: bytes) -> None:
        if len(data) < _SMALLEST:
            return
        number: int = _CN.unpack_from(data, _NLMSG.size)[2]
        what, cpu, _ = _EVENT.unpack_from(data, _BODY)
        if what == _NONE:
            self.told = self.told or not _STATUS.unpack_from(data, _FACTS)[0]
            return
        expected, self._numbers[cpu] = self._numbers.get(cpu), number
        if expected is not None and number != (expected + 1) & 0xFFFF_FFFF:
            self._missed()
        self.told = True
        self.heard += 1
        if what == _FORKED:
            _, parent, child, group = _FORK.unpack_from(data, _FACTS)
            if child == group:  # else a thread
                self._on_fork(parent, child)
        elif what in (_UID, _GID):
            self.on_account(_FORK.unpack_from(data, _FACTS)[1])
        elif what == _EXECUTED:
            self._on_exec(_EXEC.unpack_from(data, _FACTS)[1])
        elif what == _EXITED:
            pid, group, status, _ = _EXIT.unpack_from(data, _FACTS)
            if pid == group or group in self.threads:
                self._on_exit(group, status)

    def _missed(self) -> None:
        self.lost += 1
        self._on_lost()

    def close(self) -> None:
        self.told = False
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


def _subscribed() -> socket.socket:
    sock = socket.socket(
        socket.AF_NETLINK,
        socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        _NETLINK_CONNECTOR,
    )
    try:
        sock.bind((0, _IDX_PROC))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
        body = _CN.pack(_IDX_PROC, _VAL_PROC, 0, 0, 4, 0) + _STATUS.pack(_LISTEN)
        sock.send(_NLMSG.pack(_NLMSG.size + len(body), _NLMSG_DONE, 0, 0, os.getpid()) + body)
    except BaseException:
        sock.close()
        raise
    return sock
