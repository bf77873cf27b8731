"""Operations on the turn, and halt and resume.

Seize and halt take effect on arrival; their record follows (host/acts/door.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from holdfast.core.contract.codec import encode
from holdfast.core.contract.message import ABSENT, Absent, Json
from holdfast.core.contract.sessions import TurnState
from holdfast.core.contract.turn import (
    Halt,
    Halted,
    Resume,
    Resumed,
    Seize,
    Seized,
    Turn,
    TurnReply,
)
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.originators.operator_stops import OperatorStop
from holdfast.host.processes.halt import execution
from holdfast.host.requests import summary
from holdfast.host.requests.host import Context, Host
from holdfast.host.session.session import Session
from holdfast.model.errors import NotFound, Refused, Unavailable, Usage

TURN_RIGHTS: Final = {
    "request": "turn.request",
    "hand": "turn.hand",
    "grant": "turn.hand",
    "refuse": "turn.hand",
}
TURN_ACTS_TO: Final = ("hand", "grant", "refuse")  # acts on the turn that name an operator
ENDED_S: Final = 5.0  # for the end of saved processes to be noticed


async def turn(host: Host, ctx: Context, q: Turn) -> TurnReply:
    """Moves the turn, or shows the turn."""
    session, conn = host.engine.find(q.session), ctx.conn
    right = TURN_RIGHTS.get(q.act, "observe")
    host.require(conn, right, session.id)
    if (q.to is None) != (q.act not in TURN_ACTS_TO):
        raise Usage(
            f"turn {q.act} needs an operator" if q.to is None else f"turn {q.act} names no operator"
        )
    if q.act == "hand" and q.to is not None:
        host.engine.authority.living(q.to)  # a revoked holder would block all writers
    if q.act in TURN_RIGHTS or q.act == "release":
        details = {"act": q.act, "to": q.to or ""}
        proposed = ProposedAct("turn", details=details, wait_s=q.hold)
        await host.engine.door.enter(ctx.act, proposed, right)
    if q.act == "request":
        answer = await session.turn.request(conn.operator, conn.kind, q.wait)
        if session.turn.holder == conn.operator:
            session.turn.device = conn.key
        if not answer["asked"]:
            now, inherits = answer["turn"], answer["inherits"]
            return TurnReply(
                id=session.id,
                name=session.name,
                turn=None if now is None else TurnState(**now),
                asked=False,
                inherits=inherits,
            )
        shown = summary.turn(session)
        return TurnReply(id=session.id, name=session.name, turn=shown, asked=True)
    if q.act == "release":
        session.turn.release(conn.operator)
    elif q.act in TURN_ACTS_TO:
        getattr(session.turn, q.act)(conn.operator, q.to)
    elif q.act != "show":
        raise Usage(f"unknown act {q.act!a}", f"one of request, release, {', '.join(TURN_ACTS_TO)}")
    return TurnReply(id=session.id, name=session.name, turn=summary.turn(session))


async def seize(host: Host, ctx: Context, q: Seize) -> Seized:
    """Takes the turn at once: no further input of the old holder reaches a program (A3).

    With `stop`, the processes of the old holder are frozen too. If the turn is free, the operator
    that wrote last is meant.
    """
    session, conn = host.engine.find(q.session), ctx.conn
    session.stopped.refuse(conn.operator, conn.kind, "seize")
    if q.stop is True:
        host.require(conn, "halt", session.id)
    before = session.turn.holder or session.turn.writer
    began, taking = time.monotonic(), session.seize(conn.operator, conn.key)
    facts = {"stop": True} if q.stop is True else {}
    ctx.act.happened(previous=session.turn.holder, **facts)
    previous, flushed = await taking
    host.engine.counters.seizing.add(time.monotonic() - began)
    stopped: Json | Absent = ABSENT
    if q.stop is True and before not in (None, conn.operator):
        stopped = encode(await _stop(host, ctx, session, before))
    return Seized(
        id=session.id,
        name=session.name,
        turn=summary.turn(session),
        previous=previous,
        flushed=flushed,
        inherits=await session.turn.inherited(conn.operator),
        stopped=stopped,
    )


async def halt(host: Host, ctx: Context, q: Halt) -> Halted:
    """Stops every process; attached clients are told and may still look (A4)."""
    session, operator = host.engine.find(q.session), ctx.conn.operator
    session.stopped.refuse(operator, ctx.conn.kind, "halt")
    if not isinstance(q.operator, Absent):
        if q.operator not in host.engine.authority.everyone():
            raise NotFound(f"no operator {q.operator[:80]!a}", "`holdfast operator ls` lists them")
        stopped = await _stop(host, ctx, session, q.operator)
        ctx.act.happened(
            operator=q.operator,
            how=stopped.how,
            complete=stopped.complete,
            act=stopped.act,
            processes=len(stopped.processes),
            took_us=int(stopped.took_ms * 1000),
        )
        return stopped
    host.engine.leases.halted(session)
    done = await host.engine.halter.halt(execution(session), lambda: _last_act(session))
    host.engine.counters.halting.add(done.took_ms / 1000)
    await _refuse_saved(session)
    if session.state in ("live", "detached"):
        session.change(
            "halted",
            operator=operator,
            how=done.how,
            took_ms=done.took_ms,
            complete=done.complete,
            act=done.last_act,
        )
    if host.engine.leases.halted(session):  # perhaps since the line above
        host.engine.keep(session)
    session.viewers.tell("halted", operator=operator, how=done.how)
    ctx.act.happened(
        how=done.how,
        complete=done.complete,
        act=done.last_act,
        processes=len(done.pids),
        took_us=int(done.took_ms * 1000),
    )
    return Halted(
        id=session.id,
        name=session.name,
        how=done.how,
        complete=done.complete,
        took_ms=round(done.took_ms, 3),
        processes=tuple(done.pids),
        missed=tuple(done.missed),
        act=done.last_act,
        ref=f"{session.ref}#{done.last_act}",
    )


def _last_act(session: Session) -> int:
    with contextlib.suppress(ValueError):  # the session ended meanwhile, and its ring is closed
        return session.ring.accepted
    return 0


async def _refuse_saved(session: Session) -> None:
    """Refuse a halt that came too late for the checkpoint with which the processes end."""
    if session.end_of.saved_as:
        await asyncio.wait({session.ended}, timeout=ENDED_S)
    if session.end_of.saved_as and session.ending:
        raise Refused(
            f"session {session.name} was saved meanwhile, and comes back without this halt",
            f"`holdfast restore {session.name}` first, then repeat the halt",
        )


async def _stop(host: Host, ctx: Context, session: Session, operator: str) -> Halted:
    """Stops the processes that acts of one operator started, and refuses its further acts (A8)."""
    by = ctx.conn.operator
    await host.engine.halter.quiet(session.id)
    await _refuse_saved(session)
    known = session.stopped.get(operator) is not None
    done = await host.engine.operator_stops.stop(session, operator, by)
    try:
        await _refuse_saved(session)  # the stop could not wait for the dump
    except Refused:
        if not known:
            session.stopped.remove(operator)
        raise
    act = _last_act(session)
    session.event(
        "operator.stopped",
        operator=operator,
        by=by,
        how=done.how,
        complete=not done.missed,
        processes=len(done.processes),
        took_ms=round(done.took_ms, 3),
    )
    session.viewers.tell("stopped", operator=operator, by=by, how=done.how)
    return Halted(
        id=session.id,
        name=session.name,
        how=done.how,
        complete=not done.missed,
        took_ms=round(done.took_ms, 3),
        processes=done.processes,
        missed=done.missed,
        act=act,
        ref=f"{session.ref}#{act}",
        operator=operator,
        left_out=done.left_out,
        advice=await _advice(session, operator, done) or ABSENT,
    )


async def _advice(session: Session, operator: str, done: OperatorStop) -> str:
    """How to get a usable prompt, if the shared shell works on a line of the stopped operator."""
    try:
        foreground = (await session.marks_seen()).foreground
    except Unavailable:
        return ""
    name, root = session.name, session.record.root_pid
    if foreground in done.processes and foreground != root:
        return (
            f"the shared shell waits for {foreground}, which is frozen: "
            f"`holdfast signal {name} {foreground} KILL` ends that program and gives a prompt"
        )
    now = session.commands.lineage.now
    if now is not None and now.actor == operator and foreground == root:
        return (
            f"the shared shell itself still executes a line of {operator}: "
            f"Ctrl-C (`holdfast send {name} --key C-c`) ends the line"
        )
    return ""


async def resume(host: Host, ctx: Context, q: Resume) -> Resumed:
    session, conn = host.engine.find(q.session), ctx.conn
    host.engine.leases.refuse(session)
    was = session.state == "halted"
    await host.engine.door.enter(ctx.act, ProposedAct("resume", wait_s=q.hold), owed=True)
    host.engine.leases.refuse(session)  # an approval takes time
    one = None if isinstance(q.operator, Absent) else q.operator
    resumed = await host.engine.operator_stops.resume(session, one)
    for stop in resumed:
        session.event("operator.resumed", operator=stop.operator, by=conn.operator)
        session.viewers.tell("operator_resumed", operator=stop.operator, by=conn.operator)
    stopped = tuple(map(summary.shown, resumed))
    if one is not None:
        return Resumed(
            halted=was,
            id=session.id,
            name=session.name,
            how=stopped[0].how if stopped else "",
            complete=True,
            took_ms=0.0,
            processes=stopped[0].processes if stopped else (),
            stopped=stopped,
        )
    done = await host.engine.halter.resume(execution(session))
    host.engine.leases.refuse(session)
    if session.state == "halted":
        session.change("resumed", operator=conn.operator, how=done.how, took_ms=done.took_ms)
        if session.viewers:
            session.change(
                "attached", operator=conn.operator, modality=conn.modality, **session.position
            )
    if was:
        session.viewers.tell("resumed", operator=conn.operator)
    return Resumed(
        halted=was,
        id=session.id,
        name=session.name,
        how=done.how,
        complete=done.complete,
        took_ms=round(done.took_ms, 3),
        processes=tuple(done.pids),
        stopped=stopped or ABSENT,
    )
