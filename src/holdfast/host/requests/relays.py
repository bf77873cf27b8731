"""Operations on relays: how this machine is reached from elsewhere (host/relays)."""

from __future__ import annotations

from holdfast.core.contract.message import MachineAct, Nothing
from holdfast.core.contract.relays import Relays, Ways
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.requests.host import Context, Host


async def ways(host: Host, ctx: Context, q: Nothing) -> Ways:
    return host.engine.uplinks.ways(ctx.conn.key)


async def lines(host: Host, ctx: Context, q: Nothing) -> Relays:
    return Relays(relays=host.engine.uplinks.facts(), trouble=host.engine.uplinks.trouble)


async def relays_changed(host: Host, ctx: Context, q: MachineAct) -> Relays:
    """Reads the list of relays again: an act, because a relay is a way in."""
    await host.engine.door.enter(ctx.act, ProposedAct("relays", wait_s=q.hold or 0.0))
    await host.engine.uplinks.reload()
    found = host.engine.uplinks.facts()
    ctx.act.outcome = {"relays": [one.url for one in found]}
    return Relays(relays=found, trouble=host.engine.uplinks.trouble)
