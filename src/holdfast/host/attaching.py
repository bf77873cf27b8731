"""Operations of a client that attaches: a viewer is made, looks, types, signs for what it typed, and leaves."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from holdfast.core import acts
from holdfast.host import process
from holdfast.host.connection import Connection
from holdfast.host.describing import describe
from holdfast.host.environment import refresh_agent
from holdfast.host.session import Session
from holdfast.host.viewer import Viewer
from holdfast.model.errors import Nested, Refused, Usage
from holdfast.model.probe import probe
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.host.ops import Ops


async def attach(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    if conn in ops.viewers:
        ops.leave(conn, "switched")
    observe = q["observe"] or "input" not in ops.engine.authority.rights_of(conn.key, session.id, time.time())
    viewer = Viewer(conn, session, q["cols"], q["rows"], observe, q["scrollback"])
    viewer.resizes = "resize" in ops.engine.authority.rights_of(conn.key, session.id, time.time())
    viewer.inside = inside(ops, conn.pid)
    _refuse_nesting(ops, session, viewer.inside)
    if q["agent"]:
        refresh_agent(session.directory, q["agent"])
    ops.viewers[conn] = viewer
    conn.on_drain = viewer.pump
    session.add_viewer(viewer)
    answer = {**describe(session), "acked": viewer.acked, "resume": q["resume"], "observe": observe, "seen": ops.engine.journal.seen(session.id)}
    bell = session.let_read(viewer) if q["direct"] and not conn.blocked else -1
    if bell >= 0:
        conn.send_with(frames.reply(number, {**answer, "direct": True}), [session.link.ring_fd, bell])
        os.close(bell)
    else:
        conn.answer(number, {**answer, "direct": False})
    ops.engine.desk.greet(conn, session.id)
    probe("host.attach.answered")
    await viewer.begin(q["resume"])
    return {}


def inside(ops: Ops, pid: int) -> str | None:
    """The session whose tree this client runs in, from the kernel: a process cannot hide it by cleaning its environment."""
    keepers = {s.keeper_pid: s.id for s in ops.engine.sessions.values()}
    for _ in range(64):
        if pid in keepers:
            return keepers[pid]
        stat = process.read_stat(pid)
        if stat is None or stat.ppid <= 1:
            return None
        pid = stat.ppid
    return None


def _refuse_nesting(ops: Ops, target: Session, inside: str | None) -> None:
    """Showing a session inside itself, directly or through others, would feed its own output back for ever."""
    seen: set[str] = set()
    while inside is not None and inside not in seen:
        if inside == target.id:
            raise Nested(f"this terminal is inside session {target.name} itself")
        seen.add(inside)
        inside = next((v.inside for v in ops.viewers.values() if v.session.id == inside and v.inside is not None), None)


async def cover(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """The signature over keys that were typed here."""
    viewer = ops.viewers.get(conn)
    if viewer is None or q["session"] != viewer.session.id:
        raise Refused("not attached there", "attach first")
    if set(q["signed"]) != set(acts.SIGNED) or not all(isinstance(part, str) for part in q["signed"].values()):
        raise Usage(f"a signature has {', '.join(acts.SIGNED)}")
    return {"recorded": await viewer.session.keyboard.cover(viewer, **q["signed"])}


async def refresh(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    viewer = ops.viewers.get(conn)
    if viewer is None:
        raise Refused("not attached", "attach first")
    await viewer.refresh(frames.SCREEN_RESUME)
    return {}


async def detach(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    ops.leave(conn, "detached")
    return {}
