"""A session that counts, the clock's view of it, and another machine that wants the session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from holdfast.core.lease.records import Lease
from holdfast.host.leases.ownership import Ownership, Status, Taken, Terms
from holdfast.host.leases.store import LeaseStore
from tests.support.installation import Installation, eventually

TERM_S = 2.0
DRIFT = 0.25
LOOK_S = 0.4  # a running counter counts several times in this time


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Counter:
    """A program that writes the time into a file until it is stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Only the shell itself: a program that it starts would wait for the policy of the host.
        self.command = (
            f"while :; do read -r up rest </proc/uptime; echo $up >>{path}; "
            "read -rt 0.02 -u 9; done"
        )

    def last(self) -> float:
        """When it counted last, on CLOCK_BOOTTIME."""
        lines = self.path.read_text().split()
        return float(lines[-1]) if lines else 0.0

    def stands(self) -> bool:
        before = self.last()
        select.select([], [], [], LOOK_S)
        return self.last() == before

    def goes_on(self) -> bool:
        return not self.stands()


def counting(hf: Installation, name: str, *options: str) -> Counter:
    """A re-homable session whose program counts."""
    counter = Counter(hf.user / f"{name}.count")
    hf.ready(name, *options)
    os.mkfifo(f"{counter.path}.fifo")
    hf.quick("send", name, f"exec 9<>{counter.path}.fifo", "--enter")
    hf.quick("rehome", name, "on")
    hf.quick("send", name, counter.command, "--enter")
    eventually(lambda: counter.last() > 0, "the program counts")
    return counter


class Rival:
    """Another machine of the fleet, as far as the store can tell: it has no host."""

    def __init__(self, make: Callable[[], LeaseStore], name: str = "rival") -> None:
        self._make, self.name = make, name

    def _with(self, work: Callable[[Ownership], object]) -> object:
        async def go() -> object:
            terms = Terms(TERM_S, DRIFT)
            ownership = Ownership(self._make(), self.name, self.name, 1, terms)
            try:
                return await work(ownership)  # type: ignore[misc]
            finally:
                ownership.close()

        return asyncio.run(go())

    def takes(self, session: str) -> tuple[int, float]:
        """The epoch, and when it was taken; waits as long as it must."""

        async def take(ownership: Ownership) -> tuple[int, float]:
            return (await ownership.take(session, 0, wait=True)).epoch, boottime()

        return self._with(take)  # type: ignore[return-value]

    def tries(self, session: str) -> Taken:
        """Without waiting."""
        return self._with(lambda o: o.take(session, 0))  # type: ignore[return-value]

    def invalidates(self, session: str) -> None:
        self._with(lambda o: o.invalidate(session, self.name))

    def status(self, session: str) -> Status:
        return self._with(lambda o: o.status(session))  # type: ignore[return-value]

    def lease(self, session: str) -> Lease:
        found = self.status(session).lease
        assert found is not None
        return found


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nothing can be read from or written to the SQLite store."""
    db = apsw.Connection(os.fspath(path))
    db.set_busy_timeout(60_000)
    db.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()
