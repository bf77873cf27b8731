"""Waiting for a machine that is away: at its relays, which say when it is back, instead of dialling it again and again.

A relay's word is a hint, never trusted. One that says "back" when it is not costs a dial, and after each such dial there is a longer pause; one that
says nothing costs time: after WATCH_LOOK_S the machine is dialled all the same. A connection that waits here carries nothing of ours but the route and the pass, which
the relay has seen.
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
    """Used by one thread; `cancel` is for others."""

    def __init__(self, machine: Machine, look_s: float = WATCH_LOOK_S) -> None:
        self._ways, self._look_s = machine.ways, look_s
        self._at: dict[int, tuple[Carrier, Way]] = {}  # by descriptor: where it waits
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._told = 0  # how often it was said to be back, since it was waited for in vain
        self.cancelled = False

    def wait(self) -> None:
        """Until it may be worth dialling again. Called again, it was not."""
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
        """Waits at each relay where it does not yet; asks the others anew, for what they said has been used."""
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
        """Whether somebody said that it is back before then."""
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
