"""Operations on invitations (host/people/invitations.py)."""

from __future__ import annotations

import time

from holdfast.core.contract.invitations import (
    DecideInvitation,
    Invitation,
    InvitationNamed,
    Invitations,
    Invite,
    Invited,
    WaitInvitation,
)
from holdfast.core.contract.message import Nothing, extended
from holdfast.core.people import join_code
from holdfast.core.people.scope import Scope
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.acts.door import CHECKED_WHEN_APPLIED
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.operators import read_key
from holdfast.model import signing
from holdfast.model.errors import Usage


async def invite(host: Host, ctx: Context, q: Invite) -> Invited:
    engine, conn = host.engine, ctx.conn
    session = engine.find_any(q.session).id if q.session else None
    try:
        verifier = signing.read(q.verifier)
    except ValueError as e:
        raise Usage("the verifier of an invitation is a key", "it looks like ed25519:...") from e
    try:
        password = bytes.fromhex(q.meeting) if q.meeting is not None else None
    except ValueError as e:
        raise Usage("what a code is made into is hexadecimal") from e
    of, device = (q.of or conn.operator, q.device) if q.device is not None else ("", "")
    if q.of is not None and not of:
        raise Usage(
            "of whom is for devices only",
            "name the device, or leave it empty: `holdfast invite --device`",
        )
    details = {
        **({"of": of, "device": device} if of else {}),
        "rights": ",".join(q.rights),
        "session": session or "",
        "kind": q.kind,
        "id": q.id,
        "verifier": q.verifier,
        "expires": str(q.expires or ""),
        "confirm": str(q.confirm),
        "lasts": str(q.lasts),
    }
    proposed = ProposedAct("invite", details=details, wait_s=q.hold or 0.0)
    within = Scope(session=session, expires=q.expires)
    # before the policy: a person is not asked about an act that would be refused anyway
    rights = frozenset(q.rights)
    engine.invitations.may_make(rights, within, conn.key, time.time(), of, device, spend=False)
    await engine.door.enter(ctx.act, proposed, CHECKED_WHEN_APPLIED)
    id = join_code.read_id(q.id)
    known = engine.invitations.knows(id)
    what = (rights, within, q.kind, q.confirm, q.lasts)
    made = await engine.invitations.make(id, verifier, *what, conn.key, time.time(), of, device)
    if password is not None and not known:  # of a repeat the code may have been tried already
        engine.uplinks.meet(made.id, password)
    await engine.uplinks.tried()
    return extended(Invited, made, elsewhere=engine.uplinks.elsewhere())


async def invite_ls(host: Host, ctx: Context, q: Nothing) -> Invitations:
    found = host.engine.invitations.listed(ctx.conn.key, time.time())
    return Invitations(invitations=tuple(found))


async def invite_revoke(host: Host, ctx: Context, q: InvitationNamed) -> Invitation:
    ended = await host.engine.invitations.revoke(q.id, ctx.conn.key, time.time())
    ctx.act.happened(id=ended.id, ended=ended.state)
    return ended


async def invite_decide(host: Host, ctx: Context, q: DecideInvitation) -> Invitation:
    engine, by, key = host.engine, ctx.conn.key, read_key(q.key)
    if q.accept:
        await engine.door.commit(ctx.act, CHECKED_WHEN_APPLIED)
    decided = await engine.invitations.decide(q.id, key, q.accept, by, time.time())
    if not q.accept:
        ctx.act.happened(id=decided.id, ended=decided.state)
    return decided


async def invite_wait(host: Host, ctx: Context, q: WaitInvitation) -> Invitation:
    return await host.engine.invitations.wait(q.id, q.seen, ctx.conn.key)
