"""The exec gate as the keeper has it: it holds the listener for as long as the session lives, and lends it to the host, which decides.

While a host has it this does nothing. While none has, execs wait, for a host may come back at any moment; but a policy that is not there means refuse, not wait for ever: when
nobody has been there for GATE_AWAY_S, every exec that waits unread is answered with EACCES, one for each turn of the loop. What a dead host had read already is not told again by
the kernel: the next host makes those tasks ask anew.

The poll tells once (EPOLLONESHOT), is told to tell again, and so neither spins while an exec waits nor when the last process is gone (HUP: then it is closed).
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import time

from holdfast.model.limits import GATE_AWAY_S
from holdfast.wire import notification as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_ONCE = select.EPOLLIN | select.EPOLLONESHOT


class Gate:
    __slots__ = ("due", "fd", "holder", "poll", "since")

    def __init__(self, poll: select.epoll, fd: int) -> None:
        self.poll, self.fd = (
            poll,
            fd,
        )  # fd < 0: minus the errno with which the kernel refused it; 0: it is over
        self.holder: _socket.socket | None = None
        self.since = time.monotonic()  # when it was lent last
        self.due = 0.0  # when those that wait are refused; 0: nobody waits
        if fd > 0:
            poll.register(fd, _ONCE)

    def lend(self, host: _socket.socket | None) -> None:
        self.holder, self.due = host, 0.0

    def woken(self, events: int) -> None:
        if events & select.EPOLLHUP:
            return self.close()
        now = time.monotonic()
        if self.holder is None and now < self.since + GATE_AWAY_S:
            self.due = self.since + GATE_AWAY_S
        elif self.holder is None:
            self._refuse()
            self.poll.modify(self.fd, _ONCE)
        return None

    def see(self, host: _socket.socket | None) -> None:
        """After every turn of the loop: whether whoever has it is still there, and whether the time is over."""
        if self.holder is not None and self.holder is not host:
            self.holder, self.since = None, time.monotonic()
            if self.fd > 0:
                self.poll.modify(self.fd, _ONCE)
        elif self.due and self.holder is None and time.monotonic() >= self.due:
            self.due = 0.0
            self.poll.modify(self.fd, _ONCE)

    def patience(self, patience: float) -> float:
        """How long the loop may sleep."""
        left = max(0.0, self.due - time.monotonic())
        return left if patience < 0 else min(patience, left)

    def _refuse(self) -> None:
        one = bytearray(wire.NOTIFICATION.size)
        signal.signal(signal.SIGALRM, _interrupted)
        signal.setitimer(signal.ITIMER_REAL, wire.GUARD_S)
        try:
            fcntl.ioctl(self.fd, wire.RECV, one)
            fcntl.ioctl(
                self.fd,
                wire.SEND,
                wire.ANSWER.pack(wire.ID.unpack_from(one)[0], 0, -errno.EACCES, 0),
            )
        except OSError:
            pass  # it died, or somebody else was quicker
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def close(self) -> None:
        if self.fd > 0:
            os.close(self.fd)  # and the poll forgets it
            self.fd = 0
        self.due = 0.0


def _interrupted(number: int, frame: object) -> None:
    """That the call returns is all that is wanted."""
