"""Operations on what waits for approval: seeing it, approving it, denying it; and withdrawing it, for whoever asked.

The text of an act is shown to whoever may decide it, and to whoever asked; to nobody else, for it may say more than the screen does.
With it goes whether an approval of theirs would count, and if not, why: nobody is to read and decide for nothing.
An answer names the question, the binding that was shown and a signature over both, made by the approver's own key in its client: the
host cannot make it up, and what changed since is not what was signed.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.core.gate import Answer, Approver, Pending, objection
from holdfast.core.record import HOST, MACHINE, Draft
from holdfast.host import nesting
from holdfast.host.approvals import refusal
from holdfast.host.connection import Connection
from holdfast.host.readable import FIX, account, readable
from holdfast.model import signing
from holdfast.model.errors import GateRefused, Usage

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

LISTED_CHARS: Final = 2000  # of an act in a list of many; one that is named is whole
OUTSIDE: Final = "approve from a terminal outside of the session"


async def approvals(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """What waits; with `follow`, again after every change."""
    session = ops.engine.find_any(q["session"]).id if q["session"] else None
    if q["follow"]:
        changed = asyncio.Event()
        ops.engine.desk.on_change.append(changed.set)
        try:
            while True:
                changed.clear()
                conn.event(
                    "approvals",
                    request=number,
                    approvals=await _listed(ops, conn, session, q["id"]),
                )
                await changed.wait()
        finally:
            ops.engine.desk.on_change.remove(changed.set)
    return {"approvals": await _listed(ops, conn, session, q["id"])}


async def approve(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return await _answer(ops, conn, q, "approve")


async def deny(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return await _answer(ops, conn, q, "deny")


async def withdraw(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    desk = ops.engine.desk
    pending = desk.find(q["id"])
    done = await desk.withdraw(q["id"], q["binding"], _signature(q), conn.key, conn.operator)
    return _answered(ops, conn, q, pending, done, "withdraw")


async def _answer(
    ops: Ops, conn: Connection, q: dict[str, Any], answer: Literal["approve", "deny"]
) -> dict[str, Any]:
    engine = ops.engine
    pending = engine.desk.find(q["id"])
    ops.may(conn, "approve", pending.binding.session or None)
    signature = _signature(q)
    who, inside = await _approver(ops, conn, pending, answer == "approve")
    try:
        done = await getattr(engine.desk, answer)(q["id"], q["binding"], signature, conn.key, who)
    except GateRefused as e:
        if e.facts.get("how") == "readable":
            e.recover = OUTSIDE if inside else FIX.format(name=conn.operator)
        raise
    return _answered(ops, conn, q, pending, done, answer)


def _signature(q: dict[str, Any]) -> bytes:
    try:
        return bytes.fromhex(q["signature"])
    except ValueError as e:
        raise Usage("a signature is written in hexadecimal digits") from e


async def _approver(
    ops: Ops, conn: Connection, pending: Pending, approving: bool = True
) -> tuple[Approver, bool]:
    """How they stand to that question; and whether their terminal is inside of its session."""
    engine, where = ops.engine, pending.binding.session
    session = engine.sessions.get(where)
    plain = session is None or session.layout.get("layout") != "contained"
    inside = session is not None and nesting.inside(engine, conn.pid) == where
    could_read = (
        approving
        and plain
        and (
            inside
            or await asyncio.to_thread(
                readable, engine.home, conn.operator, conn.key, account(session)
            )
        )
    )
    rights = engine.authority.rights_of(conn.key, where or None, time.time())
    return Approver(
        conn.operator, signing.show(conn.key), conn.kind, rights, could_read, plain
    ), inside


def _answered(
    ops: Ops, conn: Connection, q: dict[str, Any], pending: Pending, done: Pending, answer: Answer
) -> dict[str, Any]:
    b = done.binding
    ops.engine.journal.post(
        Draft(
            b.session or MACHINE,
            b.epoch,
            "fact",
            answer,
            conn.operator,
            conn.modality,
            HOST,
            signing.show(conn.key),
            originators=(),
            facts={
                "id": done.id,
                "operator": b.operator,
                "act": b.act,
                "statement": pending.statement(signing.show(conn.key), answer).decode(),
                "signature": q["signature"],
            },
        )
    )
    return {
        "id": done.id,
        "answer": answer,
        "complete": done.state == "approved" if answer == "approve" else True,
        "needed": done.needed,
        "given": [name for name, _ in done.given],
    }


async def _listed(
    ops: Ops, conn: Connection, session: str | None, id: str | None
) -> list[dict[str, Any]]:
    found = sorted(ops.engine.desk.waiting(), key=lambda p: p.asked)
    return [
        {**_shown(ops, conn, p, id is not None), **await _counts(ops, conn, p)}
        for p in found
        if (session is None or p.binding.session == session)
        and (id is None or p.id == id)
        and _may_see(ops, conn, p)
    ]


def _may_see(ops: Ops, conn: Connection, pending: Pending) -> bool:
    return pending.binding.operator == conn.operator or "approve" in ops.engine.authority.rights_of(
        conn.key, pending.binding.session or None, time.time()
    )


async def _counts(ops: Ops, conn: Connection, pending: Pending) -> dict[str, Any]:
    """Whether an approval by whoever looks would count; why not, and what helps."""
    who, inside = await _approver(ops, conn, pending)
    why = objection(pending, who)
    if why is None:
        return {"counts": True, "why_not": None, "recover": None}
    recover = (
        refusal(why, pending.rule).recover
        if why.code != "readable"
        else OUTSIDE
        if inside
        else FIX.format(name=conn.operator)
    )
    return {"counts": False, "why_not": why.why, "recover": recover}


def _shown(ops: Ops, conn: Connection, pending: Pending, whole: bool) -> dict[str, Any]:
    b, session = pending.binding, ops.engine.sessions.get(pending.binding.session)
    text = pending.text if whole else pending.text[:LISTED_CHARS]
    return {
        "id": pending.id,
        "operator": b.operator,
        "key": b.key,
        "session": b.session,
        "name": session.name if session is not None else "",
        "act": b.act,
        "text": text,
        "whole": len(text) == len(pending.text),
        "cwd": b.cwd or None,
        "because": pending.because,
        "shaped": list(pending.shaped),
        "rule": pending.rule,
        "by": list(pending.by),
        "state": pending.state,
        "asked": pending.asked,
        "expires": int(pending.expires),
        "expires_in": max(0.0, round(pending.expires - time.time(), 1)),
        "needed": pending.needed,
        "given": [name for name, _ in pending.given],
        "layout": session.layout.get("layout", "") if session is not None else "",
        "binding": b.digest(),
        "statement": pending.statement(signing.show(conn.key), "approve").hex(),
    }
