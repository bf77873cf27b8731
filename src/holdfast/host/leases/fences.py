"""The leases of this host's sessions, and the fences that follow from them (R3).

A session is pinned unless an operator made it re-homable: it needs no lease, and never freezes. The
keeper of a re-homable session has a deadline, the end of this machine's lease. The host freezes the
session a moment before, and says so; if the host cannot, the keeper does it at the deadline. When
the lease is back and no later epoch exists, the session goes on. Otherwise it is ended here.

The store is opened when the first session needs it: a machine with pinned sessions only has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.lease.records import HELD, RELEASED, Lease
from holdfast.host.leases.fence import Awaited, Fence, refusal
from holdfast.host.leases.ownership import NO_STORE, Ownership, Status, boottime
from holdfast.host.processes.halt import Halter, execution
from holdfast.host.runtime.tasks import Tasks, to_the_end
from holdfast.host.session.keeper_link import stuck
from holdfast.host.session.session import Leased, Session
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import Fenced, HoldfastError, Refused, Unavailable
from holdfast.wire import ring as layout

EARLY: Final = 0.05  # of a term: the host freezes before the keeper has to
EARLY_MAX_S: Final = 0.5
AT_ONCE_NS: Final = 1  # a deadline that has passed
WATCH_S: Final = 1.0  # between looks at a lease that was invalidated
LOOK_S: Final = 0.05  # after the end of a term
TAKE_S: Final = 3.0  # for the next epoch of a session that comes back; then it waits in background
AGAIN_S: Final = 1.0  # between questions of a session that waits for its epoch
KEEPER_S: Final = 5.0  # for the keeper to read a deadline
LATE: Final = "its keeper stood still when the lease was renewed"

Waiting = Callable[[float, str], None]


def silent(left: float, why: str) -> None:
    """Tell no client how long a lease is awaited."""


@dataclass(slots=True)
class _Taken:
    """An epoch of ours that has not begun. `until`: the end of its lease; `lost`: it has ended."""

    epoch: int
    until: float
    lost: bool = False


class Leases:
    """The port for everything that begins or ends incarnations, and an observer of sessions."""

    def __init__(
        self,
        make: Callable[[], Ownership],
        shared: bool,
        halter: Halter,
        sessions: Mapping[str, Session],
        runs: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`shared`: other machines use the store too; then pinned sessions are not in it.

        `runs`: whether an incarnation of the session may act here, also without being known.
        """
        self.shared, self._runs = shared, runs
        self._make, self._halter, self._sessions = make, halter, sessions
        self._made: Ownership | None = None
        self._fences: dict[str, Fence] = {}
        self._taken: dict[str, _Taken] = {}  # of re-homable sessions
        self._tasks = Tasks("the fence of a session")

    @property
    def ownership(self) -> Ownership:
        if self._made is None:
            self._made = self._make()
            self._made.keepers = self
        return self._made

    # ------------------------------------------------------------ epochs, for other rooms

    async def acquire(
        self,
        session: str,
        epoch: int,
        wait: bool = False,
        waiting: Waiting = silent,
        lost: bool = False,
    ) -> int:
        """The next epoch of a session: Ownership.take. Its lease is renewed from now on."""
        self._taken.pop(session, None)
        taken = await self.ownership.take(session, epoch, wait, waiting, lost)
        if taken.rehomable:
            self._taken[session] = _Taken(taken.epoch, taken.until)
            self.ownership.hold(session, taken.epoch)
        return taken.epoch

    def deadline_ns(self, session: str) -> int:
        """The deadline with which an incarnation begins; 0: none. Refuses one without a lease."""
        if (taken := self._taken.get(session)) is None:
            return 0
        if taken.lost or taken.until <= boottime():
            raise Fenced(
                f"the lease of {session} ended before its incarnation could begin",
                "`holdfast lease show` tells where it is; try again",
            )
        return int(taken.until * 1e9)

    async def give_up(self, session: str) -> None:
        """Release an epoch whose incarnation could not be made."""
        if (taken := self._taken.get(session)) is not None:
            with contextlib.suppress(HoldfastError):
                await asyncio.shield(self._tasks.spawn(self.release(session, taken.epoch)))

    async def take_next(self, row: SessionRow) -> None:
        """Take the next epoch for an incarnation here: afterwards `row.epoch + 1` is only ours.

        Waits for the store. Fenced: another machine has the session.
        """
        if not row.rehomable and self.shared:
            return
        with contextlib.suppress(Unavailable):
            found = await self.status(row.id)
            mine = found.lease is None or found.lease.owner == self.ownership.me.machine
            if found.lease is not None and not mine and found.lease.state != RELEASED:
                raise Fenced(f"epoch {found.lease.epoch} lives on {found.name}")
        row.epoch = await self.acquire(row.id, row.epoch, row.rehomable) - 1

    async def take_soon(self, row: SessionRow) -> None:
        """As `take_next`, within TAKE_S. Awaited: that is not possible yet."""
        if not row.rehomable and self.shared:
            return
        later = "it comes back as soon as the lease can be taken"
        try:
            async with asyncio.timeout(TAKE_S):
                row.epoch = await self.acquire(row.id, row.epoch) - 1
        except TimeoutError:
            raise Awaited(f"the store of leases takes longer than {TAKE_S:g} s", later) from None
        except Unavailable as e:
            raise Awaited(e.message, later) from e
        except Fenced as e:
            if not isinstance(until := e.facts.get("until"), float):
                raise
            clock = time.strftime("%H:%M:%S", time.localtime(until))
            raise Awaited(f"{e.message}, until {clock}", later, until=until) from e

    async def can_be_taken(self, session: str) -> None:
        """Wait until the store answers, and a successor of the last incarnation need not wait."""
        while True:
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(Unavailable):
                found = await self.status(session)
                if found.lease is None or found.lease.state == HELD or not found.left:
                    return

    async def take_over(self, row: SessionRow, lost: bool, waiting: Waiting = silent) -> None:
        """The same for an operator's restore, also of another machine's session.

        The store decides, not the row: an operator may have made the session re-homable after its
        checkpoint. Waits once for the owner's term. Fenced: the owner renews its lease.
        Unavailable: the store does not answer. `lost`: an operator states that the machine is gone.
        """
        found = await self.known(row.id)
        if found.lease is None and self.shared:
            return  # pinned
        row.rehomable = found.lease is not None and found.lease.rehomable
        for last in (False, True):
            try:
                row.epoch = await self.acquire(row.id, row.epoch, lost=lost, waiting=waiting) - 1
                return
            except Fenced as e:
                until = e.facts.get("until")
                if not isinstance(until, float):
                    raise
                if last:
                    raise Fenced(
                        f"{found.name} has its lease of {row.name}, and renews it",
                        f"`holdfast move` there, or `holdfast lease invalidate {row.id}`",
                    ) from e
                left = max(0.0, until - time.time())
                waiting(left, e.message)
                await asyncio.sleep(left + LOOK_S)

    async def known(self, session: str) -> Status:
        """The lease of a session; Unavailable, with the advice, if the store does not answer."""
        try:
            return await self.status(session)
        except Unavailable as e:
            if not e.retry_safe:
                raise
            why = f"the store of leases must say who may have this session: {e.message}"
            raise Unavailable(why, "nothing was changed; try again when the store answers") from e

    async def release(self, session: str, epoch: int, by: str = "host") -> None:
        """The incarnation acts no more: its successor, on any machine, need not wait.

        Refused: something of the session may still act here.
        """
        until = boottime() + KEEPER_S
        while await self._runs(session):
            if session in self._sessions or boottime() > until:
                raise Refused(f"session {session} runs here: its lease is not released")
            await asyncio.sleep(LOOK_S)  # a keeper that was released takes a moment to exit
        await self.ownership.release(session, epoch, by)
        self._taken.pop(session, None)

    async def let_go(self, session: str) -> None:
        """Release the lease of a session that has no incarnation here, if this machine has it."""
        found = (await self.known(session)).lease
        if found is not None and found.owner == self.ownership.me.machine:
            await self.release(session, found.epoch)

    async def status(self, session: str) -> Status:
        return await self.ownership.status(session)

    # ------------------------------------------------------------ an operator's changes

    async def invalidate(self, session_id: str, by: str) -> Status:
        """End a lease, wherever its owner is. An incarnation here is fenced on return.

        OutcomeUnknown: the store did not say whether it took effect.
        """
        return await to_the_end(self._invalidate(session_id, by), lambda: False)

    async def _invalidate(self, session_id: str, by: str) -> Status:
        status = await self.ownership.invalidate(session_id, by)
        found = status.lease
        session, fence = self._of(session_id, found.epoch if found is not None else 0)
        if session is not None and fence is not None and found is not None:
            self.ownership.drop(session_id)
            self.lost(session_id, found.epoch, found)
            await self._freeze(session, fence, _why(found, found.epoch))
        with contextlib.suppress(Unavailable):
            return await self.status(session_id)
        return status  # it took effect, whether or not the store can still be asked

    async def set_rehomable(self, session: Session, on: bool, by: str) -> None:
        fence = self._fences.setdefault(session.id, Fence())

        async def before(until: float) -> None:
            """The deadline comes first: a paused host could not set it after the commit."""
            if session.state != "fenced":
                self._set(session, until)
                await self._given(session, fence)

        try:
            await self.ownership.set_rehomable(session.id, session.record.epoch, on, by, before)
        except HoldfastError:
            if not fence.until and fence.ours:  # no deadline was set
                self._fences.pop(session.id, None)
            raise
        fence.ours, fence.free = True, 0.0
        session.record.rehomable = on
        session.event("session.rehomable", operator=by, on=on)

    # ------------------------------------------------------------ sessions

    def begin(self, session: Session) -> None:
        """Observer: a session begins, or this host found it."""
        session.lease = lambda: self.shown(session)
        session.fenced = lambda: self.refusal(session)
        session.on_fence_fell = lambda: self._fell(session)
        taken = self._taken.pop(session.id, None)
        session.record.rehomable = session.record.rehomable or taken is not None
        if session.record.rehomable:
            self._fences[session.id] = Fence()
        if taken is not None and taken.epoch == session.record.epoch:
            self._set(session, taken.until)
            if taken.lost:
                self.lost(session.id, taken.epoch, None)

    def adopted(self, session: Session, was: str) -> None:
        """The last host's session, in the state `was`, may have been fenced meanwhile."""
        fence = self._fences.get(session.id)
        if fence is None:
            return
        if session.ring.flags & layout.FLAG_FENCED or was == "fenced":
            fence.why = NO_STORE
            session.record.halted = was == "halted" or (was == "fenced" and session.record.halted)
            session.record.state = "fenced"
            self._halter.fenced.add(session.id)
        # The last host's deadline stands; it ends before this one would.
        fence.until = boottime() + self.ownership.terms.term_s
        self._watch(session.id, fence)
        self.ownership.hold(session.id, session.record.epoch)

    def end(self, session: Session) -> None:
        """Observer: a session ended."""
        fence = self._fences.pop(session.id, None)
        if fence is not None:
            self.ownership.drop(session.id)
            fence.close()
        self._halter.fenced.discard(session.id)

    def halted(self, session: Session) -> bool:
        """An operator halts the session. If it is fenced (True), it stays halted afterwards."""
        session.record.halted = session.state == "fenced"
        return session.record.halted

    def refuse(self, session: Session) -> None:
        """Refuse a client that wants to attach to a fenced incarnation."""
        if session.state == "fenced" or session.ring.flags & layout.FLAG_FENCED:
            raise self.refusal(session)

    def refusal(self, session: Session) -> Fenced:
        return refusal(session.name, self._fences.get(session.id))

    def shown(self, session: Session) -> Leased | None:
        """The lease as `ls` shows it, without asking the store; None: pinned."""
        fence, fenced = self._fences.get(session.id), session.state == "fenced"
        if fence is None or not (session.record.rehomable or fenced):
            return None
        until = time.time() + fence.until - boottime()
        return Leased(
            owner=self.ownership.me.machine,
            machine=self.ownership.name,
            epoch=session.record.epoch,
            until=round(until, 3) if fence.ours and not fenced else None,
            rehomable=True,
            state="fenced" if fenced else "held",
            why=fence.why if fenced else "",
        )

    def close(self) -> None:
        """Leave the sessions: their keepers keep the deadlines."""
        self._tasks.cancel()
        for fence in self._fences.values():
            if fence.timer is not None:
                fence.timer.cancel()
        if self._made is not None:
            self._made.close()

    # ------------------------------------------------------------ what the owner decides

    def extend(self, session_id: str, epoch: int, until: float) -> None:
        session, fence = self._of(session_id, epoch)
        if (taken := self._taken.get(session_id)) is not None and taken.epoch == epoch:
            taken.until = until
        if session is None or fence is None or until <= boottime():
            return
        fence.ours = True
        if session.state == "fenced":
            self._tasks.spawn(self._thaw(session, fence, until))
        else:
            self._set(session, until)

    def lift(self, session_id: str, epoch: int) -> None:
        session, fence = self._of(session_id, epoch)
        if session is not None and fence is not None:
            self._tasks.spawn(self._lift(session, fence))

    def lost(self, session_id: str, epoch: int, found: Lease | None) -> None:
        session, fence = self._of(session_id, epoch)
        if (taken := self._taken.get(session_id)) is not None and taken.epoch == epoch:
            taken.lost = True
        if session is None or fence is None:
            return
        fence.ours, fence.until = False, 0.0
        fence.saw(found, found.wait_s if found is not None else 0.0)
        if fence.timer is not None:
            fence.timer.cancel()
        self._send(session, fence, AT_ONCE_NS)
        self._tasks.spawn(self._give_up(session, fence, found))

    def superseded(self) -> None:
        for taken in self._taken.values():
            taken.lost = True
        for session_id in [*self._fences]:
            if (session := self._sessions.get(session_id)) is not None:
                self.lost(session_id, session.record.epoch, None)

    def _of(self, session_id: str, epoch: int) -> tuple[Session | None, Fence | None]:
        session = self._sessions.get(session_id)
        if session is None or session.record.epoch != epoch:
            return None, None
        return session, self._fences.get(session_id)

    # ------------------------------------------------------------ deadlines

    def _set(self, session: Session, until: float) -> None:
        fence = self._fences[session.id]
        fence.until = until
        self._send(session, fence, int(until * 1e9))
        self._watch(session.id, fence)

    def _send(self, session: Session, fence: Fence, deadline_ns: int) -> None:
        """Give the keeper this deadline, once it has read the last one.

        A keeper that stood still must not find many deadlines that have passed meanwhile.
        """
        fence.newest = deadline_ns
        if fence.giving is None or fence.giving.done():
            self._give(session, fence)
            fence.giving = self._tasks.spawn(self._give_newest(session, fence))

    async def _give_newest(self, session: Session, fence: Fence) -> None:
        await session.terminal(None)
        while fence.newest is not None:
            self._give(session, fence)
            await session.terminal(None)

    async def _given(self, session: Session, fence: Fence) -> None:
        """Wait until the keeper has read the newest deadline."""
        if fence.giving is not None:
            await asyncio.wait({fence.giving}, timeout=KEEPER_S)
            if not fence.giving.done():
                raise stuck(session.name, session.keeper_pid)

    def _fell(self, session: Session) -> None:
        """The keeper read a new deadline after the old one, at which it stopped the programs."""
        fence = self._fences.get(session.id)
        if fence is not None and session.state != "fenced":
            self._tasks.spawn(self._fenced_by_keeper(session, fence))

    async def _fenced_by_keeper(self, session: Session, fence: Fence) -> None:
        await self._freeze(session, fence, LATE)
        self.ownership.hold(session.id, session.record.epoch)  # a renewal ends it

    def _give(self, session: Session, fence: Fence) -> None:
        group = self._halter.groups.find(session.id, session.record.root_pid)
        fence.give(session, group)

    def _watch(self, session_id: str, fence: Fence) -> None:
        if fence.timer is not None:
            fence.timer.cancel()
        early = min(EARLY_MAX_S, EARLY * self.ownership.terms.term_s)
        left = max(0.0, fence.until - early - boottime())
        fence.timer = asyncio.get_running_loop().call_later(left, self._due, session_id)

    def _due(self, session_id: str) -> None:
        session, fence = self._sessions.get(session_id), self._fences.get(session_id)
        if session is not None and fence is not None and session.state != "fenced":
            self._tasks.spawn(self._freeze(session, fence, self.ownership.no_store))

    # ------------------------------------------------------------ freeze and thaw

    async def _freeze(self, session: Session, fence: Fence, why: str) -> None:
        async with fence.lock:
            if session.ending or session.state not in ("live", "detached", "halted"):
                fence.why = why
                return
            session.record.halted, fence.why = session.state == "halted", why
            self._halter.fenced.add(session.id)
            session.change("fence", why=why, epoch=session.record.epoch)
            session.viewers.tell("fenced", why=why)
            await self._halter.halt(execution(session))
            self._send(session, fence, AT_ONCE_NS)  # no input either, from now on

    async def _thaw(self, session: Session, fence: Fence, until: float) -> None:
        async with fence.lock:
            if session.ending or not fence.ours or until <= boottime():
                return
            self._set(session, until)
            if session.state == "fenced":
                await self._go_on(session, fence)

    async def _lift(self, session: Session, fence: Fence) -> None:
        async with fence.lock:
            fence.until = 0.0
            if fence.timer is not None:
                fence.timer.cancel()
            self._send(session, fence, 0)
            assert fence.giving is not None
            await asyncio.wait({fence.giving})
            if session.state == "fenced" and not session.ending:
                await self._go_on(session, fence)
            if not fence.until and self._fences.get(session.id) is fence:  # not re-homable again
                self._fences.pop(session.id)
                fence.close()

    async def _go_on(self, session: Session, fence: Fence) -> None:
        """The fence ends. A halt of before it, or since, does not."""
        await self._given(session, fence)  # the keeper takes acts again
        self._halter.fenced.discard(session.id)
        if not session.record.halted:
            await self._halter.resume(execution(session))
            if session.record.halted:  # meanwhile
                await self._halter.halt(execution(session))
        fence.why, fence.free, halted = "", 0.0, session.record.halted
        session.record.halted = False
        session.change("unfenced", epoch=session.record.epoch)
        session.viewers.tell("unfenced")
        if halted:
            session.change(
                "halted",
                operator="host",
                how=session.layout["halt"],
                took_ms=0.0,
                complete=True,
                act=session.ring.accepted,
                because="it was halted before its fence ended",
            )
        elif session.viewers:
            first = session.viewers[0].conn
            session.change(
                "attached", operator=first.operator, modality=first.modality, **session.position
            )

    async def _give_up(self, session: Session, fence: Fence, found: Lease | None) -> None:
        """The lease is another machine's, or nobody's: freeze, and wait for what becomes of it."""
        await self._freeze(session, fence, _why(found, session.record.epoch))
        epoch, me = session.record.epoch, self.ownership.me.machine
        while not fence.ours and not session.ending:
            if found is not None and found.epoch > epoch:
                return await self._discard(session, found)
            if found is not None and (found.owner, found.state) == (me, HELD):
                return self.ownership.hold(session.id, epoch)  # an operator took it back
            with contextlib.suppress(HoldfastError):
                found, _, left = await self.status(session.id)
                fence.saw(found, left)
            await asyncio.sleep(WATCH_S)

    async def _discard(self, session: Session, found: Lease) -> None:
        try:
            name = (await self.status(session.id)).name or found.owner
        except HoldfastError:
            name = found.owner
        session.end_of.gone = f"fenced: epoch {found.epoch} lives on {name}"
        await self._halter.end(execution(session))


def _why(found: Lease | None, epoch: int) -> str:
    """Why an incarnation of that epoch is fenced, by the lease that the store has."""
    if found is None:
        return "its lease is lost"
    if found.epoch > epoch:
        return f"epoch {found.epoch} lives elsewhere"
    return f"{found.by} invalidated its lease"
