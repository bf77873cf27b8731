"""Saves a while after the first change, so that many changes cost a single write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.host.runtime.tasks import Work

SAVE_S: Final = 0.5  # from the first change to the write


class Saver:
    """Saves a file that this host writes for the next host."""

    def __init__(
        self,
        save: Callable[[], Awaitable[None]],
        spawn: Callable[[Work[None]], object],
        share: float = 0.0,
        least_s: float = SAVE_S,
    ) -> None:
        """`least_s`: the pause before a write. `share`: the pause is at least this many times the
        duration of the last write."""
        self._save, self._spawn, self._share = save, spawn, share
        self._pause_s = self._least_s = least_s
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._writing = asyncio.Lock()

    def soon(self) -> None:
        """Schedules a save, after a change."""
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._writing.locked():
            self.soon()
        else:
            self._spawn(self.now())

    async def now(self) -> None:
        """Returns when all changes up to the call are written."""
        async with self._writing:
            began = time.monotonic()
            try:
                await self._save()
            finally:
                self._pause_s = max(self._least_s, self._share * (time.monotonic() - began))

    @property
    def unsaved(self) -> bool:
        """Whether a change may not be on disk yet."""
        return self._timer is not None or self._writing.locked()

    def close(self) -> None:
        """Schedules no save from now on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
