"""Operations that save sessions to disk and restore them (host/checkpoints)."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

from holdfast.core.checkpoint import copies as rules
from holdfast.core.checkpoint import preflight
from holdfast.core.checkpoint.copies import Copy
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.contract.checkpoints import (
    ActBeside,
    Checked,
    Checkpoint,
    CheckpointRemoved,
    CheckpointReply,
    Checkpoints,
    CheckpointsReply,
    LostConnection,
    RemoveCheckpoint,
    Restore,
    Restored,
    SavedCheckpoint,
    There,
)
from holdfast.core.contract.copies import ArrivedFiles, SentCopy
from holdfast.core.contract.message import ABSENT, Absent
from holdfast.home.machines import Machine
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.checkpoints import incarnations
from holdfast.host.checkpoints.incarnations import Take
from holdfast.host.checkpoints.save import EXAMINED, STORED, examine, save
from holdfast.host.copies.copies import Copies
from holdfast.host.copies.sending import Sent
from holdfast.host.leases.fences import Leases, Waiting
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.recovery.re_establishing import after_failure, re_establish
from holdfast.host.runtime.progress import Progress, given_up, giving_up
from holdfast.host.runtime.tasks import to_the_end
from holdfast.host.session.session import Session
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Impossible, Refused, TimedOut, Unavailable

ENDING_S: Final = 20.0  # for the end of the last incarnation to be filed


async def checkpoint(host: Host, ctx: Context, q: Checkpoint) -> CheckpointReply:
    engine, session = host.engine, host.engine.find(q.session)
    store = engine.incarnations.checkpoints
    machine = engine.copies.trusted(q.to) if isinstance(q.to, str) else None
    if q.check:
        found = await examine(store, session)
        there: There | Absent = ABSENT
        if machine is not None and found.possible:
            there = await _there(engine.copies, session, machine, found.bytes)
        checked = Checked(**found._asdict(), possible=found.possible)
        named = {"id": session.id, "name": session.name}
        return CheckpointReply(**named, found=checked, saved=None, there=there)
    details = {"stop": str(q.stop), **({"to": machine.name} if machine else {})}
    await engine.door.enter(ctx.act, ProposedAct("checkpoint", details=details, wait_s=q.hold))

    tell = _Telling(ctx, late=STORED if machine is None else "")
    operator, copied = ctx.conn.operator, tuple[SentCopy, ...]()
    with giving_up(f"nothing is saved, and {session.name} goes on as it was"):
        if machine is None:
            made = await save(store, session, operator, q.stop, tell, engine.halter, engine.journal)
        else:
            send = engine.copies.outgoing.save_and_send
            made, sent = await send(session, machine, operator, q.stop, tell)
            copied = (_sent(machine.name, made, sent),)
            if isinstance(sent, HoldfastError) and not q.stop and not given_up():
                engine.copies.outgoing.try_again(session, machine, made)
    if q.stop:
        tell.goes_on("stopped")
        await to_the_end(_end(session), may_stop=lambda: False)
    else:
        session.event(
            "session.saved", operator=ctx.conn.operator, checkpoint=made.id, bytes=made.bytes
        )
    ctx.act.outcome = {"checkpoint": made.id, "ended": made.ended, "bytes": made.bytes}
    place = "" if ctx.conn.channel else str(store.place(made.session, made.id))
    shown = _shown(made, place, copied)
    return CheckpointReply(id=session.id, name=session.name, found=None, saved=shown)


async def _end(session: Session) -> None:
    await asyncio.shield(session.ended)


async def _there(copies: Copies, session: Session, machine: Machine, size: int) -> There:
    """What the other machine says about the session."""
    possible: bool | None = False
    try:
        known = await copies.sending.ask_whether(session, machine, size)
        return There(machine=machine.name, possible=True, reasons=(), free=known.free)
    except (Impossible, Refused) as e:
        found = e.facts.get("reasons")
        reasons = tuple(map(str, found)) if isinstance(found, list) and found else (e.message,)
    except (Unavailable, TimedOut) as e:
        possible, reasons = None, (e.message,)
    return There(machine=machine.name, possible=possible, reasons=reasons, free=0)


class _Telling(Progress):
    """The first step also says how long all will take. From step `late` on the work goes on."""

    def __init__(self, ctx: Context, late: str = "") -> None:
        super().__init__(partial(ctx.conn.event, "progress", request=ctx.number))
        self._late = late

    def __call__(self, step: str, done: int, **more: object) -> None:
        if step == EXAMINED:
            more["seconds"] = preflight.seconds(done)
        self.stops = self.stops and step != self._late
        super().__call__(step, done, **more)


async def remove(host: Host, ctx: Context, q: RemoveCheckpoint) -> CheckpointRemoved:
    engine = host.engine
    store, found = engine.incarnations.checkpoints, engine.find_any(q.session)
    chosen = await engine.halter.in_thread(store.one, found.id, q.checkpoint)
    await engine.incarnations.may_remove(found.id, chosen)
    facts = {"session": found.id, "name": found.name, "checkpoint": chosen}
    await engine.door.enter(ctx.act, ProposedAct("forget", details=facts, wait_s=q.hold))
    freed = await engine.incarnations.remove(found.id, chosen)
    removed = {"name": found.name, "checkpoint": chosen, "bytes": freed}
    host.engine.events.note(found.id, "session.checkpoint_removed", removed)
    ctx.act.outcome = {"checkpoint": chosen, "bytes": freed}
    return CheckpointRemoved(id=found.id, name=found.name, checkpoint=chosen, freed=freed)


def _sent(machine: str, made: Manifest, sent: Sent | HoldfastError) -> SentCopy:
    if isinstance(sent, HoldfastError):
        why = sent.message
        return SentCopy(machine=machine, checkpoint=made.id, at=made.at, failed=why)
    return SentCopy(**sent._asdict())


def _shown(
    made: Manifest, place: str = "", copied: tuple[SentCopy, ...] = (), kept_for: str = ""
) -> SavedCheckpoint:
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
        stored=made.stored,
        added=made.added,
        path=place or ABSENT,
        copies=copied,
        kept_for=kept_for or ABSENT,
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
    own = [_shown(one, "", _away(engine.copies, one)) for one in seen]
    kept = await engine.halter.in_thread(engine.copies.received_copies, session)
    own += [_kept(one) for one in kept if host.may_observe(ctx.conn, one.session)]
    return CheckpointsReply(checkpoints=tuple(sorted(own, key=lambda one: one.at)))


def _away(copies: Copies, made: Manifest) -> tuple[SentCopy, ...]:
    known = copies.sending.away(made.session).values()
    return tuple(
        SentCopy(**{name: one[name] for name in Sent._fields})
        for one in known
        if one["checkpoint"] == made.id
    )


def _kept(copy: Copy) -> SavedCheckpoint:
    """A copy of another machine's session."""
    return SavedCheckpoint(
        checkpoint=copy.checkpoint,
        id=copy.session,
        name=copy.name,
        epoch=copy.epoch,
        at=copy.at,
        by=copy.sender_name,
        ended=copy.final,
        bytes=sum(rules.objects(copy).values()),
        offset=0,
        act=copy.record[0],
        losses=(),
        written=(),
        frozen_ms=0.0,
        took_ms=0.0,
        kept_for=copy.sender_name,
    )


async def restore(host: Host, ctx: Context, q: Restore) -> Restored:
    engine = host.engine
    if q.session in engine.sessions or q.session in engine.session_names().values():
        session = engine.find(q.session)
        if session.ending:  # the host has just found it killed
            await asyncio.wait({session.ended}, timeout=ENDING_S)
    if q.session in engine.sessions or q.session in engine.session_names().values():
        if session.state == "halted":
            raise Refused(
                f"session {session.name} is here, and halted",
                f"`holdfast resume {session.name}` lets it go on",
            )
        raise engine.incarnations.running(session.id, session.name)
    found = engine.find_any(q.session)
    if found.id not in engine.sessions and engine.copies.is_copy(found.id):
        return await _take_over(host, ctx, q, found.id)
    tell = _Telling(ctx)
    await engine.copies.refuse_gone(found.id, q.lost is True, tell)
    row = engine.incarnations.row_of(q.session)
    word = q.checkpoint if isinstance(q.checkpoint, str) else ""
    if not word and not engine.incarnations.saved_session(row.id):
        return await _without_memory(host, ctx, q, row)
    try:
        chosen = engine.incarnations.checkpoints.chosen
        manifest = await engine.halter.in_thread(chosen, row.id, word)
    except Impossible as e:
        if word or q.fallback is False:
            raise
        return await _without_memory(host, ctx, q, row, e)
    # The label of a contained session says what the session sees.
    details = {"checkpoint": manifest.id, "contained": str("sees" in manifest.label)}
    await engine.door.enter(ctx.act, ProposedAct("restore", details=details, wait_s=q.hold))
    loop = asyncio.get_running_loop()
    tell(EXAMINED, manifest.bytes)

    def unpacked(count: int) -> None:
        loop.call_soon_threadsafe(tell, "unpacked", count)

    take = _taking(engine.leases, row, q, tell)
    try:
        with giving_up(f"{row.name} stays on the disk as it was"):
            made = await engine.incarnations.restore(
                row,
                manifest,
                ctx.conn.operator,
                unpacked,
                take,
                begins=lambda: tell.goes_on("starts its processes"),
            )
    except Impossible as e:
        if q.fallback is False:
            raise
        with engine.incarnations.restoring(row, "", ctx.conn.operator):
            return await after_failure(host, ctx, row, manifest.id, e)
    session, epoch = made.session, made.session.record.epoch
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
        connections=_lost(made),
        **_beside(made),
        kept=made.kept if made.kept and not ctx.conn.channel else ABSENT,
        halted=made.halted or ABSENT,
    )


async def _without_memory(
    host: Host, ctx: Context, q: Restore, row: SessionRow, unusable: Impossible | None = None
) -> Restored:
    """Begin the session anew: it has no checkpoint, or none that can be used."""
    engine = host.engine
    contained = engine.near_end.contained(row.id)
    details = {"checkpoint": "", "contained": str(contained)}
    await engine.door.enter(ctx.act, ProposedAct("restore", details=details, wait_s=q.hold))
    with engine.incarnations.restoring(row, "", ctx.conn.operator):
        if unusable is None:
            return await re_establish(host, ctx, row)
        bad = str(unusable.facts.get("checkpoint", ""))
        return await after_failure(host, ctx, row, bad, unusable)


def _taking(leases: Leases, row: SessionRow, q: Restore, tell: Progress) -> Take | None:
    """How the epoch of a session that another machine may have is taken."""
    if leases.shared and not row.rehomable:
        return None
    return lambda row: leases.take_over(row, q.lost is True, _waiting(tell))


def _waiting(tell: Progress) -> Waiting:
    def waiting(left: float, why: str) -> None:
        tell.until(f"waits for the lease: {why}", 0, time.time() + left)

    return waiting


async def _take_over(host: Host, ctx: Context, q: Restore, session: str) -> Restored:
    """Bring back a session of another machine, which the caller states to be lost."""
    engine = host.engine
    word = q.checkpoint if isinstance(q.checkpoint, str) else ""
    copy = await engine.halter.in_thread(engine.copies.copy_of, engine.ended[session], word)
    leased = (await engine.leases.known(session)).lease
    if q.lost is not True and not (leased is not None and leased.rehomable):
        raise Refused(
            f"{copy.name} is a session of {copy.sender_name}; this is a copy of {_clock(copy.at)}",
            f"`holdfast restore {copy.name} --lost` takes it over, if {copy.sender_name} is gone: "
            "the session there ends when that machine hears of it",
        )
    details = {"checkpoint": copy.checkpoint, "lost": copy.sender_name, "contained": "True"}
    await engine.door.enter(ctx.act, ProposedAct("restore", details=details, wait_s=q.hold))
    tell = _Telling(ctx)
    tell(EXAMINED, sum(rules.objects(copy).values()))
    with giving_up(f"nothing is taken over, and the copy of {copy.sender_name} stays here"):
        made = await engine.copies.take_over(
            copy,
            ctx.conn.operator,
            lost=True,
            stated=q.lost is True,
            waiting=_waiting(tell),
            begins=lambda: tell.goes_on("starts its processes"),
        )
    session_, epoch = made.session, made.session.record.epoch
    ctx.act.outcome = {"checkpoint": copy.checkpoint, "epoch": epoch, "lost": copy.sender}
    return Restored(
        id=session_.id,
        name=session_.name,
        checkpoint=copy.checkpoint,
        epoch=epoch,
        at=copy.at,
        pid=session_.record.root_pid,
        replaced=made.replaced,
        losses=(),
        connections=_lost(made),
        **_beside(made),
        taken_from=copy.sender_name,
        act=copy.record[0],
        unfenced=leased is None or not leased.rehomable,
        halted=made.halted or ABSENT,
        files=tuple(ArrivedFiles(**one) for one in made.files) if not ctx.conn.channel else ABSENT,
    )


def _lost(made: incarnations.Restored) -> tuple[LostConnection, ...]:
    return tuple(LostConnection(**one) for one in made.connections)


def _beside(made: incarnations.Restored) -> dict[str, Any]:
    in_flight, later, more = made.past
    return {
        "in_flight": tuple(ActBeside(**one) for one in in_flight),
        "later": tuple(ActBeside(**one) for one in later),
        "later_more": more,
    }


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
