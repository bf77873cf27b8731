"""Wait at the relays of an absent machine, which report the machine's return, instead of dialling.

A relay's report is a hint, never trusted. A false report costs one dial, and the pause before each
further dial grows. A missing report costs time: after WATCH_LOOK_S the machine is dialled anyway. A
waiting connection carries only the route and the pass, which the relay has seen before.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Final

from holdfast import __version__
from holdfast.home.machines import Machine, Way
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import RECONNECT_FIRST_S, REMOTE_WAIT_S
from holdfast.transport import carriers
from holdfast.transport.carriers import Carrier
from holdfast.wire import outer

WATCH_LOOK_S: Final = 5.0


class Watching:
    """Waits until one machine is online. Single-threaded, but any thread may call `cancel`."""

    def __init__(self, machine: Machine, look_s: float = WATCH_LOOK_S) -> None:
        self._ways, self._look_s = machine.ways, look_s
        self._at: dict[int, tuple[Carrier, Way]] = {}  # waiting connections, by descriptor
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._told = 0  # reports of a return since the last wait without a report
        self.cancelled = False

    def wait(self) -> None:
        """Return when a dial may succeed. A further call means that the dial failed."""
        begun = time.monotonic()
        if self._told:
            self._until(
                begun + min(RECONNECT_FIRST_S * 2 ** min(self._told, 16), self._look_s),
                listening=False,
            )
        self._join(begun + self._look_s)
        self._told = self._told + 1 if self._until(begun + self._look_s) else 0

    def cancel(self) -> None:
        self.cancelled = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        for ws, _ in self._at.values():
            ws.close()
        self._at.clear()
        os.close(self._stop)

    def _join(self, deadline: float) -> None:
        """Connect to each relay that has no waiting connection; ask the other relays again."""
        for ws, way in list(self._at.values()):
            self._say(ws, way)
        here = {way.url for _, way in self._at.values()}
        for way in self._ways:
            if (
                way.url not in here
                and not self.cancelled
                and (left := deadline - time.monotonic()) > 0
            ):
                with contextlib.suppress(HoldfastError):
                    ws = carriers.dial(way.url, None, way.ca, min(left, REMOTE_WAIT_S))
                    self._at[ws.fileno()] = ws, way
                    ws.send(
                        outer.encode(
                            outer.Hello(
                                outer.LOWEST, outer.VERSION, outer.CLIENT, f"holdfast {__version__}"
                            )
                        )
                    )
                    self._say(ws, way)

    def _say(self, ws: Carrier, way: Way) -> None:
        try:
            ws.send(outer.encode(outer.Watch(way.route, way.pass_)))
        except HoldfastError:
            self._drop(ws)

    def _drop(self, ws: Carrier) -> None:
        self._at.pop(ws.fileno(), None)
        ws.close()

    def _until(self, deadline: float, listening: bool = True) -> bool:
        """Whether a relay reported the return before the deadline."""
        while not self.cancelled and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._stop, select.POLLIN)
            if listening:
                for fd, (ws, _) in self._at.items():
                    poll.register(fd, select.POLLIN | (select.POLLOUT if ws.pending else 0))
            for fd, _ in poll.poll(left * 1000):
                if fd in self._at and self._heard(*self._at[fd]):
                    return True
        return False

    def _heard(self, ws: Carrier, way: Way) -> bool:
        back = False
        try:
            ws.flush()
            for message in ws.receive():
                frame = outer.decode(message, outer.TO_CLIENT)
                if isinstance(frame, outer.Ping):
                    ws.send(outer.encode(outer.Pong(frame.mark)))
                elif isinstance(frame, outer.Presence) and frame.route == way.route:
                    back = frame.online
        except HoldfastError:
            self._drop(ws)
        return back
