"""`restore` of a session that comes back without its memory (R1).

That is so if the session has no checkpoint, and if a restore from a checkpoint has failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.contract.checkpoints import Restored
from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Impossible

if TYPE_CHECKING:
    from holdfast.host.requests.host import Context, Host

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
    engine = host.engine
    before = replace(row)
    with engine.incarnations.checkpoints.using(row.id, row.name):
        try:
            await engine.incarnations.buried_by_now(row.id)
            session = await engine.near_end.re_establish(row, reason, notes, ctx.conn.operator)
        except HoldfastError:
            if row.id not in engine.sessions:
                vars(row).update(vars(before))
                engine.store.post(store.save(row))
            raise
    lost, epoch = session.label["lost"], session.record.epoch
    ctx.act.outcome = {"checkpoint": checkpoint, "epoch": epoch, "re_established": reason}
    return Restored(
        id=session.id,
        name=session.name,
        checkpoint=checkpoint,
        epoch=epoch,
        at=lost["seen"] or before.ended or before.created,
        pid=session.record.root_pid,
        replaced=(),
        losses=("memory and programs",),
        re_established=lost,
    )
