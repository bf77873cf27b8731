"""The handler of every operation, and the way of a request to the handler.

A request is decoded (core/contract), the right is checked, and the handler gets the typed request.
An act is verified first and passes the door (host/acts/door.py). An unknown operation, and a field
that is missing, unknown or mistyped, is refused by name first of all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.core.contract.codec import decode, encode
from holdfast.core.contract.table import MACHINE, OPERATIONS, Operation
from holdfast.core.people.scope import STARTS_PROGRAMS
from holdfast.core.record import acts
from holdfast.host.requests import (
    approvals,
    attach,
    attention,
    devices,
    installation,
    invitations,
    observe,
    operators,
    records,
    relays,
    resolve,
    run,
    sessions,
    signals,
    turn_and_halt,
)
from holdfast.host.requests.files import handlers as files
from holdfast.host.requests.files import uploads
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.ports import forward
from holdfast.host.requests.recovery import branches, checkpoints, copies, leases, residency
from holdfast.host.runtime.connection import Connection
from holdfast.host.session.session import Session
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import NotAllowed, NotFound, Stale, Usage

Handler = Callable[[Host, Context, Any], Coroutine[Any, Any, object]]
HANDLERS: Final[Mapping[str, Handler]] = {
    "ping": installation.ping,
    "down": installation.down,
    "stats": installation.stats,
    "metrics": installation.metrics,
    "events": observe.events,
    "new": sessions.new,
    "ls": observe.ls,
    "get": observe.get,
    "rename": sessions.rename,
    "end": sessions.end,
    "signal": signals.signal,
    "checkpoint": checkpoints.checkpoint,
    "restore": checkpoints.restore,
    "checkpoint.remove": checkpoints.remove,
    "checkpoints": checkpoints.checkpoints,
    "fork": branches.fork,
    "branches": branches.branches,
    "diff": branches.diff,
    "keep": branches.keep,
    "discard": branches.discard,
    "reap": residency.reap,
    "reaper": residency.reaper,
    "drain": residency.drain,
    "checkpoint.every": copies.every,
    "move": copies.move,
    "copies.take": copies.take,
    "copies.withdraw": copies.withdraw,
    "machines.trust": copies.trust,
    "machines.trusted": copies.trusted,
    "copies.check": copies.check,
    "copies.offer": copies.offer,
    "copies.missing": copies.missing,
    "copies.put": copies.put,
    "copies.commit": copies.commit,
    "copies.taken": copies.taken,
    "rehome": leases.rehome,
    "lease": leases.lease,
    "lease.invalidate": leases.invalidate,
    "forget": sessions.forget,
    "who": observe.who,
    "resolve": resolve.resolve,
    "place": resolve.place,
    "send": run.send,
    "run": run.run,
    "cover": attach.cover,
    "files.ls": files.ls,
    "files.stat": files.stat,
    "files.get": files.get,
    "files.search": files.search,
    "files.put": uploads.put,
    "files.rm": uploads.rm,
    "files.mv": uploads.mv,
    "log": observe.log,
    "log.export": observe.log_export,
    "log.redact": records.redact,
    "wait": observe.wait,
    "attention": attention.attention,
    "view": observe.view,
    "graph": observe.graph,
    "read": observe.read,
    "attach": attach.attach,
    "detach": attach.detach,
    "send_away": attach.send_away,
    "refresh": attach.refresh,
    "turn": turn_and_halt.turn,
    "seize": turn_and_halt.seize,
    "halt": turn_and_halt.halt,
    "resume": turn_and_halt.resume,
    "operator.add": operators.add,
    "operator.ls": operators.listed,
    "operator.show": operators.show,
    "operator.revoke": operators.revoke,
    "recovery.off": operators.recovery_off,
    "envelopes": operators.mine,
    "grant": operators.grant,
    "device.ls": devices.device_ls,
    "device.add": devices.device_add,
    "device.rename": devices.device_rename,
    "device.revoke": devices.device_revoke,
    "invite": invitations.invite,
    "invite.ls": invitations.invite_ls,
    "invite.revoke": invitations.invite_revoke,
    "invite.decide": invitations.invite_decide,
    "invite.wait": invitations.invite_wait,
    "approvals": approvals.approvals,
    "approve": approvals.approve,
    "deny": approvals.deny,
    "withdraw": approvals.withdraw,
    "ways": relays.ways,
    "relays": relays.lines,
    "relays.changed": relays.relays_changed,
    "forward": forward.forward,
    "forward.connect": forward.connect,
}


# Operations for which an evicted session comes back: they need its programs.
WAKES: Final = frozenset(
    (
        *("attach", "run", "send", "wait", "forward", "files.ls", "files.stat", "files.get"),
        *("files.search", "files.put", "files.rm", "files.mv"),
    )
)
# Operations that bring a session to this machine: refused while it is drained.
BRINGS: Final = {"new": "no new session", "restore": "no restore", "fork": "no branch"}


async def handle(
    host: Host, conn: Connection, number: int, body: dict[str, Any]
) -> dict[str, Any] | None:
    """The body of the answer; None if the handler has sent an answer."""
    name = str(body.get("op"))
    operation = OPERATIONS.get(name)
    if operation is None:
        raise Usage(f"unknown operation {name[:40]!a}", "this host may be older than the client")
    handler = HANDLERS[name]
    request: Any = decode(operation.request, name, body)
    word = getattr(request, "session", None)
    if isinstance(word, str) and word:
        found = host.meant(conn, word)
        if found != word:
            acts.refuse_beginning(name, word, found, host.engine.find_any(found).name)
        request = replace(request, session=found)
    named = getattr(request, "session", None) if operation.right or operation.act else None
    session = _session(host, operation, request, named) if named is not None else None
    about = session.id if session is not None else None
    limited = _allowed(host, conn, operation, about)
    if name in BRINGS:
        host.engine.residency.draining.refuse(BRINGS[name])
    if name == "run" and isinstance(session, SessionRow):  # the output went with the session
        host.engine.copies.refuse_elsewhere(session.id)
    context = Context(conn, number, limited)
    host.under_way[handler.__name__] += 1
    try:
        if name in WAKES and isinstance(session, SessionRow):
            await _wake(host, conn, number, session, acts.is_act(name, body))
            session = _session(host, operation, request, session.id)
        where = host.engine.door.here if operation.place == MACHINE else session
        if operation.right == "observe":
            host.shows(conn, about)
        if where is None or not acts.is_act(name, body):
            host.engine.insiders.check(conn, name, operation.harmless)
            reply = await handler(host, context, request)
            return None if reply is None else encode(reply)
        await host.engine.door.under_way.take_over(conn, where.id, request.seq)
        act = host.engine.door.receive(
            conn, number, where, body, request.seq, request.signed, about
        )
        applying = partial(_carried_out, host, handler, context._replace(signed=act), request, name)
        reply = await host.engine.door.through(act, applying)
        return reply | encode(act.acknowledgement())
    except asyncio.CancelledError:
        if (denied := host.denied()) is not None:
            raise denied from None
        raise
    finally:
        host.answered()
        host.under_way[handler.__name__] -= 1


async def _wake(host: Host, conn: Connection, number: int, row: SessionRow, act: bool) -> None:
    """Brings back an evicted session; waits for a restore or a move that is under way.

    The caller signs an act anew, for the new incarnation.
    """
    engine = host.engine

    def tell(facts: dict[str, Any]) -> None:
        conn.event("restoring", request=number, session=row.id, **facts)

    await engine.copies.settled(row, tell)
    back = engine.sessions.get(row.id)
    if back is None and row.state == "checkpointed":
        back = await engine.residency.wake(row, conn.operator, tell)
    if back is not None and act:
        raise Stale(f"session {row.name} has just come back from the disk")


async def _carried_out(
    host: Host, handler: Handler, context: Context, request: object, name: str
) -> object:
    """Refuses an act in another operator's name within the door, so that the record has it."""
    host.engine.insiders.check(context.conn, name)
    return await handler(host, context, request)


def _session(
    host: Host, operation: Operation, request: Any, named: str
) -> Session | SessionRow | None:
    """The session that a request names. A retry of `forget` names a session that is forgotten."""
    try:
        return host.engine.find_any(named)
    except NotFound:
        if operation.place == MACHINE and isinstance(request.once, str):
            return None
        raise


def _allowed(host: Host, conn: Connection, operation: Operation, session: str | None) -> bool:
    """Checks the operation's right; True for a right that holds for certain commands only."""
    if not operation.right:
        return False
    try:
        host.require(conn, operation.right, session)
    except NotAllowed as e:
        held = host.engine.authority.rights_of(conn.key, session, time.time())
        depends = operation.right in STARTS_PROGRAMS and operation.right in held
        if not depends or "retry_in_s" in e.facts:
            raise
        return True
    return False
