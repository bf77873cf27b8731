"""The fence: at a deadline on the machine's clock this incarnation stops acting.

The keeper enforces the deadline because a paused host cannot. CLOCK_BOOTTIME also advances while
the machine sleeps. The timer only wakes the loop; the clock decides and is read before each act,
because after a pause of this process an act may be served before the timer. At the deadline `up`
becomes true and the freeze descriptor, if any, is written: with a cgroup's `cgroup.freeze` that
stops every program of the session. A new deadline, or 0 for none, lifts the fence; the host thaws
the programs. Without a descriptor, the keeper stops the programs by init or by signals (tree.py).
"""

from __future__ import annotations

import os
import time

from holdfast.keeper import terminal


class Fence:
    __slots__ = ("deadline_ns", "freeze", "frozen", "timer", "up")

    def __init__(self) -> None:
        self.timer = terminal.boottime_timer()
        self.freeze = -1
        self.deadline_ns = 0
        self.up = False
        self.frozen = False  # the descriptor was written

    def begin(self, deadline_ns: int, cgroup: bytes) -> None:
        """Set the first deadline; `cgroup`: of the programs, or empty."""
        freeze = -1
        if cgroup:
            try:
                freeze = os.open(cgroup + b"/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                pass
        self.set(deadline_ns, freeze)

    def set(self, deadline_ns: int, freeze: int) -> None:
        """Set a new deadline, and the descriptor to write at that time; -1: the last one stays."""
        terminal.arm_timer(self.timer, deadline_ns)
        self.deadline_ns, self.up = deadline_ns, False
        if freeze >= 0:
            if self.freeze >= 0:
                os.close(self.freeze)
            self.freeze = freeze

    def falls(self) -> bool:
        """Tell whether the deadline has passed since the last call."""
        if (
            not self.deadline_ns
            or self.up
            or time.clock_gettime_ns(time.CLOCK_BOOTTIME) < self.deadline_ns
        ):
            return False
        self.up, self.frozen = True, False
        terminal.arm_timer(self.timer, 0)
        if self.freeze >= 0:
            try:
                os.pwrite(self.freeze, b"1", 0)
                self.frozen = True
            except OSError:
                pass
        return True
