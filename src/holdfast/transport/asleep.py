"""Detect that the machine was asleep, by comparing two clocks.

CLOCK_MONOTONIC stops during sleep and CLOCK_BOOTTIME does not. A connection from before the sleep
is most likely dead, and no event says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NOTICED_S: Final = 2.0  # shorter sleeps do no harm


class Asleep:
    def __init__(
        self,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        awake: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._since_boot, self._awake = since_boot, awake
        self._lag = since_boot() - awake()

    def since(self) -> bool:
        """Tell whether the machine slept since the last call."""
        before, self._lag = self._lag, self._since_boot() - self._awake()
        return self._lag - before > NOTICED_S
