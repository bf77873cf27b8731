"""Operations that save sessions to disk and restore them (host/checkpoints)."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.contract.checkpoints import (
    Checked,
    Checkpoint,
    CheckpointReply,
    Checkpoints,
    CheckpointsReply,
    Restore,
    Restored,
    SavedCheckpoint,
)
from holdfast.core.contract.message import ABSENT
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.checkpoints.save import examine, save
from holdfast.host.requests.host import Context, Host
from holdfast.model.errors import Refused

ENDING_S: Final = 20.0  # for the end of the last incarnation to be filed


async def checkpoint(host: Host, ctx: Context, q: Checkpoint) -> CheckpointReply:
    engine, session = host.engine, host.engine.find(q.session)
    store = engine.incarnations.checkpoints
    if q.check:
        found = await examine(store, session)
        checked = Checked(**found._asdict(), possible=found.possible)
        return CheckpointReply(id=session.id, name=session.name, found=checked, saved=None)
    details = {"stop": str(q.stop)}
    await engine.door.enter(ctx.act, ProposedAct("checkpoint", details=details, wait_s=q.hold))

    def tell(step: str, done: int) -> None:
        ctx.conn.event("progress", request=ctx.number, step=step, bytes=done)

    made = await save(store, session, ctx.conn.operator, q.stop, tell)
    if q.stop:
        await session.ended
    else:
        session.event(
            "session.saved", operator=ctx.conn.operator, checkpoint=made.id, bytes=made.bytes
        )
    ctx.act.outcome = {"checkpoint": made.id, "ended": made.ended, "bytes": made.bytes}
    place = "" if ctx.conn.channel else str(store.place(made.session, made.id))
    return CheckpointReply(id=session.id, name=session.name, found=None, saved=_shown(made, place))


def _shown(made: Manifest, place: str = "") -> SavedCheckpoint:
    return SavedCheckpoint(
        checkpoint=made.id,
        id=made.session,
        name=made.name,
        epoch=made.epoch,
        at=made.at,
        by=made.by,
        ended=made.ended,
        bytes=made.bytes,
        offset=made.head,
        act=made.sequence,
        losses=made.losses,
        written=made.written,
        frozen_ms=made.frozen_ms,
        took_ms=made.took_ms,
        path=place or ABSENT,
    )


async def checkpoints(host: Host, ctx: Context, q: Checkpoints) -> CheckpointsReply:
    """Only the checkpoints of sessions that the caller may observe."""
    engine = host.engine
    store = engine.incarnations.checkpoints
    session = ""
    if isinstance(q.session, str):
        found = engine.find_any(q.session)
        session = found.id
        host.require(ctx.conn, "observe", session)
    made = await engine.halter.in_thread(store.of, session) if session else None
    made = made if made is not None else await engine.halter.in_thread(store.all)
    seen = [one for one in made if host.may_observe(ctx.conn, one.session)]
    return CheckpointsReply(checkpoints=tuple(_shown(one) for one in seen))


async def restore(host: Host, ctx: Context, q: Restore) -> Restored:
    engine = host.engine
    if q.session in engine.sessions or q.session in engine.session_names().values():
        session = engine.find(q.session)
        if session.ending:  # the host has just found it killed
            await asyncio.wait({session.ended}, timeout=ENDING_S)
    if q.session in engine.sessions or q.session in engine.session_names().values():
        raise Refused(
            f"session {session.name} is running",
            f"`holdfast checkpoint {session.name} --stop` or `holdfast end {session.name}` first",
        )
    row = engine.incarnations.row_of(q.session)
    word = q.checkpoint if isinstance(q.checkpoint, str) else ""
    manifest = await engine.halter.in_thread(engine.incarnations.checkpoints.chosen, row.id, word)
    details = {"checkpoint": manifest.id}
    await engine.door.enter(ctx.act, ProposedAct("restore", details=details, wait_s=q.hold))
    made = await engine.incarnations.restore(row, manifest, ctx.conn.operator)
    session, epoch = made.session, made.session.record.epoch
    session.event(
        "session.restored",
        operator=ctx.conn.operator,
        checkpoint=manifest.id,
        at=manifest.at,
        epoch=epoch,
        root_pid=session.record.root_pid,
    )
    ctx.act.outcome = {"checkpoint": manifest.id, "epoch": epoch, "replaced": [*made.replaced]}
    return Restored(
        id=session.id,
        name=session.name,
        checkpoint=manifest.id,
        epoch=epoch,
        at=manifest.at,
        pid=session.record.root_pid,
        replaced=made.replaced,
        losses=manifest.losses,
        kept=made.kept if made.kept and not ctx.conn.channel else ABSENT,
    )
