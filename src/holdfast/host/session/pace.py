"""Decides how much output the keeper may overwrite: slow viewers must not block the program.

The keeper overwrites only output that the host has reported as consumed. The consumed offset is the
lowest of: the last snapshot (a new host needs it for the screen), the positions of viewers that
keep up, the positions of streams that must not miss a byte (`run`, `read --follow`), and after a
restart of the host the output that returning clients may still need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host.session.keeper_link import KeeperLink
from holdfast.model.limits import PACE_WINDOW_S, RECONNECT_MAX_S
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.session.viewer import Viewer

# Clients are back this long after a new host can be reached. Their longest pause is 1.5 times
# RECONNECT_MAX_S; the rest is for a busy machine.
RETURN_S = 3 * RECONNECT_MAX_S
SETTLE_S = 0.5  # from the arrival of the last client until its position is known
RETURN_MAX_S = 10.0  # if not all clients that were attached to the last host are back
# If the check comes this part of a window too late, the host itself was held up and could not
# serve its viewers; ...
LATE_PART = 0.5
EXCUSED = 3  # ... for so many windows in a row no viewer is judged


class Pace:
    def __init__(
        self, link: KeeperLink, viewers: list[Viewer], snapshot_at: Callable[[], int]
    ) -> None:
        self.consumed = link.welcome.consumed
        self.window_s = PACE_WINDOW_S
        self.returned = asyncio.Event()  # set while no client of the last host is awaited
        self.returned.set()
        self._link = link
        self._ring = link.ring
        self._viewers = viewers
        self._snapshot_at = snapshot_at
        self._held: dict[object, int] = {}
        self._loop = asyncio.get_running_loop()
        self._window: asyncio.TimerHandle | None = None
        self._excused = 0
        self._returning: asyncio.TimerHandle | None = None
        self._patience = 0.0
        self.skips = 0  # how often a viewer got the newest screen instead of the output
        self.expected = 0  # how many viewers the last host had, while they are awaited

    @property
    def full(self) -> bool:
        return self._ring.head - self.consumed >= self._ring.size

    @property
    def _pressed(self) -> bool:
        return self._ring.head - self.consumed > self._ring.size // 2

    def look(self) -> None:
        """Starts a check of the viewers if the ring is half full or one of them is far behind."""
        if self._pressed:
            self.report()
        if self._window is None and (self._pressed or any(v.falls_behind for v in self._viewers)):
            for viewer in self._viewers:
                viewer.pace_mark = viewer.taken
            self._window = self._loop.call_later(self.window_s, self._check)

    def _check(self) -> None:
        timer, self._window = self._window, None
        late = timer is not None and self._loop.time() - timer.when() > LATE_PART * self.window_s
        self._excused = self._excused + 1 if late and self._excused < EXCUSED else 0
        for viewer in self._viewers if not self._excused else ():
            viewer.check_catching_up(self.window_s)
            if self._pressed:
                viewer.check_pace()
            if viewer.lagging:
                viewer.pump()
        self.look()

    def await_return(self, viewers: int) -> None:
        """After a restart of the host: keeps all output until the clients are back.

        `viewers`: how many were attached to the last host. Each says where it was.
        """
        self.returned.clear()
        self.expected, self._patience = viewers, self._loop.time() + RETURN_MAX_S
        self._returning = self._loop.call_later(RETURN_MAX_S, self._waited)

    def reachable(self) -> None:
        """The host can be reached from now on: the time for clients to come back begins."""
        if self._returning is not None:
            self._returning.cancel()
            self._returning = self._loop.call_later(RETURN_S, self._waited)

    def _waited(self) -> None:
        if len(self._viewers) < self.expected and self._loop.time() < self._patience:
            self._returning = self._loop.call_later(RETURN_S, self._waited)
            return
        self._all_back()

    def company(self) -> int:
        """A viewer came or left. Returns how many there are, or how many are expected.

        When all expected viewers are here, the wait for them is over.
        """
        if self._returning is not None and 0 < self.expected <= len(self._viewers):
            self.expected = 0
            self._returning.cancel()
            self._returning = self._loop.call_later(SETTLE_S, self._waited)
        return max(len(self._viewers), self.expected)

    def wait_no_more(self) -> None:
        """Stops waiting for clients: an operator ends the session."""
        if self._returning is not None:
            self._returning.cancel()
            self._all_back()

    def _all_back(self) -> None:
        self._returning, self.expected = None, 0
        self.returned.set()
        self.report()

    def report(self) -> None:
        if self._returning is not None:
            return
        taken = (v.taken for v in self._viewers if v.paces)
        floor = min((self._snapshot_at(), *taken, *self._held.values()))
        if floor > self.consumed:
            self.consumed = floor
            self._link.send(wire.consumed(floor))
            probe("host.consumed.sent")

    def hold(self, who: object, offset: int | None) -> None:
        """Keeps output from `offset` on for a stream that must not miss bytes; None releases it."""
        if offset is None:
            self._held.pop(who, None)
        else:
            self._held[who] = offset
        self.report()

    def close(self) -> None:
        for timer in (self._window, self._returning):
            if timer is not None:
                timer.cancel()
