"""How far the ring may roll: who keeps up may hold the program back for a moment, who does not may not.

The keeper overwrites nothing that the host has not called consumed. That is the oldest of: the last snapshot (or a new host could not
have the screen), viewers that keep up, streams that must not miss a byte (`run`, `read --follow`), and after a restart of the
host whatever the clients on their way back may still need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host.keeperlink import KeeperLink
from holdfast.model.limits import PACE_WINDOW_S, RECONNECT_MAX_S
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.viewer import Viewer

RETURN_S = (
    3 * RECONNECT_MAX_S
)  # in which clients are back, from when a new host can be reached: half as long again is their longest pause, the rest is for a busy machine
SETTLE_S = 0.5  # from when the last of them is here until it has said where it was
RETURN_MAX_S = 10.0  # if some who were attached when the last one died are not
LATE_PART = (
    0.5  # of a window: a host that looks this late was held up itself, and could serve nobody; ...
)
EXCUSED = 3  # ... so often in a row nobody is blamed for that


class Pace:
    def __init__(
        self, link: KeeperLink, viewers: list[Viewer], snapshot_at: Callable[[], int]
    ) -> None:
        self.consumed = link.welcome.consumed
        self.window_s = PACE_WINDOW_S
        self.returned = asyncio.Event()  # nobody is on the way back
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
        self.skips = 0  # times that a viewer was not waited for
        self.expected = 0  # viewers that are on their way back, or are back

    @property
    def full(self) -> bool:
        return self._ring.head - self.consumed >= self._ring.size

    @property
    def _pressed(self) -> bool:
        return self._ring.head - self.consumed > self._ring.size // 2

    def look(self) -> None:
        """Is the ring half full of what somebody still needs, or somebody far behind?"""
        if self._pressed:
            self.report()
        if self._window is None and (self._pressed or any(v.falls_behind for v in self._viewers)):
            for viewer in self._viewers:
                viewer.pace_mark = viewer.taken
            self._window = self._loop.call_later(self.window_s, self._check)

    def _check(self) -> None:
        late, self._window = (
            self._window is not None
            and self._loop.time() - self._window.when() > LATE_PART * self.window_s,
            None,
        )
        self._excused = self._excused + 1 if late and self._excused < EXCUSED else 0
        for viewer in self._viewers if not self._excused else ():
            viewer.check_catching_up(self.window_s)
            if self._pressed:
                viewer.check_pace()
            if viewer.lagging:
                viewer.pump()
        self.look()

    def await_return(self, viewers: int) -> None:
        """After a restart of the host: clients are on their way back and say where they were. Until then nothing rolls off. `viewers`: how many there were."""
        self.returned.clear()
        self.expected, self._patience = viewers, self._loop.time() + RETURN_MAX_S
        self._returning = self._loop.call_later(RETURN_MAX_S, self._waited)

    def reachable(self) -> None:
        """The host can be reached from now on: the time in which clients come back begins."""
        if self._returning is not None:
            self._returning.cancel()
            self._returning = self._loop.call_later(RETURN_S, self._waited)

    def _waited(self) -> None:
        if len(self._viewers) < self.expected and self._loop.time() < self._patience:
            self._returning = self._loop.call_later(RETURN_S, self._waited)
            return
        self._all_back()

    def company(self) -> int:
        """Somebody came or left. Gives how many there are, or are to come back: if all of them are here, nobody is waited for any more."""
        if self._returning is not None and 0 < self.expected <= len(self._viewers):
            self.expected = 0
            self._returning.cancel()
            self._returning = self._loop.call_later(SETTLE_S, self._waited)
        return max(len(self._viewers), self.expected)

    def wait_no_more(self) -> None:
        """For whoever is not back: somebody ends the session."""
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
        floor = min(
            [
                self._snapshot_at(),
                *(v.taken for v in self._viewers if v.paces),
                *self._held.values(),
            ]
        )
        if floor > self.consumed:
            self.consumed = floor
            self._link.send(wire.consumed(floor))
            probe("host.consumed.sent")

    def hold(self, who: object, offset: int | None) -> None:
        """A stream that must not miss bytes holds the ring at `offset`; None lets go."""
        if offset is None:
            self._held.pop(who, None)
        else:
            self._held[who] = offset
        self.report()

    def close(self) -> None:
        for timer in (self._window, self._returning):
            if timer is not None:
                timer.cancel()
