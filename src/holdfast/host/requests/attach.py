"""Operations of a client that attaches: a viewer is made, looks, types, signs for what it typed, and leaves."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from holdfast.core import acts
from holdfast.host import nesting
from holdfast.host.connection import Connection
from holdfast.host.describing import describe
from holdfast.host.environment import refresh_agent
from holdfast.host.viewer import Viewer
from holdfast.model.errors import Refused, Usage
from holdfast.model.probe import probe
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.host.ops import Ops


async def attach(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    observe = q["observe"] or "input" not in ops.engine.authority.rights_of(
        conn.key, session.id, time.time()
    )
    if q["agent"] and not observe and not conn.channel:
        await refresh_agent(ops.engine.threads, session.id, session.directory, q["agent"])
        session = ops.engine.find(session.id)  # that may have taken a moment
    if conn in ops.viewers:
        ops.leave(conn, "switched")
    viewer = Viewer(conn, session, q["cols"], q["rows"], observe, q["scrollback"])
    viewer.resizes = "resize" in ops.engine.authority.rights_of(conn.key, session.id, time.time())
    viewer.inside = nesting.inside(ops.engine, conn.pid) if conn.pid else None
    nesting.refuse(session, viewer.inside, ops.viewers.values())
    ops.viewers[conn] = viewer
    conn.on_drain = viewer.pump
    session.add_viewer(viewer)
    answer = {
        **describe(session),
        "acked": viewer.acked,
        "resume": q["resume"],
        "observe": observe,
        "seen": ops.engine.journal.seen(session.id),
    }
    bell = session.let_read(viewer) if q["direct"] and not conn.channel and not conn.blocked else -1
    if bell >= 0:
        conn.send_with(
            frames.reply(number, {**answer, "direct": True}), [session.link.ring_fd, bell]
        )
        os.close(bell)
    else:
        conn.answer(number, {**answer, "direct": False})
    ops.engine.desk.greet(conn, session.id)
    ops.watches(viewer)
    probe("host.attach.answered")
    await viewer.begin(q["resume"])
    return {}


async def cover(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """The signature over keys that were typed here."""
    viewer = ops.viewers.get(conn)
    if viewer is None or q["session"] != viewer.session.id:
        raise Refused("not attached there", "attach first")
    try:
        parts = acts.parts(q["signed"])
    except ValueError as e:
        raise Usage(f"cover: {e}") from e
    return {"recorded": await viewer.session.keyboard.cover(viewer, *parts)}


async def refresh(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    viewer = ops.viewers.get(conn)
    if viewer is None:
        raise Refused("not attached", "attach first")
    await viewer.refresh(frames.SCREEN_RESUME, over=False)
    return {}


async def detach(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    ops.leave(conn, "detached")
    return {}
