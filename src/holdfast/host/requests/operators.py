"""Operations on operators, their rights and the turn. Who is known and who may is asked of the authority, by the caller's own key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast.core.envelope import Malformed, Scope, decode
from holdfast.core.envelope import read as read_link
from holdfast.host import roster
from holdfast.host.connection import Connection
from holdfast.host.halt import execution
from holdfast.model import signing
from holdfast.model.errors import NotAllowed, NotFound, Usage

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

TURN_RIGHTS = {
    "request": "turn.request",
    "hand": "turn.hand",
    "grant": "turn.hand",
    "refuse": "turn.hand",
}
TURN_ACTS_TO = ("hand", "grant", "refuse")  # acts on the turn that name somebody


def _key(text: str) -> bytes:
    try:
        return signing.read(text)
    except ValueError as e:
        raise Usage(f"{text[:60]!a} is not a key", "a key looks like ed25519:...") from e


async def add(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    authority, key = ops.engine.authority, _key(q["key"])
    await ops.engine.door.clear(
        q["act!"],
        number,
        "operator",
        details={"name": q["name"], "kind": q["kind"], "key": q["key"]},
        wait_s=q["hold"] or 0.0,
    )
    await q["act!"].intend()
    await authority.add_operator(q["name"], q["kind"], key, conn.key, time.time(), q["device"])
    return authority.describe(q["name"], time.time())


async def listed(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return {"operators": ops.engine.authority.operators(time.time())}


async def show(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    return ops.engine.authority.describe(q["name"], time.time())


async def revoke(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    authority, conn.revoking = ops.engine.authority, True
    await authority.revoke_operator(
        q["name"], conn.key, time.time(), q["force"], q["grants"]
    )  # neither a policy nor a disk keeps a stolen key alive
    q["act!"].happened(name=q["name"])
    return authority.describe(q["name"], time.time())


async def mine(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """The caller's own envelopes, to be handed on with its own key, here or on another machine."""
    return {
        "key": signing.show(conn.key),
        "machine": signing.show(ops.engine.authority.machine),
        "envelopes": [held.text for held in ops.engine.authority.envelopes(conn.key)],
    }


async def grant(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """Rights for every key of an operator, from the machine on the caller's word; or an envelope that the caller signed itself."""
    authority, now = ops.engine.authority, time.time()
    if q["envelope"] is not None:
        await ops.engine.door.clear(
            q["act!"],
            number,
            "grant",
            details={"envelope": q["envelope"], **_says(q["envelope"])},
            wait_s=q["hold"] or 0.0,
        )
        await q["act!"].intend()
        return _given(
            authority.name_of((held := await authority.give(q["envelope"], now)).holder), held
        )
    if q["name"] is None or not q["rights"]:
        raise Usage("grant to whom, and what?", "holdfast grant NAME --rights read")
    if not authority.devices(authority.living(q["name"]).name, all=False):
        raise NotFound(
            f"{q['name']} has no device that counts", f"`holdfast device ls {q['name']}`"
        )
    session = ops.engine.find_any(q["session"]).id if q["session"] else None
    rate = tuple(q["rate"]) if q["rate"] else None
    if q["commands"] is not None and not all(isinstance(name, str) for name in q["commands"]):
        raise Usage("commands are names")
    wanted = Scope(
        session=session,
        expires=q["expires"],
        commands=frozenset(q["commands"]) if q["commands"] else None,
        rate=(int(rate[0]), int(rate[1])) if rate else None,
    )
    details = {
        "name": q["name"],
        "rights": ",".join(map(str, q["rights"])),
        "session": q["session"] or "",
        "expires": str(q["expires"] or ""),
        "commands": ",".join(map(str, q["commands"] or ())),
        "rate": str(q["rate"] or ""),
    }
    await ops.engine.door.clear(
        q["act!"], number, "grant", details=details, wait_s=q["hold"] or 0.0
    )
    await q["act!"].intend()
    try:
        return _given(
            q["name"], await authority.issue_to(q["name"], q["rights"], wanted, conn.key, now)
        )
    except Malformed as e:
        raise Usage(f"no such envelope: {e}", "see docs/operators.md") from e


def _given(name: str, held: roster.Held) -> dict[str, Any]:
    facts = {
        "name": name,
        "rights": sorted(held.chain.last.rights),
        "scope": held.chain.last.scope.show(),
    }
    return {**facts, "id": held.id.hex(), "outcome": {**facts, "link": held.id.hex()}}


def _says(text: str) -> dict[str, str]:
    """What an envelope that somebody signed themselves gives, for whoever is asked about it."""
    try:
        last = read_link(decode(text)[-1].body)
    except (Malformed, IndexError) as e:
        raise NotAllowed(f"not accepted: {e}", "ask whoever gave it for a new one") from e
    return {
        "holder": signing.show(last.holder),
        "gives": ",".join(sorted(last.rights)),
        "scope": str(last.scope.show()),
    }


async def turn(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """Moves the turn; without an act it only shows it."""
    session, act, to = ops.engine.find(q["session"]), q["act"], q["to"]
    ops.may(conn, TURN_RIGHTS.get(act, "observe"), session.id)
    if (to is None) != (act not in TURN_ACTS_TO):
        raise Usage(
            f"turn {act} needs an operator" if to is None else f"turn {act} names no operator"
        )
    if act == "hand":
        ops.engine.authority.living(to)  # a turn in nobody's hands would keep everybody out
    answer: dict[str, Any] = {}
    if act in TURN_RIGHTS or act == "release":
        await ops.engine.door.clear(
            q["act!"], number, "turn", details={"act": act, "to": to or ""}, wait_s=q["hold"]
        )
        await q["act!"].intend()
    if act == "request":
        answer = await session.turn.request(conn.operator, conn.kind, float(q["wait"] or 0))
        if session.turn.holder == conn.operator:
            session.turn.device = conn.key
    elif act == "release":
        session.turn.release(conn.operator)
    elif act in TURN_ACTS_TO:
        getattr(session.turn, act)(conn.operator, to)
    elif act != "show":
        raise Usage(f"unknown act {act!a}", f"one of request, release, {', '.join(TURN_ACTS_TO)}")
    return {"id": session.id, "name": session.name, "turn": session.turn.facts(), **answer}


async def seize(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """Effective at once: no further input of the old holder is taken, and none of it that no program has read reaches one (A3)."""
    session = ops.engine.find(q["session"])
    began, taking = time.monotonic(), session.seize(conn.operator, conn.key)
    q["act!"].happened(previous=session.turn.holder)
    previous, flushed = await taking
    ops.engine.tally.seizing.add(time.monotonic() - began)
    return {
        "id": session.id,
        "name": session.name,
        "turn": session.turn.facts(),
        "previous": previous,
        "flushed": flushed,
        "inherits": await session.turn.inherits(),
    }


async def halt(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """Everything stands still; who is attached sees it, and may still look (A4)."""
    session = ops.engine.find(q["session"])
    done = await ops.engine.halter.halt(execution(session), lambda: session.ring.accepted)
    ops.engine.tally.halting.add(done.took_ms / 1000)
    if session.state in ("live", "detached"):
        session.change(
            "halted",
            operator=conn.operator,
            how=done.how,
            took_ms=done.took_ms,
            complete=done.complete,
            act=done.last_act,
        )
    session.tell_viewers("halted", operator=conn.operator, how=done.how)
    q["act!"].happened(
        how=done.how,
        complete=done.complete,
        act=done.last_act,
        processes=len(done.pids),
        took_us=int(done.took_ms * 1000),
    )
    return {
        "id": session.id,
        "name": session.name,
        "how": done.how,
        "complete": done.complete,
        "took_ms": round(done.took_ms, 3),
        "processes": list(done.pids),
        "missed": list(done.missed),
        "act": done.last_act,
        "ref": f"{session.ref}#{done.last_act}",
    }


async def resume(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    was = session.state == "halted"
    await ops.engine.door.clear(q["act!"], number, "resume", wait_s=q["hold"])
    await q["act!"].intend(owed=True)
    done = await ops.engine.halter.resume(execution(session))
    if session.state == "halted":
        session.change("resumed", operator=conn.operator, how=done.how, took_ms=done.took_ms)
        if session.viewers:
            session.change(
                "attached",
                operator=conn.operator,
                modality=conn.modality,
                root_pid=session.record.root_pid,
                output=session.ring.head,
            )
    if was:
        session.tell_viewers("resumed", operator=conn.operator)
    return {
        "halted": was,
        "id": session.id,
        "name": session.name,
        "how": done.how,
        "complete": done.complete,
        "took_ms": round(done.took_ms, 3),
        "processes": list(done.pids),
    }
