"""Operations of the reaper and the drain (host/residency)."""

from __future__ import annotations

import time
from typing import Any

from holdfast.core.contract.drain import (
    Choice,
    Drain,
    Drained,
    Reap,
    Reaper,
    ReaperPolicy,
    ReaperSession,
)
from holdfast.core.contract.message import ABSENT, Nothing
from holdfast.core.reaper.reaper import CHOICES, DEFAULT
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.requests.host import Context, Host
from holdfast.host.residency.reaping import CHOICE
from holdfast.host.runtime.progress import giving_up
from holdfast.host.session.session import Session
from holdfast.model.errors import Refused, Usage

NOTICE_MAX_S = 86400


async def reap(host: Host, ctx: Context, q: Reap) -> Choice:
    session = host.engine.find(q.session)
    if q.choice not in CHOICES:
        raise Usage(f"a choice is one of {', '.join(CHOICES)}")
    details = {"choice": q.choice}
    await host.engine.door.enter(ctx.act, ProposedAct("reap", details=details, wait_s=q.hold))
    host.engine.residency.reaping.choose(session, q.choice)
    session.event("session.reap_chosen", operator=ctx.conn.operator, choice=q.choice)
    ctx.act.outcome = {"choice": q.choice}
    return Choice(id=session.id, name=session.name, choice=q.choice)


async def reaper(host: Host, ctx: Context, q: Nothing) -> Reaper:
    """The sessions that the caller may observe."""
    reaping = host.engine.residency.reaping
    due, left = reaping.reaper.due(), reaping.reaper.left()
    sessions = []
    for session in host.engine.sessions.values():
        seen = reaping.seen.get(session.id)
        if not host.may_observe(ctx.conn, session.id):
            continue
        why, at = due.get(session.id, (ABSENT, ABSENT))
        sessions.append(
            ReaperSession(
                id=session.id,
                name=session.name,
                choice=str(session.label.get(CHOICE, DEFAULT)),
                idle_s=round(seen.idle_s if seen is not None else _silent_s(session), 1),
                safe=seen.safe if seen is not None else "",
                why=why,
                at=at,
                left=left.get(session.id, ABSENT),
            )
        )
    policy = reaping.policy
    return Reaper(on=policy.on, policy=ReaperPolicy(**policy._asdict()), sessions=tuple(sessions))


def _silent_s(session: Session) -> float:
    return max(0.0, time.monotonic() - session.last_activity)


async def drain(host: Host, ctx: Context, q: Drain) -> Drained:
    engine, by = host.engine, ctx.conn.operator
    draining = engine.residency.draining
    if not 0 < q.notice <= NOTICE_MAX_S:
        raise Usage(f"a notice has at most {NOTICE_MAX_S} seconds")
    to = q.to if isinstance(q.to, str) else ""
    cancel = q.cancel is True
    if to:
        engine.copies.trusted(to)  # refused before anything begins
    details = {"notice": str(q.notice), "to": to, "cancel": str(cancel)}
    proposed = ProposedAct("drain", details=details, wait_s=q.hold or 0.0)
    await engine.door.judge(ctx.act, proposed)
    await engine.door.commit(ctx.act)
    if cancel:
        if not draining.cancel(by):
            raise Refused("no drain is under way", "`holdfast drain` begins one")
        return Drained(draining=False, sessions=(), saved=0, left=0, bytes=0, took_s=0.0)

    def tell(facts: dict[str, Any]) -> None:
        ctx.conn.event("progress", request=ctx.number, stops=True, **facts)

    began = time.monotonic()
    with giving_up("new sessions are admitted again; those on the disk come back on attach"):
        found = await draining.run(by, q.notice, to, tell)
    saved = sum(one.saved for one in found)
    size = sum(one.bytes for one in found if isinstance(one.bytes, int))
    ctx.act.outcome = {"saved": saved, "left": [one.id for one in found if not one.saved]}
    return Drained(
        draining=bool(draining.state),
        sessions=found,
        saved=saved,
        left=len(found) - saved,
        bytes=size,
        took_s=round(time.monotonic() - began, 3),
    )
