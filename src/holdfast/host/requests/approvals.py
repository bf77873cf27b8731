"""Operations on acts that wait for approval: list, approve, deny; and withdraw, for their actor.

The text of an act is shown to operators that may decide it and to its actor, to nobody else: it may
say more than the screen does. The reply says whether an approval by the caller would count, and if
not, why. An answer names the question, the binding that was shown and a signature over both by the
approver's own key, made in its client. So the host cannot make an answer up, and an answer does not
cover what has changed since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from holdfast.core.contract.approvals import (
    Approvals,
    ApprovalsReply,
    Bound,
    Decide,
    Decided,
    Question,
)
from holdfast.core.contract.codec import encode
from holdfast.core.policy.approvals import Answer, Approver, Pending, Rejected, objection
from holdfast.core.record.record import MACHINE
from holdfast.host.acts.approvals import refusal
from holdfast.host.acts.door import testimony
from holdfast.host.people.key_exposure import FIX, account, readable
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.connection import Connection
from holdfast.host.session.session import Session
from holdfast.model import signing
from holdfast.model.errors import GateRefused, Usage

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

LISTED_CHARS: Final = 2000  # of an act in a list; an act that the request names is shown whole
CONTAINED: Final = "contained"
OUTSIDE: Final = "approve from a terminal outside of the session"
SHELL_TEXTS: Final = frozenset(("run", "line", "paste", "keys"))
UNSEEN_INPUT: Final = "the command also reads input from the client, which is not shown here"
EXCHANGEABLE: Final = "programs in this session can replace this text before the shell runs it"


async def approvals(host: Host, ctx: Context, q: Approvals) -> ApprovalsReply:
    """Lists the waiting acts; with `follow`, again after every change."""
    session = host.engine.find_any(q.session).id if q.session else None
    if q.follow:
        changed = asyncio.Event()
        host.engine.held_acts.on_change.append(changed.set)
        try:
            while True:
                changed.clear()
                found = await _listed(host, ctx.conn, session, q.id)
                ctx.conn.event("approvals", request=ctx.number, **encode(found))
                await changed.wait()
        finally:
            host.engine.held_acts.on_change.remove(changed.set)
    return await _listed(host, ctx.conn, session, q.id)


async def approve(host: Host, ctx: Context, q: Decide) -> Decided:
    return await _answer(host, ctx.conn, q, "approve")


async def deny(host: Host, ctx: Context, q: Decide) -> Decided:
    return await _answer(host, ctx.conn, q, "deny")


async def withdraw(host: Host, ctx: Context, q: Decide) -> Decided:
    held_acts, conn = host.engine.held_acts, ctx.conn
    pending = held_acts.find(q.id)
    done = await held_acts.withdraw(q.id, q.binding, _signature(q), conn.key, conn.operator)
    return _answered(host, conn, q, pending, done, "withdraw")


async def _answer(
    host: Host, conn: Connection, q: Decide, answer: Literal["approve", "deny"]
) -> Decided:
    held_acts = host.engine.held_acts
    pending = held_acts.find(q.id)
    host.require(conn, "approve", pending.binding.session or None)
    signature = _signature(q)
    who, inside = await _approver(host, conn, pending, answer == "approve")
    decide = held_acts.approve if answer == "approve" else held_acts.deny
    try:
        done = await decide(q.id, q.binding, signature, conn.key, who)
    except GateRefused as e:
        if e.facts.get("how") == "readable":
            e.recover = OUTSIDE if inside else FIX.format(name=conn.operator)
        raise
    return _answered(host, conn, q, pending, done, answer)


def _signature(q: Decide) -> bytes:
    try:
        return bytes.fromhex(q.signature)
    except ValueError as e:
        raise Usage("a signature is written in hexadecimal digits") from e


async def _approver(
    host: Host, conn: Connection, pending: Pending, approving: bool = True
) -> tuple[Approver, bool]:
    """The caller as an approver of the question; and whether its terminal is inside the session."""
    engine, where = host.engine, pending.binding.session
    session = engine.sessions.get(where)
    plain = _layout(session, pending) != CONTAINED
    inside = session is not None and engine.insiders.session_of(conn) is session
    could_read = approving and plain and inside
    if approving and plain and not inside:
        about = (engine.home, conn.operator, conn.key, account(session))
        could_read = await asyncio.to_thread(readable, *about)
    rights = engine.authority.rights_of(conn.key, where or None, time.time())
    return Approver(
        conn.operator, signing.show(conn.key), conn.kind, rights, could_read, plain
    ), inside


def _layout(session: Session | None, pending: Pending) -> str:
    """The layout of the session in which the act happens: "contained", "plain" or "".

    A `new` or `restore` happens in the session that it starts. The layout of that session is part
    of the act that is approved.
    """
    if session is not None:
        return session.layout.get("layout", "")
    if pending.binding.act not in ("new", "restore") or pending.evidence is None:
        return ""
    return CONTAINED if pending.evidence.details.get("contained") == str(True) else "plain"


def _answered(
    host: Host, conn: Connection, q: Decide, pending: Pending, done: Pending, answer: Answer
) -> Decided:
    """Records an answer and the signature."""
    b, key = done.binding, signing.show(conn.key)
    facts: dict[str, Canonical] = {
        "id": done.id,
        "operator": b.operator,
        "act": b.act,
        "statement": pending.statement(key, answer).decode(),
        "signature": q.signature,
    }
    if (inside := host.engine.insiders.of(conn)) is not None:
        facts["inside"] = inside.show()
    host.engine.journal.post(testimony(conn, b.session or MACHINE, b.epoch, answer, facts))
    return Decided(
        id=done.id,
        answer=answer,
        complete=done.state == "approved" if answer == "approve" else True,
        needed=done.needed,
        given=tuple(name for name, _ in done.given),
    )


async def _listed(
    host: Host, conn: Connection, session: str | None, id: str | None
) -> ApprovalsReply:
    found = [
        await _shown(host, conn, p, id is not None)
        for p in sorted(host.engine.held_acts.waiting(), key=lambda p: p.asked)
        if (session is None or p.binding.session == session)
        and (id is None or p.id == id)
        and _may_see(host, conn, p)
    ]
    return ApprovalsReply(approvals=tuple(found))


def _may_see(host: Host, conn: Connection, pending: Pending) -> bool:
    where = pending.binding.session or None
    return (
        pending.binding.operator == conn.operator
        or "approve" in host.engine.authority.rights_of(conn.key, where, time.time())
    )


def _recover(why: Rejected, rule: str, conn: Connection, inside: bool) -> str:
    """How to recover from an approval that would not count."""
    if why.code != "readable":
        return refusal(why, rule).recover
    return OUTSIDE if inside else FIX.format(name=conn.operator)


def _bound(pending: Pending) -> Bound | None:
    b, known = pending.binding, pending.evidence
    if known is None:
        return None
    return Bound(
        epoch=b.epoch,
        content=known.content,
        details=known.details,
        commitment=b.content,
        policy=b.policy,
        state=b.state,
        state_facts=known.state,
    )


def _exchangeable(session: Session | None, act: str) -> bool:
    """Whether programs of the session could have the shell run another text than the approved one.

    In a plain session they have the host's account and reach its files and the shell's memory.
    """
    if session is None or act not in SHELL_TEXTS:
        return False
    plain = session.layout.get("layout") != CONTAINED
    return plain or (act == "run" and not session.directories.split)


def _cautions(session: Session | None, pending: Pending) -> Iterator[str]:
    known = pending.evidence
    if known is not None and pending.binding.act == "run" and "stdin" in known.details:
        yield UNSEEN_INPUT
    if _exchangeable(session, pending.binding.act):
        yield EXCHANGEABLE


async def _shown(host: Host, conn: Connection, pending: Pending, whole: bool) -> Question:
    b, session = pending.binding, host.engine.sessions.get(pending.binding.session)
    text = pending.text if whole else pending.text[:LISTED_CHARS]
    who, inside = await _approver(host, conn, pending)
    why = objection(pending, who)
    return Question(
        id=pending.id,
        caution="; ".join(_cautions(session, pending)) or None,
        operator=b.operator,
        key=b.key,
        session=b.session,
        name=session.name if session is not None else "",
        act=b.act,
        text=text,
        whole=len(text) == len(pending.text),
        cwd=b.cwd or None,
        because=pending.because,
        shaped=tuple(pending.shaped),
        rule=pending.rule,
        by=tuple(pending.by),
        state=pending.state,
        asked=pending.asked,
        expires=int(pending.expires),
        expires_in=max(0.0, round(pending.expires - time.time(), 1)),
        needed=pending.needed,
        given=tuple(name for name, _ in pending.given),
        layout=_layout(session, pending),
        binding=b.digest(),
        bound=_bound(pending) if len(text) == len(pending.text) else None,
        statement=pending.statement(signing.show(conn.key), "approve").hex(),
        counts=why is None,
        why_not=None if why is None else why.why,
        recover=None if why is None else _recover(why, pending.rule, conn, inside),
    )
