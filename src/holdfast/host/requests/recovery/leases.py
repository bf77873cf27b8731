"""Operations on leases (host/leases): show, invalidate, make a session re-homable."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from holdfast.core.contract.checkpoints import (
    Elsewhere,
    InvalidateLease,
    LeaseReply,
    LeaseState,
    Rehome,
    Rehomed,
)
from holdfast.core.contract.message import ABSENT, SessionNamed
from holdfast.core.lease.records import HELD
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.checkpoints.save import examine
from holdfast.host.copies.arrive import COPIED, MOVED
from holdfast.host.copies.sending import MOVE, PLAIN
from holdfast.host.leases.ownership import Status
from holdfast.host.requests.host import Context, Host
from holdfast.model.errors import NotFound, Refused
from holdfast.model.ids import is_session_id

ON: Final = (
    "when this machine, its host, its network or the store of leases is gone for {term:g} s, its "
    "programs freeze; an entitled operator may then restore it elsewhere. They go on when the "
    "lease is back and no other machine has taken the session"
)
OFF: Final = "it stays on this machine, and never freezes for a lost lease"


def _named(host: Host, word: str) -> tuple[str, str]:
    """(id, name): also of a session that this machine does not have."""
    try:
        found = host.engine.find_any(word)
    except NotFound:
        if not is_session_id(word):
            raise
        return word, word
    return found.id, found.name


async def rehome(host: Host, ctx: Context, q: Rehome) -> Rehomed:
    engine, session = host.engine, host.engine.find(q.session)
    details = {"on": str(q.on)}
    await engine.door.enter(ctx.act, ProposedAct("rehome", details=details, wait_s=q.hold))
    await engine.leases.set_rehomable(session, q.on, ctx.conn.operator)
    engine.keep(session)
    ctx.act.outcome = {"on": q.on}
    term = engine.settings.lease.term_s
    says = ON.format(term=term) if q.on else OFF
    if q.on:
        found = await examine(engine.incarnations.checkpoints, session)
        plain = session.layout.get("layout") != "contained"
        if blockers := found.blockers or ((PLAIN,) if plain else ()):
            says += f". But nothing can bring it back there now: {'; '.join(blockers)}"
    return Rehomed(id=session.id, name=session.name, rehomable=q.on, says=says)


async def lease(host: Host, ctx: Context, q: SessionNamed) -> LeaseReply:
    session, name = _named(host, q.session)
    host.require(ctx.conn, "observe", session)
    elsewhere = await _elsewhere(host, session)
    if elsewhere is not None and not host.engine.leases.shared:
        # This machine's own store knows old facts only.
        store = host.engine.settings.lease.store
        named = {"id": session, "name": name}
        return LeaseReply(**named, lease=None, wait_s=None, store=store, elsewhere=elsewhere)
    status = await host.engine.leases.status(session)
    if elsewhere is None:
        _refuse_unknown(host, session, status)
    return replace(_reply(host, session, name, status), elsewhere=elsewhere or ABSENT)


async def _elsewhere(host: Host, session: str) -> Elsewhere | None:
    copies, row = host.engine.copies, host.engine.ended.get(session)
    if row is not None and row.state == COPIED:
        copy = await asyncio.to_thread(copies.copy_of, row)
        return Elsewhere(
            state=COPIED,
            machine=copy.sender_name,
            key=copy.sender,
            epoch=copy.epoch,
            at=copy.at,
        )
    went = copies.sending.noted(session, MOVE) if row is not None and row.state == MOVED else None
    if went is None:
        return None
    place = {"machine": str(went["machine"]), "key": str(went["key"])}
    return Elsewhere(state=MOVED, **place, epoch=int(went.get("epoch") or 0), at=None)


async def invalidate(host: Host, ctx: Context, q: InvalidateLease) -> LeaseReply:
    engine = host.engine
    session, name = _named(host, q.session)
    before = await engine.leases.status(session)
    _refuse_unknown(host, session, before)
    known = before.lease
    if known is None or not known.rehomable:
        raise Refused(
            f"{name} is pinned to its machine, and has no lease that could end",
            "if that machine is gone, `holdfast restore SESSION --lost` at a machine with a copy "
            "takes the session over",
        )
    facts = {"session": session, "name": name}
    act = ProposedAct("invalidate", details=facts, wait_s=q.hold or 0.0)
    await engine.door.judge(ctx.act, act)
    await engine.door.commit(ctx.act)
    status = await engine.leases.invalidate(session, ctx.conn.operator)
    ctx.act.outcome = {**facts, "wait_ms": int(status.left * 1000)}
    engine.events.note(
        session,
        "session.lease_invalidated",
        {"operator": ctx.conn.operator, "wait_s": round(status.left, 3)},
    )
    return _reply(host, session, name, status)


def _refuse_unknown(host: Host, session: str, status: Status) -> None:
    """Refuse an id that neither this machine nor the store of leases knows."""
    if status.lease is None:
        host.engine.find_any(session)


def _reply(host: Host, session: str, name: str, status: Status) -> LeaseReply:
    found, store = status.lease, host.engine.settings.lease.store
    if found is None:
        return LeaseReply(id=session, name=name, lease=None, wait_s=None, store=store)
    taken = found.rehomable and found.state == HELD
    here = host.engine.sessions.get(session)
    known = here.lease() if here is not None else None
    shown = LeaseState(
        owner=found.owner,
        machine=status.name,
        epoch=found.epoch,
        until=known["until"] if known is not None and taken else None,
        rehomable=found.rehomable,
        state=found.state,
    )
    wait = round(status.left, 3) if found.rehomable else None
    return LeaseReply(id=session, name=name, lease=shown, wait_s=wait, store=store)


__all__ = ["invalidate", "lease", "rehome"]
