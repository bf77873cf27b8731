"""A program's end of a connection in a simulated world.

It is a real socket, so that `poll` and asyncio work. It waits in the world's time and breaks when
the network says so.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

from tests.support.simulation.world import fiber


class Plug(socket.socket):
    """A program's end: a socket that waits in the world's time."""

    broken: OSError | None = None
    _patience: float | None = None

    def settimeout(self, value: float | None) -> None:
        self._patience = value

    def setblocking(self, flag: bool) -> None:
        self._patience = None if flag else 0.0

    def gettimeout(self) -> float | None:
        return self._patience

    def setsockopt(self, level: int, *rest: Any) -> None:
        if level != socket.IPPROTO_TCP:  # below there is no TCP
            super().setsockopt(level, *rest)

    def _when(self, event: int, act: Callable[[], Any]) -> Any:
        while True:
            if self.broken is not None and event == select.POLLOUT:
                raise self.broken
            try:
                done = act()
            except BlockingIOError:
                one = fiber()
                if one is None or self._patience == 0.0:
                    raise
                poll = select.poll()
                poll.register(self.fileno(), event)
                if not one.wait(lambda: poll._poll.poll(0), self._patience):  # type: ignore[attr-defined]
                    raise TimeoutError("timed out") from None
            else:
                if self.broken is not None and not (done[0] if isinstance(done, tuple) else done):
                    raise self.broken  # data that came before was read
                return done

    def recv(self, *args: Any) -> bytes:
        return self._when(select.POLLIN, lambda: socket.socket.recv(self, *args))  # type: ignore[no-any-return]

    def recv_into(self, *args: Any) -> int:
        return self._when(select.POLLIN, lambda: socket.socket.recv_into(self, *args))  # type: ignore[no-any-return]

    def recvmsg(self, *args: Any) -> Any:
        return self._when(select.POLLIN, lambda: socket.socket.recvmsg(self, *args))

    def send(self, *args: Any) -> int:
        return self._when(select.POLLOUT, lambda: socket.socket.send(self, *args))  # type: ignore[no-any-return]

    def sendmsg(self, *args: Any) -> int:
        return self._when(select.POLLOUT, lambda: socket.socket.sendmsg(self, *args))  # type: ignore[no-any-return]

    def sendall(self, data: Any, *args: Any) -> None:
        left = memoryview(data)
        while left:
            left = left[self.send(left, *args) :]


def plugs() -> tuple[Plug, Plug]:
    made = []
    for end in socket.socketpair():
        plug = Plug(end.family, end.type, end.proto, end.detach())
        socket.socket.setblocking(plug, False)
        made.append(plug)
    return made[0], made[1]
