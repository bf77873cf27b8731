"""What a reference means today (S8): still live here, ended with a code, or not known any more. Of an act also what is left of it: a claim like "the server runs" is checked against the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.host.connection import Connection
from holdfast.host.describing import describe, describe_ended
from holdfast.host.store import Record
from holdfast.model import ids
from holdfast.model.errors import NotFound

if TYPE_CHECKING:
    from holdfast.host.ops import Ops


async def resolve(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    ref = ids.parse_ref(q["ref"])
    try:
        found = ops.engine.find_any(ref.session)
    except NotFound:
        return {"ref": q["ref"], "known": False, "state": "not known any more"}
    ops.may(conn, "observe", found.id)
    if isinstance(found, Record):
        return {
            "ref": q["ref"],
            "known": True,
            "state": "ended",
            "exit_code": found.exit_code,
            "session": describe_ended(found),
        }
    out: dict[str, Any] = {
        "ref": q["ref"],
        "known": True,
        "state": "live",
        "session": describe(found),
    }
    if ref.epoch is not None and ref.epoch != found.record.epoch:
        out["state"] = "another incarnation"
    elif ref.act is not None:
        out["act"] = (
            "applied"
            if ref.act <= found.ring.written
            else "accepted"
            if ref.act <= found.ring.accepted
            else "unknown"
        )
        out |= await ops.engine.aftermath.left_by(found, ref.act)
    if ref.output is not None:
        out["kept"] = found.ring.start <= ref.output[0] and ref.output[1] <= found.ring.head
    return out
