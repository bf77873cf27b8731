"""The present meaning of a reference (S8): live here, ended with a code, or not known any more.

A session that is not live may still come back, or go on at another machine: the state then says
`checkpointed`, `restoring`, `lost`, `moving`, `moved` or `copied`. For an act the reply also has
the processes that are left, from the kernel: a claim like "the server runs" can be checked.
"""

from __future__ import annotations

from holdfast.core.contract.message import ABSENT, Absent, SessionNamed
from holdfast.core.contract.sessions import ActTarget, Resolve, Resolved
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.summary import as_now, describe, describe_ended
from holdfast.host.storage.store import SessionRow
from holdfast.model import references
from holdfast.model.errors import NotFound


async def place(host: Host, ctx: Context, q: SessionNamed) -> ActTarget:
    return host.place_of(ctx.conn, q.session)


async def resolve(host: Host, ctx: Context, q: Resolve) -> Resolved:
    ref = references.parse_ref(q.ref)
    try:
        found = host.engine.find_any(ref.session)
    except NotFound:
        return Resolved(ref=q.ref, known=False, state="not known any more")
    host.require(ctx.conn, "observe", found.id)
    if isinstance(found, SessionRow):
        return await _ended(host, q.ref, ref, found)
    kept: bool | Absent = ABSENT
    if ref.output is not None:
        kept = found.ring.start <= ref.output[0] and ref.output[1] <= found.ring.head
    shown = describe(found)
    if ref.epoch is not None and ref.epoch != found.record.epoch:
        return Resolved(
            ref=q.ref,
            known=True,
            state="another incarnation",
            exit_code=await _recorded(host, ref, ref.epoch),
            session=shown,
            kept=kept,
        )
    if ref.act is None:
        return Resolved(ref=q.ref, known=True, state="live", session=shown, kept=kept)
    act = (
        "applied"
        if ref.act <= found.ring.written
        else "accepted"
        if ref.act <= found.ring.accepted
        else "unknown"
    )
    left = await host.engine.background_exits.left_by(found, ref.act)
    return Resolved(ref=q.ref, known=True, state="live", session=shown, act=act, kept=kept, **left)


async def _ended(host: Host, text: str, ref: references.Ref, found: SessionRow) -> Resolved:
    """Of a session that is not live the record remains; the exit code of an act is the act's own.

    A machine that the session left knows nothing of the incarnations after its own.
    """
    engine = host.engine
    went, present = engine.copies.elsewhere(found), engine.copies.present(found)
    state = present.state
    if went is not None and went["epoch"] is None:
        state = "moving"
    elif state == "ended" and engine.incarnations.awaited(found):
        state = "lost"
    if ref.epoch is not None and ref.epoch > found.epoch and went is None:
        return Resolved(ref=text, known=False, state="no such incarnation")
    code = found.exit_code
    if ref.act is not None:
        code = await _recorded(host, ref, found.epoch if ref.epoch is None else ref.epoch)
    return Resolved(
        ref=text,
        known=True,
        state=state,
        exit_code=code,
        session=as_now(describe_ended(found), present),
        kept=ABSENT if ref.output is None else False,
        elsewhere=went or ABSENT,
    )


async def _recorded(host: Host, ref: references.Ref, epoch: int) -> int | None:
    """The exit code of an act by the record."""
    if ref.act is None:
        return None
    return await host.engine.background_exits.recorded_exit(ref.session, epoch, ref.act)
