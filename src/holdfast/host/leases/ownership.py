"""This machine's ownership of sessions: it asks the store, and keeps the lease (R3).

`take`, `release` and `status` are the only way to an epoch for a restore, a move or a session
that comes back. Two kinds of requests go to the store: those of the `Owner`, which renews one
lease for all sessions that may be re-homed, and changes of single sessions (core/lease/changes).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from holdfast.core.lease import changes, owner
from holdfast.core.lease.changes import Denied, Found, Self, Sights, Wait
from holdfast.core.lease.owner import Ask, Effect, Owner, State
from holdfast.core.lease.records import (
    HELD,
    Commit,
    Lease,
    Stored,
    Unreadable,
    lease,
    machine,
    machine_key,
    session_key,
)
from holdfast.host.leases.store import LeaseStore, StoreDenied
from holdfast.host.runtime.tasks import Tasks, wait_out
from holdfast.host.runtime.threads import Pool
from holdfast.model.errors import Fenced, HoldfastError, OutcomeUnknown, Unavailable

STORE_S: Final = 2.0  # for an answer of the store; less if the term is short
THREADS: Final = 4
TRIES: Final = 8  # of a change whose compare fails: each needs another writer
AGAIN_S: Final = 1.0  # between tries while the store cannot be reached
NOTHING: Final = Stored(b"", 0)
NO_STORE: Final = "the lease could not be renewed: the store of leases cannot be reached"

T = TypeVar("T")


class Terms(NamedTuple):
    """The options `lease.term_s` and `lease.drift`."""

    term_s: float
    drift: float


class Status(NamedTuple):
    """What the store says of a session. `left`: seconds until a successor may take it."""

    lease: Lease | None
    name: str  # of the owner's machine
    left: float


class Taken(NamedTuple):
    """An epoch of ours. `until`: the end of its lease, if the session is re-homable."""

    epoch: int
    rehomable: bool
    until: float


class Keepers(Protocol):
    """What follows from the owner's decisions."""

    def extend(self, session: str, epoch: int, until: float) -> None: ...

    def lift(self, session: str, epoch: int) -> None: ...

    def lost(self, session: str, epoch: int, found: Lease | None) -> None: ...

    def superseded(self) -> None: ...


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Ownership:
    def __init__(self, store: LeaseStore, me: str, name: str, run: int, terms: Terms) -> None:
        self.store, self.name, self.terms = store, name, terms
        self.me = Self(me, run, terms.term_s, terms.drift, name)
        self.owner = Owner(State(me, run, terms.term_s, name=name))
        self.keepers: Keepers
        self.took_s: list[float] = []  # of the newest requests, for metrics
        self.no_store = NO_STORE  # or the refusal with which the last renewal failed
        self._sights = Sights()
        self._pool = Pool(THREADS, "leases")
        self._renewing = Pool(2, "renewals")  # a second one begins when the first is given up
        self._tasks = Tasks("leases")
        self._timer: asyncio.TimerHandle | None = None
        self._within_s = min(STORE_S, terms.term_s * owner.PATIENCE)

    # ------------------------------------------------------------ the lease of this machine

    def hold(self, session: str, epoch: int) -> None:
        """The session may be re-homed: keep the lease for it, once the store has confirmed that."""
        self._handle(owner.Hold(session, epoch))

    def drop(self, session: str) -> None:
        self._handle(owner.Drop(session))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()
        self._pool.shutdown(wait=False)
        self._renewing.shutdown(wait=False)
        self.store.close()

    def _handle(self, event: owner.Event) -> None:
        effects: list[Effect] = self.owner.handle(event, boottime())
        for effect in effects:
            if isinstance(effect, Ask):
                self._tasks.spawn(self._answer(effect))
            elif isinstance(effect, owner.Extend):
                self.keepers.extend(*effect)
            elif isinstance(effect, owner.Lift):
                self.keepers.lift(*effect)
            elif isinstance(effect, owner.Lost):
                self.keepers.lost(*effect)
            else:
                self.keepers.superseded()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := self.owner.next_s) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - boottime()), self._handle, owner.Tick())

    async def _answer(self, asked: Ask) -> None:
        try:
            if asked.commit is not None:
                revision = await self._in_thread(self.store.commit, asked.commit, self._renewing)
                event: owner.Event = owner.Answer(asked.number, (), revision)
            else:
                found = await self._in_thread(self.store.read, asked.keys, self._renewing)
                event = owner.Answer(asked.number, tuple(found.items()))
            self.no_store = NO_STORE
            self._handle(event)
        except (HoldfastError, Unreadable) as e:
            denied = isinstance(e, StoreDenied)
            self.no_store = f"the lease could not be renewed: {e}" if denied else NO_STORE
            self._handle(owner.Failed(asked.number))

    async def _in_thread(
        self, work: Callable[[Any, float], T], asked: object, pool: Pool | None = None
    ) -> T:
        begin = time.monotonic()
        try:
            loop = asyncio.get_running_loop()
            return await wait_out(
                loop.run_in_executor(pool or self._pool, work, asked, self._within_s)
            )
        finally:
            self.took_s = [*self.took_s[-999:], time.monotonic() - begin]

    # ------------------------------------------------------------ single sessions

    async def take(
        self,
        session: str,
        epoch: int,
        wait: bool = False,
        waiting: Callable[[float, str], None] = lambda left, why: None,
        lost: bool = False,
    ) -> Taken:
        """The next epoch of a session, for a new incarnation here; the last one known is `epoch`.

        Its keeper must be gone, if the last incarnation was on this machine. Fenced: another
        machine may still have an incarnation. With `wait`, waits until the store can be reached
        and the owner's term is over, and tells `waiting` how long that will be. `lost`: as in
        changes.take.
        """
        while True:
            try:
                return await self._take(session, epoch, lost)
            except Wait as e:
                if not wait:
                    raise _fenced(str(e), e.left) from e
                waiting(e.left, str(e))
                await asyncio.sleep(e.left)
            except Unavailable:
                if not wait:
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _take(self, session: str, epoch: int, lost: bool) -> Taken:
        taken, sent = 0, 0.0
        for _ in range(TRIES):
            found = await self._found(session)
            now = found.lease
            if (
                taken
                and now is not None
                and (now.owner, now.epoch, now.run)
                == (
                    self.me.machine,
                    taken,
                    self.me.run,
                )
            ):
                return Taken(taken, now.rehomable, sent + self.terms.term_s)  # an answer was lost
            sent = boottime()
            try:
                taken, commit = changes.take(
                    session, epoch, found, self.me, self._sights, sent, lost
                )
            except Denied as e:
                raise Fenced(str(e), "`holdfast lease show` tells its machine") from e
            try:
                if await self._in_thread(self.store.commit, commit):
                    rehomable = now is not None and now.rehomable
                    return Taken(taken, rehomable, sent + self.terms.term_s)
            except Unavailable:
                continue
        raise Unavailable(f"the lease of {session} changes all the time", "try again")

    async def release(self, session: str, epoch: int, by: str = "host") -> None:
        """The incarnation with this epoch acts no more; its successor need not wait."""
        self.drop(session)
        await self._change(
            session, lambda f: changes.release(session, epoch, f, self.me, by, time.time())
        )

    async def invalidate(self, session: str, by: str) -> Status:
        """End the lease of a session, wherever its owner is; returns it as it was written."""
        owner = NOTHING

        def decide(found: Found) -> Commit:
            nonlocal owner
            owner = found.owner
            return changes.invalidate(session, found, self.me, by, time.time())

        commit = await self._change(session, decide, unknown=True)
        written = lease(Stored(dict(commit.puts)[session_key(session)], 1))
        assert written is not None
        return Status(written, machine(owner).name, written.wait_s)

    async def set_rehomable(
        self,
        session: str,
        epoch: int,
        on: bool,
        by: str,
        before: Callable[[float], Awaitable[None]],
    ) -> None:
        """`before` is called with the deadline that the keeper must have before the commit."""

        tried = False
        try:
            for _ in range(TRIES):
                found = await self._found(session)
                now_on = on and found.lease is not None  # a record to look at, whatever happens
                try:
                    commit = changes.set_rehomable(
                        session,
                        epoch,
                        now_on,
                        found,
                        self.me,
                        by,
                        time.time(),
                        self._sights,
                        boottime(),
                    )
                except Wait as e:
                    raise _fenced(str(e), e.left) from e
                except Denied as e:
                    raise _fenced(str(e), 0.0) from e
                if now_on:
                    await before(boottime() + self.terms.term_s)
                tried = tried or now_on == on
                if await self._in_thread(self.store.commit, commit) and now_on == on:
                    return
            raise Unavailable(f"the lease of {session} changes all the time", "try again")
        finally:
            if (
                tried
            ):  # whatever took effect: the owner looks, and lifts a deadline that is too much
                self.hold(session, epoch)

    async def _change(
        self, session: str, decide: Callable[[Found], Commit], unknown: bool = False
    ) -> Commit:
        """`unknown`: OutcomeUnknown if the store did not answer a commit; else Unavailable."""
        for _ in range(TRIES):
            try:
                commit = decide(await self._found(session))
            except Denied as e:
                raise _fenced(str(e), 0.0) from e
            try:
                if await self._in_thread(self.store.commit, commit):
                    return commit
            except Unavailable as e:
                if not unknown or isinstance(e, StoreDenied):
                    raise
                why = f"the store of leases did not say whether it took effect: {e.message}"
                raise OutcomeUnknown(why, f"`holdfast lease show {session}` tells") from e
        raise Unavailable(f"the lease of {session} changes all the time", "try again")

    async def status(self, session: str) -> Status:
        found = await self._found(session)
        now = found.lease
        left = changes.left(session, found, self.me, self._sights, boottime())
        return Status(now, machine(found.owner).name, left)

    async def _found(self, session: str) -> Found:
        """The records of a session and of its owner. The commit's compare covers both."""
        key, own = session_key(session), machine_key(self.me.machine)
        read = await self._in_thread(self.store.read, (key, own))
        now = lease(read[key])
        theirs = NOTHING
        if now is not None:
            other = machine_key(now.owner)
            if other not in read:
                read |= await self._in_thread(self.store.read, (other,))
            theirs = read[other]
        return Found(read[key], theirs, read[own])


def _fenced(why: str, left: float) -> Fenced:
    until = time.time() + left if left else None
    return Fenced(why, "`holdfast lease show SESSION` tells until when", until=until)


__all__ = ["HELD", "Ownership", "Status", "Terms", "boottime"]
