"""Operations on operators and their rights. The authority decides, by the caller's own key."""

from __future__ import annotations

import time
from functools import partial

from holdfast.core.contract.message import MachineAct, Nothing
from holdfast.core.contract.operators import (
    AddOperator,
    Envelopes,
    Grant,
    Granted,
    Operator,
    OperatorNamed,
    Operators,
    Recovery,
    RevokeOperator,
)
from holdfast.core.people.envelope import Malformed, Scope, decode
from holdfast.core.people.envelope import read as read_link
from holdfast.home import recovery_switch
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.acts.door import CHECKED_WHEN_APPLIED
from holdfast.host.people.operator_rows import Held
from holdfast.host.requests.host import Context, Host
from holdfast.model import signing
from holdfast.model.errors import NotAllowed, NotFound, Usage


def read_key(text: str) -> bytes:
    try:
        return signing.read(text)
    except ValueError as e:
        raise Usage(f"{text[:60]!a} is not a key", "a key looks like ed25519:...") from e


async def add(host: Host, ctx: Context, q: AddOperator) -> Operator:
    authority, key = host.engine.authority, read_key(q.key)
    details = {"name": q.name, "kind": q.kind, "key": q.key}
    proposed = ProposedAct("operator", details=details, wait_s=q.hold or 0.0)
    # before the policy: a person is not asked about an act that would be refused anyway
    authority.may_add(q.name, q.kind, key, ctx.conn.key, time.time())
    await host.engine.door.enter(ctx.act, proposed, CHECKED_WHEN_APPLIED)
    await authority.add_operator(q.name, q.kind, key, ctx.conn.key, time.time(), q.device)
    return authority.describe(q.name, time.time())


async def listed(host: Host, ctx: Context, q: Nothing) -> Operators:
    return Operators(operators=tuple(host.engine.authority.operators(time.time())))


async def show(host: Host, ctx: Context, q: OperatorNamed) -> Operator:
    return host.engine.authority.describe(q.name, time.time())


async def revoke(host: Host, ctx: Context, q: RevokeOperator) -> Operator:
    """Takes effect first: neither a policy nor a full disk keeps a stolen key alive."""
    authority, conn = host.engine.authority, ctx.conn
    conn.revoking = True
    await authority.revoke_operator(q.name, conn.key, time.time(), q.force, q.grants)
    ctx.act.happened(name=q.name)
    return authority.describe(q.name, time.time())


async def recovery_off(host: Host, ctx: Context, q: MachineAct) -> Recovery:
    authority, key, now = host.engine.authority, ctx.conn.key, time.time()
    authority.check_admin(key, now)
    proposed = ProposedAct("operator", details={"recovery": "off"}, wait_s=q.hold or 0.0)
    await host.engine.door.enter(ctx.act, proposed)
    write = partial(recovery_switch.turn_off, host.engine.home, ctx.conn.operator, int(now))
    await authority.switch_recovery_off(key, now, write)
    ctx.act.outcome = {"recovery": "off"}
    return Recovery(possible=False)


async def mine(host: Host, ctx: Context, q: Nothing) -> Envelopes:
    """The caller's own envelopes, for handing on with the caller's own key."""
    authority, key = host.engine.authority, ctx.conn.key
    return Envelopes(
        key=signing.show(key),
        machine=signing.show(authority.machine),
        envelopes=tuple(held.text for held in authority.envelopes(key)),
    )


async def grant(host: Host, ctx: Context, q: Grant) -> Granted:
    """Rights for every key of an operator, given by the machine at the caller's request."""
    if q.envelope is not None:
        return await _give(host, ctx, q, q.envelope)
    authority = host.engine.authority
    if q.name is None or not q.rights:
        raise Usage("grant to whom, and what?", "holdfast grant NAME --rights read")
    if not authority.devices(authority.living(q.name).name, all=False):
        raise NotFound(f"{q.name} has no device that counts", f"`holdfast device ls {q.name}`")
    wanted = Scope(
        session=host.engine.find_any(q.session).id if q.session else None,
        expires=q.expires,
        commands=frozenset(q.commands) if q.commands else None,
        rate=q.rate,
    )
    details = {
        "name": q.name,
        "rights": ",".join(q.rights),
        "session": q.session or "",
        "expires": str(q.expires or ""),
        "commands": ",".join(q.commands or ()),
        "rate": str(list(q.rate) if q.rate else ""),
    }
    proposed = ProposedAct("grant", details=details, wait_s=q.hold or 0.0)
    authority.handable(q.rights, wanted, ctx.conn.key, time.time(), spend=False)
    await host.engine.door.enter(ctx.act, proposed, CHECKED_WHEN_APPLIED)
    try:
        held = await authority.issue_to(q.name, q.rights, wanted, ctx.conn.key, time.time())
    except Malformed as e:
        raise Usage(f"no such envelope: {e}", "see docs/reference/envelopes.md") from e
    return _given(ctx, q.name, held)


async def _give(host: Host, ctx: Context, q: Grant, envelope: str) -> Granted:
    """Takes an envelope that the caller signed."""
    authority = host.engine.authority
    details = {"envelope": envelope, **_says(envelope)}
    proposed = ProposedAct("grant", details=details, wait_s=q.hold or 0.0)
    authority.may_give(envelope, time.time())
    await host.engine.door.enter(ctx.act, proposed, CHECKED_WHEN_APPLIED)
    held = await authority.give(envelope, time.time())
    return _given(ctx, authority.name_of(held.holder), held)


def _given(ctx: Context, name: str, held: Held) -> Granted:
    last, link = held.chain.last, held.id.hex()
    rights, scope = sorted(last.rights), last.scope.show()
    ctx.act.outcome = {"name": name, "rights": rights, "scope": scope, "link": link}
    return Granted(name=name, rights=tuple(rights), scope=scope, id=link)


def _says(text: str) -> dict[str, str]:
    """The contents of a signed envelope, for the policy and an approver."""
    try:
        last = read_link(decode(text)[-1].body)
    except (Malformed, IndexError) as e:
        raise NotAllowed(f"not accepted: {e}", "ask its giver for a new one") from e
    return {
        "holder": signing.show(last.holder),
        "gives": ",".join(sorted(last.rights)),
        "scope": str(last.scope.show()),
    }
