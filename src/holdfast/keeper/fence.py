"""The fence: at a deadline on the machine's own clock this incarnation stops acting, as a paused host cannot see to it.

CLOCK_BOOTTIME goes on while the machine sleeps. The timer only wakes the loop; what counts is the clock, looked at
before each act (after a pause of this process, an act may be served before its timer is). At the deadline `up` is
raised, and the freeze descriptor, if there is one, is written: with a cgroup's `cgroup.freeze` that stops every
program of the session. A new deadline, or none (0), lifts the fence; to thaw is the host's business.
"""

from __future__ import annotations

import os
import time

from holdfast.keeper import terminal


class Fence:
    __slots__ = ("deadline_ns", "freeze", "timer", "up")

    def __init__(self) -> None:
        self.timer = terminal.boottime_timer()
        self.freeze = -1
        self.deadline_ns = 0
        self.up = False

    def set(self, deadline_ns: int, freeze: int) -> None:
        """The deadline from now on, and a descriptor of its own to be written then (or -1)."""
        terminal.arm_timer(self.timer, deadline_ns)
        if self.freeze >= 0:
            os.close(self.freeze)
        self.deadline_ns, self.freeze, self.up = deadline_ns, freeze, False

    def falls(self) -> bool:
        """Whether the deadline has passed since this was asked last."""
        if (
            not self.deadline_ns
            or self.up
            or time.clock_gettime_ns(time.CLOCK_BOOTTIME) < self.deadline_ns
        ):
            return False
        self.up = True
        terminal.arm_timer(self.timer, 0)
        if self.freeze >= 0:
            try:
                os.pwrite(self.freeze, b"1", 0)
            except OSError:
                pass
        return True
