"""Operations on copies: this machine's at other machines, and those of other machines here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.core.checkpoint import copies as rules
from holdfast.core.checkpoint.copies import EVERY_MIN_S, Unusable
from holdfast.core.contract.copies import (
    ArrivedFiles,
    CheckCopy,
    CommitCopy,
    CopyChecked,
    CopyKept,
    CopyNamed,
    Lacking,
    LackingReply,
    Move,
    Moved,
    OfferCopy,
    Put,
    Schedule,
    Scheduled,
    SessionGone,
    TakeCopy,
    TakenOver,
    Trust,
    Trusted,
    TrustedMachine,
)
from holdfast.core.contract.message import Nothing
from holdfast.home import machines
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.checkpoints.save import examine, impossible
from holdfast.host.copies import arrive
from holdfast.host.copies import trusted as known
from holdfast.host.copies.arrive import COPIED, MOVED
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.flow import Upstream
from holdfast.host.runtime.progress import giving_up
from holdfast.model import signing
from holdfast.model.errors import NotFound, Refused, TimedOut, Usage

T = TypeVar("T")
WINDOW_BYTES: Final = 2 << 20  # that a machine may send before they are on the disk
QUIET_S: Final = 300.0  # without a byte of the sender


# ------------------------------------------------------------ this machine's sessions


async def trust(host: Host, ctx: Context, q: Trust) -> Trusted:
    home = host.engine.home
    try:
        machine = machines.read(q.entry)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Usage("that is no entry of a machine") from e
    details = {"trust": machine.name, "key": signing.show(machine.key), "on": str(q.trusted)}
    proposed = ProposedAct("operator", details=details, wait_s=q.hold or 0.0)
    await host.engine.door.enter(ctx.act, proposed)
    if q.trusted:
        await asyncio.to_thread(known.keep, home, machine, ctx.conn.operator, time.time())
    else:
        await asyncio.to_thread(known.drop, home, machine.key)
    ctx.act.outcome = {**details}
    return await _trusted(host)


async def trusted(host: Host, ctx: Context, q: Nothing) -> Trusted:
    return await _trusted(host)


async def _trusted(host: Host) -> Trusted:
    found = await asyncio.to_thread(known.listing, host.engine.home)
    return Trusted(
        machines=tuple(
            TrustedMachine(
                name=one.machine.name,
                key=signing.show(one.machine.key),
                known_as=one.machine.operator,
                by=one.by,
                since=one.since,
            )
            for one in found
        )
    )


async def every(host: Host, ctx: Context, q: Schedule) -> Scheduled:
    engine, session = host.engine, host.engine.find(q.session)
    outgoing, machine = engine.copies.outgoing, None
    now = outgoing.schedule_of(session.id)
    if q.every_s:
        if q.every_s < EVERY_MIN_S:
            raise Usage(f"a copy can be sent every {EVERY_MIN_S:g} seconds at most")
        machine = engine.copies.trusted(q.to)
    elif now is None:
        return Scheduled(id=session.id, name=session.name, every_s=0, to="")
    to = machine.name if machine is not None else str((now or {})["machine"])
    details = {"to": to, "every": str(q.every_s)}
    await engine.door.enter(ctx.act, ProposedAct("checkpoint", details=details, wait_s=q.hold))
    if machine is not None:
        outgoing.set_schedule(session.id, q.every_s, machine, ctx.conn.operator)
    else:
        outgoing.end_schedule(session.id)
    ctx.act.outcome = {**details}
    return Scheduled(id=session.id, name=session.name, every_s=q.every_s, to=to)


async def move(host: Host, ctx: Context, q: Move) -> Moved:
    engine, session = host.engine, host.engine.find(q.session)
    machine = engine.copies.trusted(q.machine)
    if q.check:
        found = await examine(engine.incarnations.checkpoints, session)
        if not found.possible:
            raise impossible(session, found)
        await engine.copies.sending.ask_whether(session, machine, found.bytes)
        return Moved(
            id=session.id,
            name=session.name,
            machine=machine.name,
            epoch=0,
            bytes=0,
            sent=0,
            stood_ms=0.0,
            took_ms=0.0,
        )
    details = {"machine": machine.name}
    await engine.door.enter(ctx.act, ProposedAct("move", details=details, wait_s=q.hold))

    with giving_up(f"{session.name} goes on here as it was"):
        moving, by = engine.copies.moving, ctx.conn.operator
        done = await moving.move(session, machine, by, ctx.progress())
    ctx.act.outcome = {"machine": machine.name, "epoch": done.epoch, "bytes": done.bytes}
    named = {"id": session.id, "name": session.name}
    files = tuple(ArrivedFiles(**one) for one in done.files)
    return Moved(**{**done._asdict(), **named, "files": files})


# ------------------------------------------------------------ sessions of other machines


async def check(host: Host, ctx: Context, q: CheckCopy) -> CopyChecked:
    engine = host.engine
    machine = _usable(rules.machine_of, list(q.facts))
    needs = _usable(rules.needs_of, q.needs)
    criu = engine.incarnations.checkpoints.criu
    await arrive.check(engine, criu, machine, needs)
    free = await asyncio.to_thread(engine.copies.received.room, q.bytes)
    return CopyChecked(free=free, images=engine.incarnations.checkpoints.public.hex())


def _usable(read: Callable[[object], T], found: object) -> T:
    try:
        return read(found)
    except Unusable as e:
        raise Usage(f"{e}") from e


async def offer(host: Host, ctx: Context, q: OfferCopy) -> CopyNamed:
    copies, sender = host.engine.copies, ctx.conn.operator
    copies.refuse_second(q.id, q.epoch)
    await host.engine.door.commit(ctx.act)
    work = copies.received.offer
    await asyncio.to_thread(work, q.id, q.checkpoint, sender, q.sha256, q.length, q.epoch)
    ctx.act.outcome = {"session": q.id, "checkpoint": q.checkpoint}
    return CopyNamed(id=q.id, checkpoint=q.checkpoint)


async def missing(host: Host, ctx: Context, q: Lacking) -> LackingReply:
    work = host.engine.copies.received.missing
    found = await asyncio.to_thread(work, q.id, q.checkpoint, ctx.conn.operator, q.after)
    return LackingReply(objects=tuple(found["objects"]), bytes=found["bytes"], more=found["more"])


async def put(host: Host, ctx: Context, q: CopyNamed) -> Put:
    """The contents are verified and written in a thread, within a window."""
    received = host.engine.copies.received
    sink = await asyncio.to_thread(received.sink, q.id, q.checkpoint, ctx.conn.operator)
    arrived: asyncio.Queue[bytes] = asyncio.Queue()  # at most WINDOW_BYTES
    upstream, used = Upstream(ctx.conn, ctx.number, arrived.put_nowait, WINDOW_BYTES), 0
    ctx.conn.event("began", request=ctx.number)
    upstream.used(0)
    feeding: asyncio.Future[None] | None = None
    try:
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    data = await arrived.get()
            except TimeoutError:
                raise TimedOut("the sender sent no byte for too long", "send it again") from None
            if not data:
                return Put(taken=sink.taken)
            host.require(ctx.conn, "store", None)
            feeding = asyncio.ensure_future(asyncio.to_thread(sink.feed, data))
            await asyncio.shield(feeding)
            upstream.used(used := used + len(data))
    except OSError as e:
        raise Refused(f"the copy cannot be written: {e.strerror}", "free disk space there") from e
    finally:
        upstream.close()
        if feeding is not None:  # the sender may be gone while the thread still writes
            await asyncio.gather(feeding, return_exceptions=True)
        sink.close()


async def commit(host: Host, ctx: Context, q: CommitCopy) -> CopyKept:
    engine = host.engine
    engine.copies.refuse_second(q.id)
    await engine.door.commit(ctx.act)
    work = engine.copies.received.commit
    copy = await asyncio.to_thread(work, q.id, q.checkpoint, ctx.conn.operator)
    engine.copies.list_copy(copy)
    ctx.act.outcome = {"session": q.id, "checkpoint": q.checkpoint, "at_ms": int(copy.at * 1000)}
    return CopyKept(id=q.id, checkpoint=q.checkpoint, at=copy.at)


async def take(host: Host, ctx: Context, q: TakeCopy) -> TakenOver:
    """Goes on to the end if the caller leaves; the caller asks again."""
    engine, sender = host.engine, ctx.conn.operator
    await engine.door.commit(ctx.act)
    received = engine.copies.received
    before = await asyncio.to_thread(received.taken_of, q.id, sender)
    running = engine.sessions.get(q.id)
    row = engine.ended.get(q.id)
    if before is not None and running is not None:
        return TakenOver(epoch=running.record.epoch, at=float(before["at"]))
    if before is not None and row is not None and row.state != COPIED:  # it ran here
        return TakenOver(epoch=max(row.epoch, before["epoch"]), at=float(before["at"]))
    if (
        row is None
        or row.state not in (COPIED, MOVED)
        or received.sender(q.id, q.checkpoint) != sender
    ):
        raise NotFound("no such copy is kept here")
    copy = await asyncio.to_thread(engine.copies.copy_of, row, q.checkpoint)
    if not copy.final:
        raise Refused("the session had not ended with that copy")
    work = engine.tasks.spawn(engine.copies.take_over(copy, sender, lost=False))
    made = await asyncio.shield(work)
    epoch = made.session.record.epoch
    ctx.act.outcome = {"session": q.id, "checkpoint": q.checkpoint, "epoch": epoch}
    files = tuple(ArrivedFiles(**one) for one in made.files)
    return TakenOver(epoch=epoch, at=copy.at, files=files)


async def withdraw(host: Host, ctx: Context, q: TakeCopy) -> TakenOver:
    engine = host.engine
    await engine.door.commit(ctx.act)
    found = await engine.copies.give_back(q.id, ctx.conn.operator)
    if found is None:
        return TakenOver(epoch=0, at=None)
    running = engine.sessions.get(q.id)
    epoch = running.record.epoch if running is not None else int(found["epoch"])
    return TakenOver(epoch=epoch, at=float(found["at"]))


async def taken(host: Host, ctx: Context, q: SessionGone) -> TakenOver:
    received = host.engine.copies.received
    found = await asyncio.to_thread(received.taken_of, q.id, ctx.conn.operator)
    if found is None:
        return TakenOver(epoch=0, at=None)
    session = host.engine.sessions.get(q.id)
    epoch = session.record.epoch if session is not None else int(found["epoch"])
    return TakenOver(epoch=epoch, at=float(found["at"]))
