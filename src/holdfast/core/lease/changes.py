"""Every change of a lease beside its renewal: a pure decision on what was read.

Each function returns the transaction that makes the change, or raises: `Wait` says how long a
successor has to wait, `Denied` that the change is not possible now. The caller commits, and if the
compare fails, it reads and asks again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.core.lease import rules
from holdfast.core.lease.records import (
    HELD,
    INVALIDATED,
    RELEASED,
    Commit,
    Lease,
    Machine,
    Stored,
    encode,
    lease,
    machine,
    machine_key,
    session_key,
)


class Denied(Exception):
    """The change is not possible; the text says why."""


class Wait(Exception):
    """The change is possible in `left` seconds on this machine's clock, if no renewal comes."""

    def __init__(self, left: float, why: str) -> None:
        super().__init__(why)
        self.left = left


class Superseded(Denied):
    """A later host process of this machine speaks for it."""


class Self(NamedTuple):
    """This machine, its host process, and its rules."""

    machine: str
    run: int
    term: float
    drift: float
    name: str = ""


class Found(NamedTuple):
    """What was read in one transaction: the session, its owner, and ourselves."""

    session: Stored
    owner: Stored
    mine: Stored

    @property
    def lease(self) -> Lease | None:
        return lease(self.session)


@dataclass(slots=True)
class Sights:
    """When this process first saw the present state of a lease, on its own clock."""

    seen: dict[str, tuple[object, float]] = field(default_factory=dict)

    def since(self, key: str, mark: object, now: float) -> float:
        known = self.seen.get(key)
        if known is None or known[0] != mark:
            self.seen[key] = known = (mark, now)
        return known[1]


def left(session: str, found: Found, me: Self, sights: Sights, now: float) -> float:
    """Seconds until a successor may take this lease, counted from what this process saw.

    Of a lease that is held, the owner's renewals count; a renewal starts the wait anew. Of one that
    was invalidated, no renewal counts any more, so the wait starts when this process sees that.
    """
    now_held = found.lease
    if now_held is None or now_held.state == RELEASED:
        return 0.0
    if now_held.state == INVALIDATED:
        mark: object = (INVALIDATED, now_held.epoch, found.session.revision)
        term = now_held.wait_s
    else:
        owner = machine(found.owner)
        mark = (HELD, now_held.epoch, now_held.owner, owner.run, owner.renewals)
        term = owner.term_s
    since = sights.since(session, mark, now)
    return max(0.0, since + rules.wait_s(max(term, me.term), me.drift) - now)


def take(
    session: str,
    epoch: int,
    found: Found,
    me: Self,
    sights: Sights,
    now: float,
    lost: bool = False,
) -> tuple[int, Commit]:
    """The next epoch of the session, for a new incarnation on this machine.

    `epoch`: the last one that this machine knows. The commit is also a renewal of our own lease,
    which was sent at `now`. `lost`: an operator states that the machine of a pinned session is
    gone; for a re-homable session the statement changes nothing.
    """
    was = found.lease
    if was is None:
        return epoch + 1, _taken(session, Lease(epoch + 1, me.machine), found, me)
    pinned = was.owner != me.machine and was.state == HELD and not was.rehomable
    if pinned and not lost:
        raise Denied(f"epoch {was.epoch} is pinned to machine {was.owner}, which no lease fences")
    fenced = was.owner == me.machine and was.state == HELD  # its keeper is gone
    if not fenced and not pinned and (wait := left(session, found, me, sights, now)) > 0:
        raise Wait(wait, f"epoch {was.epoch} may still act on machine {was.owner}")
    after = max(was.epoch, epoch) + 1
    return after, _taken(session, Lease(after, me.machine, rehomable=was.rehomable), found, me)


def _taken(session: str, new: Lease, found: Found, me: Self) -> Commit:
    was = found.lease
    own, record = _renewed(found.mine, me)
    expect = [(session_key(session), found.session.revision), (own, found.mine.revision)]
    puts = [(session_key(session), encode(replace(new, run=me.run))), (own, record)]
    if was is not None and was.owner != me.machine and was.state == HELD:
        _tell(was.owner, found.owner, expect, puts)
    return Commit(tuple(expect), tuple(puts))


def _tell(
    owner: str, stored: Stored, expect: list[tuple[str, int]], puts: list[tuple[str, bytes]]
) -> None:
    """Make the owner's next renewal fail, so that it looks at its sessions again."""
    expect.append((machine_key(owner), stored.revision))
    puts.append((machine_key(owner), encode(machine(stored))))


def _renewed(mine: Stored, me: Self) -> tuple[str, bytes]:
    record = machine(mine)
    if record.run > me.run:
        raise Superseded(f"host process {record.run} of this machine speaks for it")
    term = max(record.term_s, me.term)  # only the owner lowers it (core/lease/owner.py)
    return machine_key(me.machine), encode(Machine(me.run, record.renewals + 1, term, me.name))


def set_rehomable(
    session: str,
    epoch: int,
    on: bool,
    found: Found,
    me: Self,
    by: str,
    at: float,
    sights: Sights,
    now: float,
) -> Commit:
    """Make our session re-homable, or pin it. The commit is also a renewal.

    With `on`, the keeper has the deadline `now + term` before the commit is sent. An invalidated
    lease can be taken back like this, once the wait is over.
    """
    was = found.lease
    if was is not None and (was.owner != me.machine or was.epoch > epoch):
        raise Denied(f"epoch {was.epoch} lives on machine {was.owner}")
    invalidated = was is not None and was.state == INVALIDATED
    if invalidated and (wait := left(session, found, me, sights, now)) > 0:
        raise Wait(wait, "an operator invalidated the lease")
    new = Lease(epoch, me.machine, HELD, on, me.run, by=by, at=at)
    own, record = _renewed(found.mine, me)
    return Commit(
        ((session_key(session), found.session.revision), (own, found.mine.revision)),
        ((session_key(session), encode(new)), (own, record)),
    )


def release(session: str, epoch: int, found: Found, me: Self, by: str, at: float) -> Commit:
    """Our incarnation acts no more: the next one needs no wait. It stays re-homable or pinned."""
    was = found.lease
    if was is not None and (was.owner != me.machine or was.epoch != epoch):
        raise Denied(f"epoch {was.epoch} lives on machine {was.owner}")
    kept = was is not None and was.rehomable
    new = Lease(epoch, me.machine, RELEASED, kept, me.run, by=by, at=at)
    return Commit(
        ((session_key(session), found.session.revision),), ((session_key(session), encode(new)),)
    )


def invalidate(session: str, found: Found, me: Self, by: str, at: float) -> Commit:
    """End the owner's lease without the owner. Its incarnation may act until its term is over."""
    was = found.lease
    if was is None or not was.rehomable:
        raise Denied("it is pinned: its keeper never stops by itself, so nothing would fence it")
    if was.state != HELD:
        raise Denied(f"its lease is {was.state} already")
    term = max(machine(found.owner).term_s, me.term)
    new = replace(was, state=INVALIDATED, wait_s=term, by=by, at=at)
    expect = [(session_key(session), found.session.revision)]
    puts = [(session_key(session), encode(new))]
    _tell(was.owner, found.owner, expect, puts)
    return Commit(tuple(expect), tuple(puts))
