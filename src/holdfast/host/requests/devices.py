"""Operations on devices: acts on the machine, signed by the caller and recorded first.

Only a revocation takes effect before the record.
"""

from __future__ import annotations

import time

from holdfast.core.contract.devices import (
    AddDevice,
    AddedByDevice,
    Device,
    DeviceOwner,
    DeviceRenamed,
    DeviceRevoked,
    Devices,
    RenameDevice,
    RevokeDevice,
)
from holdfast.core.contract.message import extended
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.acts.door import CHECKED_WHEN_APPLIED
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.operators import read_key
from holdfast.model import signing
from holdfast.model.errors import NotFound


def _owner(host: Host, ctx: Context, operator: str | None) -> str:
    """The owner of the devices: the caller. Any other operator needs the right `manage`."""
    name = operator or ctx.conn.operator
    if name != ctx.conn.operator:
        host.require(ctx.conn, "manage", None)
    host.engine.authority.describe(name, time.time())  # NotFound for an unknown name
    return name


async def device_ls(host: Host, ctx: Context, q: DeviceOwner) -> Devices:
    name, engine = _owner(host, ctx, q.operator), host.engine
    found = (engine.devices.describe(one, ctx.conn.key) for one in engine.authority.devices(name))
    return Devices(operator=name, devices=tuple(found))


async def device_add(host: Host, ctx: Context, q: AddDevice) -> Device:
    """Adds a key that was made elsewhere; a device without a key joins with a code."""
    name, authority, by = _owner(host, ctx, q.operator), host.engine.authority, ctx.conn.key
    key = read_key(q.key)
    authority.fits(name, key, by, time.time())
    if q.device:
        authority.unused(name, q.device)
    details = {"name": name, "device": q.device, "key": q.key}
    proposed = ProposedAct("operator", details=details, wait_s=q.hold or 0.0)
    await host.engine.door.enter(ctx.act, proposed, CHECKED_WHEN_APPLIED)
    added = await authority.add_key(name, key, by, time.time(), q.device)
    ctx.act.outcome = {"name": name, "device": added.name}
    return host.engine.devices.describe(added, by)


async def device_rename(host: Host, ctx: Context, q: RenameDevice) -> DeviceRenamed:
    name, authority, by = _owner(host, ctx, q.operator), host.engine.authority, ctx.conn.key
    was = authority.renamable(name, q.device, q.to).name
    details = {"name": name, "device": was, "to": q.to}
    proposed = ProposedAct("operator", details=details, wait_s=q.hold or 0.0)
    await host.engine.door.enter(ctx.act, proposed, CHECKED_WHEN_APPLIED)
    renamed = await authority.rename_device(name, q.device, q.to, by, time.time())
    ctx.act.outcome = {"name": name, "device": renamed.name, "was": was}
    return extended(DeviceRenamed, host.engine.devices.describe(renamed, by), was=was)


async def device_revoke(host: Host, ctx: Context, q: RevokeDevice) -> DeviceRevoked:
    """Takes effect first: neither a policy nor a full disk keeps a stolen key alive."""
    authority, conn = host.engine.authority, ctx.conn
    name = q.operator or conn.operator
    try:
        one = authority.device(name, q.device)
    except NotFound:
        if name != conn.operator:
            host.require(conn, "manage", None)  # existing devices are told only with the right
        raise
    conn.revoking = True
    added = authority.added_by(one.key)
    await authority.revoke_key(one.key, conn.key, time.time(), q.force, q.grants)
    ctx.act.happened(name=name, device=one.name, key=signing.show(one.key))
    return extended(
        DeviceRevoked,
        host.engine.devices.describe(one, conn.key),
        left=len(authority.devices(name, all=False)),
        had_added=tuple(
            AddedByDevice(name=authority.device_of(key), revoked=authority.dead(key))
            for key in added
        ),
    )
