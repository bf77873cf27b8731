"""Forks, execs and exits of watched processes, as the kernel reports them.

The source is the process connector, a netlink multicast. The connector works for root, and since
Linux 6.6 for ordinary users. It does not work outside the machine's first pid, user and network
namespace (in a container): there the subscription is refused or never answered. So `told` is false
until the kernel has sent a message, and the listener looks at /proc now and then instead.

The kernel reports all processes of the machine. The listener names the interesting processes
(`watch`), and all their descendants are included from their first moment. For root, the kernel
drops the events of other processes (host/processes/pid_filter.py), at no cost to this process.
Otherwise this process reads and drops them. After QUIET_S without an event of a watched process,
this process reads in batches, at most BATCH_S late; `catch_up` never waits for a batch.

Messages carry a number per processor: a gap means that messages were lost, and so does ENOBUFS.
Then `on_lost` is called, and the listener looks at /proc.

Exits of threads are left out: only the exit of a whole process matters. But the kernel reports the
exit of the first thread, and the process may live on in other threads, or a thread may execute a
new program. A listener that finds the process alive adds the pid to `threads`, and then gets the
exits of the other threads. If the whole process is gone before the listener looks, the exit code is
that of the first thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.host.processes.pid_filter import CUT_BYTES, OPEN, PidFilter
from holdfast.host.runtime.notify import log_error

RECEIVE_BYTES: Final = 8 << 20  # of the socket's queue, where that is allowed
MESSAGES_AT_ONCE: Final = 512  # before the loop goes on with other things
CATCH_UP_MAX: Final = 16_384  # read before a shell's mark is taken
QUIET_S: Final = 1.0
BATCH_S: Final = 0.05
BATCH_MESSAGES: Final = 128  # an ordinary user's queue holds 257

_NETLINK_CONNECTOR, _IDX_PROC, _VAL_PROC = 11, 1, 1
_LISTEN = 1
_SO_RCVBUFFORCE = 33
_NLMSG = struct.Struct("=IHHII")  # length, type, flags, seq, pid
_CN = struct.Struct("=IIIIHH")  # idx, val, seq, ack, length, flags
# Number, kind and processor of a message, then four words that depend on the kind:
# fork: parent pid, parent tgid, child pid, child tgid; exit: pid, tgid, code, signal;
# exec, uid, gid: pid, tgid; none (the answer to our subscription): error.
_MESSAGE = struct.Struct("=24xI8xII8xIIII")
_NONE, _FORKED, _EXECUTED, _UID, _GID, _EXITED = 0, 0x1, 0x2, 0x4, 0x40, 0x80000000
_STATUS = struct.Struct("=I")
_NLMSG_DONE = 3
SLOTS: Final = 64  # messages per system call
SLOT_BYTES: Final = 128  # more than a message has
_libc = ctypes.CDLL(None, use_errno=True)


class Events:
    """A subscription. Callbacks come on the loop."""

    def __init__(
        self,
        on_fork: Callable[[int, int], None],
        on_exit: Callable[[int, int], None],
        on_lost: Callable[[], None],
        on_exec: Callable[[int], None] = lambda pid: None,
        on_account: Callable[[int], None] = lambda pid: None,
        in_kernel: bool = True,
    ) -> None:
        """Raises OSError with the reason if the kernel refuses the subscription.

        `on_account`: a process continues with another user or group id, as with sudo.
        `in_kernel`: let the kernel sort out processes that are not watched, where it can.
        """
        self._on_fork, self._on_exit, self._on_lost = on_fork, on_exit, on_lost
        self._on_exec, self._on_account = on_exec, on_account
        self.watched: set[int] = set()
        self.threads: set[int] = set()  # processes without their first thread
        self._numbers: dict[int, int] = {}  # the last message's, by processor
        self.told = False  # the kernel has answered
        self.lost = 0  # how often messages were lost
        self.heard = 0  # events of processes that were read
        self._loop = asyncio.get_running_loop()
        self._ours_at = self._loop.time()  # when the last message of a watched process was read
        self._batch: asyncio.TimerHandle | None = None
        self._batch_s = BATCH_S
        self._opened = 0
        self._inbox = _Inbox()
        self._sock, self._filter = _subscribed(in_kernel)
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._read(1)  # the answer comes at once, or never

    # ------------------------------------------------------------ which processes

    def watch(self, pids: Iterable[int]) -> None:
        """Reports these processes, and every process that they start from now on."""
        for pid in set(pids) - self.watched:
            self.watched.add(pid)
            self._pass(pid)

    def _pass(self, pid: int, exited: bool = False) -> None:
        if self._filter is not None:
            try:
                self._filter.add(pid, exited)
            except OSError:
                self._missed()

    def unwatch(self, pid: int, exited: bool = True) -> None:
        """`exited`: the process is gone, so that a living process is a new one with this pid."""
        self.watched.discard(pid)
        self.threads.discard(pid)
        if self._filter is not None and not self._filter.remove(pid, exited):
            self.watched.add(pid)
            self._missed()

    @contextlib.contextmanager
    def everything(self) -> Iterator[None]:
        """Lets all events pass while the caller reads /proc.

        A process may fork after the caller found it and before it is watched. That fork is in the
        queue, and is reported once the process is watched.
        """
        self._opened += 1
        if self._opened == 1:
            self._pass(OPEN)
        try:
            yield
            self.catch_up()
        finally:
            self._opened -= 1
            if not self._opened and self._filter is not None:
                self._filter.remove(OPEN, exited=False)

    def sweep(self, keep: Callable[[int], bool]) -> None:
        """After a loss: forgets processes that exited unreported. `keep`: still known pids."""
        for pid in self._filter.exited() if self._filter is not None else ():
            if not keep(pid):
                self.unwatch(pid)

    # ------------------------------------------------------------ messages

    def catch_up(self) -> None:
        """Reads all events that the kernel has reported up to now.

        The kernel reports a fork before the new process or its parent runs on.
        """
        if self._read(CATCH_UP_MAX) == CATCH_UP_MAX and self._opened:
            self._missed()

    def _readable(self) -> None:
        self._read(MESSAGES_AT_ONCE)
        if self._filter is None and self._loop.time() - self._ours_at > QUIET_S:
            self._loop.remove_reader(self._sock.fileno())
            self._batch = self._loop.call_later(self._batch_s, self._next_batch)

    def _next_batch(self) -> None:
        self._batch = None
        count = self._read(MESSAGES_AT_ONCE)
        if self._sock.fileno() < 0:
            return
        if count > BATCH_MESSAGES:
            self._batch_s /= 2
        elif count < BATCH_MESSAGES // 2:
            self._batch_s = min(self._batch_s * 2, BATCH_S)
        if count and self._loop.time() - self._ours_at > QUIET_S:
            self._batch = self._loop.call_later(self._batch_s, self._next_batch)
        else:
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _read(self, most: int) -> int:
        """Reads up to `most` messages; returns their number."""
        count = 0
        while count < most and self._sock.fileno() >= 0:
            try:
                lengths = self._inbox.receive(self._sock.fileno())
            except OSError as e:
                if e.errno == errno.ENOBUFS:
                    self._missed()
                    count += 1
                    continue
                if e.errno not in (errno.EAGAIN, errno.EINTR):
                    self.close()
                break
            for slot, length in enumerate(lengths):
                try:
                    self._message(slot * SLOT_BYTES, length)
                except Exception as e:  # the next messages are still needed
                    log_error("what processes did", e)
                    self._missed()
            count += len(lengths)
            if len(lengths) < SLOTS:
                break
        return count

    def _message(self, at: int, length: int) -> None:
        number, what, cpu, pid, group, third, fourth = _MESSAGE.unpack_from(self._inbox.bytes, at)
        if length < _MESSAGE.size:
            return
        if self._filter is None:
            expected = self._numbers.get(cpu, number)
            self._numbers[cpu] = (number + 1) & 0xFFFF_FFFF
            if number != expected:
                self._missed()
        elif length == CUT_BYTES:
            self._missed()
        self.heard += what != _NONE
        if group in self.watched:
            self._ours_at = self._loop.time()
            if what == _EXECUTED:
                self._on_exec(group)
            elif what == _EXITED:
                if self._opened and pid == group:
                    self._pass(pid, exited=True)  # its pid may have been added after its exit
                if pid == group or group in self.threads:
                    self._on_exit(group, third)
            elif what in (_UID, _GID):
                self._on_account(group)
        if what == _FORKED:
            if third == fourth and (group in self.watched or fourth in self.watched):
                self._forked(group, fourth)  # else a thread
        elif what == _NONE:  # also when a different listener of this machine subscribes
            self.told = self.told or not pid

    def _forked(self, parent: int, child: int) -> None:
        self._ours_at = self._loop.time()
        if parent in self.watched and child not in self.watched:
            self.watched.add(child)
            if self._opened:
                self._pass(child)
        self._on_fork(parent, child)

    def _missed(self) -> None:
        self.lost += 1
        self._on_lost()

    def close(self) -> None:
        self.told = False
        if self._batch is not None:
            self._batch.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            if self._filter is not None:
                self._filter.close()
                self._filter = None


class _Slot(ctypes.Structure):
    """`struct mmsghdr`: a `struct msghdr`, and the length of the message that was received."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_size_t),  # an int, and padding for the next field
        ("length", ctypes.c_size_t),  # an int, and padding
    )


class _Inbox:
    """Reads many datagrams with one system call: recvmmsg(2), which Python does not offer."""

    def __init__(self) -> None:
        self.bytes = bytearray(SLOTS * SLOT_BYTES)
        whole = (ctypes.c_char * len(self.bytes)).from_buffer(self.bytes)
        first = ctypes.addressof(whole)
        self._buffers = (ctypes.c_size_t * (2 * SLOTS))(
            *(n for at in range(SLOTS) for n in (first + at * SLOT_BYTES, SLOT_BYTES))
        )
        buffers = ctypes.addressof(self._buffers)
        self._slots = (_Slot * SLOTS)(
            *(_Slot(buffers=buffers + at * 16, buffer_count=1) for at in range(SLOTS))
        )

    def receive(self, fd: int) -> list[int]:
        """The lengths of the messages, at least one. Raises OSError if there is no message."""
        count = _libc.recvmmsg(fd, self._slots, SLOTS, socket.MSG_DONTWAIT, None)
        if count < 0:
            raise OSError(number := ctypes.get_errno(), os.strerror(number))
        return [slot.length for slot in self._slots[:count]]


def _subscribed(in_kernel: bool) -> tuple[socket.socket, PidFilter | None]:
    sock = socket.socket(
        socket.AF_NETLINK,
        socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        _NETLINK_CONNECTOR,
    )
    passing: PidFilter | None = None
    try:
        if in_kernel:
            with contextlib.suppress(OSError):
                passing = PidFilter(sock)
        sock.bind((0, _IDX_PROC))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
        body = _CN.pack(_IDX_PROC, _VAL_PROC, 0, 0, 4, 0) + _STATUS.pack(_LISTEN)
        sock.send(_NLMSG.pack(_NLMSG.size + len(body), _NLMSG_DONE, 0, 0, os.getpid()) + body)
    except BaseException:
        sock.close()
        if passing is not None:
            passing.close()
        raise
    return sock, passing
