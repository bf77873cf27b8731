"""The keeper's part of the exec gate: it holds the listener and lends it to the deciding host.

While a host has the listener, this module does nothing. Without a host, execs wait, because a host
may return at any moment. They must not wait for ever: after GATE_AWAY_S without a host, every
unread exec is refused with EACCES, one per turn of the loop. The kernel does not repeat requests
that a dead host had read already; the next host makes those tasks ask again.

EPOLLONESHOT reports once and is then re-armed, so the loop spins neither while an exec waits nor
after the last process is gone (HUP, upon which the listener is closed).
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
        self.poll = poll
        self.fd = fd  # negative: the errno of the kernel's refusal; 0: closed
        self.holder: _socket.socket | None = None
        self.since = time.monotonic()  # when it was last lent
        self.due = 0.0  # when waiting execs are refused; 0: no exec waits
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
        """After every turn of the loop: notice that the holder left or that time is up."""
        if self.holder is not None and self.holder is not host:
            self.holder, self.since = None, time.monotonic()
            if self.fd > 0:
                self.poll.modify(self.fd, _ONCE)
        elif self.due and self.holder is None and time.monotonic() >= self.due:
            self.due = 0.0
            self.poll.modify(self.fd, _ONCE)

    def patience(self, patience: float) -> float:
        """Return how long the loop may sleep."""
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
            pass  # the task died, or a host answered first
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def close(self) -> None:
        if self.fd > 0:
            os.close(self.fd)  # and the poll forgets it
            self.fd = 0
        self.due = 0.0


def _interrupted(number: int, frame: object) -> None:
    """Do nothing: the signal only interrupts the ioctl."""
