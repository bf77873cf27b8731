"""The present meaning of a reference (S8): live here, ended with a code, or not known any more.

For an act the reply also has the processes that are left, from the kernel: a claim like "the server
runs" can be checked.
"""

from __future__ import annotations

from holdfast.core.contract.message import ABSENT, Absent, SessionNamed
from holdfast.core.contract.sessions import ActTarget, Resolve, Resolved
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.summary import describe, describe_ended
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
            ref=q.ref, known=True, state="another incarnation", session=shown, kept=kept
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
    """Of an ended session the record remains; the exit code of an act is the act's own."""
    shown, code = describe_ended(found), found.exit_code
    if ref.act is not None:
        epoch = found.epoch if ref.epoch is None else ref.epoch
        code = await host.engine.background_exits.recorded_exit(found.id, epoch, ref.act)
    kept = ABSENT if ref.output is None else False
    return Resolved(ref=text, known=True, state="ended", exit_code=code, session=shown, kept=kept)
