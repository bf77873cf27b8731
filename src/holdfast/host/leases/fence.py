"""The fence of one session: the deadline of its keeper, and the refusal while it is fenced."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.lease.records import INVALIDATED, Lease
from holdfast.host.leases.ownership import NO_STORE
from holdfast.model.errors import Fenced, Unavailable
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.session.session import Session


class Awaited(Unavailable):
    """A session cannot come back yet: its next epoch is not to be had now, but may be later."""


@dataclass(slots=True)
class Fence:
    until: float = 0.0  # of the keeper's deadline, on CLOCK_BOOTTIME
    freeze_fd: int = -1
    newest: int | None = None  # the deadline that the keeper has not been given yet
    giving: asyncio.Task[None] | None = None  # until the keeper has read all deadlines
    timer: asyncio.TimerHandle | None = None
    ours: bool = True
    why: str = ""
    free: float = 0.0  # of an invalidated lease: when the session may be taken back
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def saw(self, found: Lease | None, left: float) -> None:
        """The store says this of the lease; a successor may take it in `left` seconds."""
        invalidated = found is not None and found.state == INVALIDATED
        self.free = time.time() + left if invalidated else 0.0

    def give(self, session: Session, group: str) -> None:
        """Send the newest deadline, with the freezer of the control group if there is one."""
        assert self.newest is not None
        packet = wire.fence(session.record.epoch, self.newest)
        self.newest = None
        if self.freeze_fd < 0:
            try:
                self.freeze_fd = os.open(f"{group}/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                self.freeze_fd = -1  # then the keeper stops the processes itself
        if self.freeze_fd < 0 or not session.link.send_descriptor(packet, self.freeze_fd):
            session.link.send(packet)

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.giving is not None:
            self.giving.cancel()
        if self.freeze_fd >= 0:
            os.close(self.freeze_fd)
            self.freeze_fd = -1


def refusal(name: str, fence: Fence | None) -> Fenced:
    """The refusal of a client, with the way on."""
    why = fence.why if fence is not None and fence.why else NO_STORE
    if fence is None or not fence.free:
        renews = fence is None or fence.ours
        on = "it goes on when its lease is back" if renews else "it does not go on by itself"
        return Fenced(
            f"session {name} is fenced: {why}",
            f"{on}; `holdfast lease show {name}` tells more",
            why=why,
        )
    clock = time.strftime("%H:%M:%S", time.localtime(fence.free))
    return Fenced(
        f"session {name} is fenced: {why}",
        f"from {clock} on, `holdfast rehome {name} on` takes it back, and `holdfast restore` at "
        "another machine takes it over",
        why=why,
        until=fence.free,
    )
