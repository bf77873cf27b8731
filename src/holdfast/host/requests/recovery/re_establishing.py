"""`restore` of a session that comes back without its memory (R1).

That is so if the session has no checkpoint, and if a restore from a checkpoint has failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.contract.checkpoints import Restored
from holdfast.host.leases.fence import Awaited
from holdfast.host.runtime.tasks import to_the_end
from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Impossible, Unavailable

if TYPE_CHECKING:
    from holdfast.host.requests.host import Context, Host
    from holdfast.host.session.session import Session

ON_REQUEST = "Its keeper was lost"


async def re_establish(host: Host, ctx: Context, row: SessionRow) -> Restored:
    """Starts the next incarnation of a lost session that has no checkpoint."""
    restarted = row.boot != host.engine.boot
    return await _begun(host, ctx, row, "The machine was restarted" if restarted else ON_REQUEST)


async def after_failure(
    host: Host, ctx: Context, row: SessionRow, checkpoint: str, error: HoldfastError
) -> Restored:
    """The same after a failed restore; the reply, the event and the terminal have the reason."""
    note = (
        f"{checkpoint} is kept. To try it again: `holdfast end {row.name}`, then "
        f"`holdfast restore {row.name} --no-fallback`."
    )
    try:
        return await _begun(host, ctx, row, error.message, checkpoint, (note,))
    except HoldfastError as e:
        raise Impossible(
            f"{error.message}; without its memory it could not come back either: {e.message}",
            error.recover,
        ) from e


async def _begun(
    host: Host,
    ctx: Context,
    row: SessionRow,
    reason: str,
    checkpoint: str = "",
    notes: tuple[str, ...] = (),
) -> Restored:
    ended = row.ended or row.created
    ctx.progress().goes_on("starts it anew")
    whole = _next(host, row, reason, notes, ctx.conn.operator)
    session = await to_the_end(whole, may_stop=lambda: False)
    lost, epoch = session.label["lost"], session.record.epoch
    ctx.act.outcome = {"checkpoint": checkpoint, "epoch": epoch, "re_established": reason}
    return Restored(
        id=session.id,
        name=session.name,
        checkpoint=checkpoint,
        epoch=epoch,
        at=lost["seen"] or ended,
        pid=session.record.root_pid,
        replaced=(),
        losses=("memory and programs",),
        re_established=lost,
    )


async def _next(
    host: Host, row: SessionRow, reason: str, notes: tuple[str, ...], operator: str
) -> Session:
    engine, before = host.engine, replace(row)
    with engine.incarnations.checkpoints.using(row.id, row.name):
        engine.incarnations.still_ended(row)
        try:
            await engine.incarnations.buried_by_now(row.id)
            return await engine.near_end.re_establish(row, reason, notes, operator)
        except BaseException as e:
            if row.id not in engine.sessions:
                vars(row).update(vars(before))
                engine.store.post(store.save(row))
            if isinstance(e, Awaited):
                recover = f"try again then; `holdfast lease show {row.name}` tells the state"
                raise Unavailable(e.message, recover) from e
            raise
