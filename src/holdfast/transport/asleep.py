"""Whether the machine was asleep: the clock that stands still meanwhile lags behind the one that does not. A connection from before is as good as dead then, and nothing says so."""

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
        """Since this was asked the last time."""
        before, self._lag = self._lag, self._since_boot() - self._awake()
        return self._lag - before > NOTICED_S
