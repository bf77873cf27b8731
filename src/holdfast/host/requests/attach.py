"""Operations of a client that attaches: begin, sign for typed keys, repaint, leave."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Final

from holdfast.core.contract.attach import Attach, AttachReply, SendAway, SentAway
from holdfast.core.contract.codec import encode
from holdfast.core.contract.input import Cover, Covered, Entry
from holdfast.core.contract.message import Nothing, extended
from holdfast.core.record.statement import client_id
from holdfast.host.lifecycle.environment import refresh_agent
from holdfast.host.requests import nesting
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.summary import describe
from holdfast.host.session.session import Session
from holdfast.host.session.viewer import Viewer
from holdfast.model.errors import Ambiguous, NotFound, Refused, Usage
from holdfast.model.probe import probe
from holdfast.wire import frames

LEAVE_S: Final = 2.0  # for a client to sign its last keys and leave


async def attach(host: Host, ctx: Context, q: Attach) -> None:
    """Sends the reply itself, because descriptors of the output buffer may go along."""
    engine, conn = host.engine, ctx.conn
    session = engine.find(q.session)
    engine.leases.refuse(session)
    rights = engine.authority.rights_of(conn.key, session.id, time.time())
    observe = q.observe or "input" not in rights
    if q.agent and not observe and not conn.channel and _takes_agent(session):
        await refresh_agent(engine.threads, session.id, session.writable_directory, q.agent)
        session = engine.find(session.id)  # that may have taken a moment
    if conn in host.viewers:
        host.leave(conn, "switched")
    clipboard = q.clipboard is True and session.label.get("clipboard") is True
    viewer = Viewer(conn, session, q.cols, q.rows, observe, q.scrollback, clipboard)
    rights = engine.authority.rights_of(conn.key, session.id, time.time())
    viewer.resizes = "resize" in rights
    around = engine.insiders.session_of(conn)
    viewer.inside = around.id if around is not None else None
    nesting.refuse(session, viewer.inside, host.viewers.values())
    host.viewers[conn] = viewer
    conn.on_drain = viewer.pump
    session.viewers.attach(viewer)
    shown, seen = describe(session), engine.journal.seen(session.id)
    direct = q.direct and not conn.channel and not conn.blocked
    bell = session.viewers.let_read(viewer) if direct else -1
    more = {"acked": viewer.acked, "resume": q.resume, "observe": observe, "seen": seen}
    if q.clipboard is True:
        more["clipboard"] = clipboard
    if "lost" in session.label:
        more["lost"] = session.label["lost"]["from"]
    reply = encode(extended(AttachReply, shown, **more, direct=bell >= 0))
    if bell >= 0:
        conn.send_with(frames.reply(ctx.number, reply), [session.link.ring_fd, bell])
        os.close(bell)
    else:
        conn.answer(ctx.number, reply)
    engine.held_acts.greet(conn, session.id)
    session.turn.greet(conn.operator)
    engine.last_used.note(session.id, conn.operator, time.time())
    host.attached(viewer)
    probe("host.attach.answered")
    await viewer.begin(q.resume)


def _takes_agent(session: Session) -> bool:
    """Whether an attached client's ssh agent may serve the session: a person's plain one only."""
    plain = session.layout.get("layout") != "contained"
    return plain and str(session.label.get("maker", "human")) == "human"


async def cover(host: Host, ctx: Context, q: Cover) -> Covered:
    """Records the client's signature over keys that the client typed."""
    viewer = host.viewers.get(ctx.conn)
    if viewer is None or q.session != viewer.session.id:
        raise Refused("not attached there", "attach first")
    written = await viewer.session.keyboard.cover(viewer, q.signed)
    return Covered(recorded=Entry(seq=written.seq, hash=written.hash))


async def refresh(host: Host, ctx: Context, q: Nothing) -> Nothing:
    viewer = host.viewers.get(ctx.conn)
    if viewer is None:
        raise Refused("not attached", "attach first")
    await viewer.refresh(frames.SCREEN_RESUME, over=False)
    return Nothing()


async def send_away(host: Host, ctx: Context, q: SendAway) -> SentAway:
    """Asks the clients to leave, and closes the connections of those that do not."""
    session, caller = host.engine.find(q.session), ctx.conn.operator
    host.require(ctx.conn, "observe", session.id)
    if q.client is not None and q.others:
        raise Usage("`client` and `others` exclude each other")
    chosen = _chosen(session.viewers, caller, q)
    if any(viewer.conn.operator != caller for viewer in chosen):
        host.require(ctx.conn, "turn.seize", session.id)
    for viewer in chosen:
        facts = {"of": viewer.conn.operator, "client": client_id(viewer.conn.client)}
        session.event("client.sent_away", operator=caller, **facts)
        viewer.conn.event("sent_away", session=session.id, operator=caller)
    waits = [asyncio.ensure_future(viewer.left.wait()) for viewer in chosen]
    if waits:
        _, late = await asyncio.wait(waits, timeout=LEAVE_S)
        for one in late:
            one.cancel()
    for viewer in chosen:
        if not viewer.closed:  # an older client, or one that does not read
            viewer.conn.bye("admission", f"{caller} detached this client; the session goes on")
    gone = tuple(viewer.conn.operator for viewer in chosen)
    return SentAway(id=session.id, name=session.name, detached=gone)


def _chosen(viewers: Sequence[Viewer], caller: str, q: SendAway) -> list[Viewer]:
    own = [viewer for viewer in viewers if viewer.conn.operator == caller]
    if q.client is not None:
        found = [v for v in viewers if q.client and client_id(v.conn.client).startswith(q.client)]
        if len({v.conn.client for v in found}) > 1:
            raise Ambiguous(f"{q.client[:40]!a} is the beginning of {len(found)} clients' ids")
        if not found:
            raise NotFound(
                f"no client {q.client[:40]!a} is attached there",
                "`holdfast who SESSION` lists the clients",
            )
        return found
    if not q.others:
        return own
    kept = max(own, key=lambda viewer: viewer.typed_at, default=None)
    return [viewer for viewer in viewers if viewer is not kept]


async def detach(host: Host, ctx: Context, q: Nothing) -> Nothing:
    host.leave(ctx.conn, "detached")
    return Nothing()
