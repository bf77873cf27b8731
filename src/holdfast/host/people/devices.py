"""The devices of operators: which are here, when each was last seen and by which way; and what can be asked about them.

Who has which device is the authority's. Here is what is seen of them. It is kept for people, so it need not be exact: while a device is connected it is here now; when it was
here last is written at most once in SEEN_EVERY_S for each, and a host that dies forgets less than that. Nothing waits for it, and nothing is written while
nobody comes or goes.

Adding, renaming and revoking are acts on the machine: signed by who asks, recorded before they take effect. A revocation is the exception, as always: it bites first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.core import joincode
from holdfast.host import roster
from holdfast.host.authority import Authority
from holdfast.host.connection import Connection
from holdfast.host.roster import Key
from holdfast.host.store import Store
from holdfast.model import signing
from holdfast.model.errors import NotFound, Usage

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

SEEN_EVERY_S: Final = 60
LOCAL, RELAY = "local", "relay"


class Seen(NamedTuple):
    at: int
    way: str


class Devices:
    def __init__(self, database: Store, authority: Authority) -> None:
        """Before the store's thread starts."""
        self._store, self._authority = database, authority
        self._seen = {
            key: Seen(at, way)
            for key, at, way in database.rows(
                "SELECT key, seen, way FROM devices WHERE seen IS NOT NULL AND way IS NOT NULL"
            )
        }
        self._written = {key: seen.at for key, seen in self._seen.items()}
        self._here: dict[bytes, dict[Connection, float]] = {}  # connected, and since when

    def came(self, conn: Connection) -> None:
        self._here.setdefault(conn.key, {})[conn] = now = time.time()
        self._note(conn, now)

    def left(self, conn: Connection) -> None:
        mine = self._here.get(conn.key, {})
        if mine.pop(conn, None) is not None:
            self._note(conn, time.time())
        if not mine:
            self._here.pop(conn.key, None)

    def _note(self, conn: Connection, now: float) -> None:
        before, self._seen[conn.key] = self._seen.get(conn.key), Seen(int(now), _way(conn))
        if (
            before is None
            or before.way != _way(conn)
            or now - self._written.get(conn.key, 0) >= SEEN_EVERY_S
        ):
            self._written[conn.key] = int(now)
            self._store.post(roster.seen(conn.key, int(now), _way(conn)))

    def flush(self) -> None:
        """Before the host stops: what was seen and not written yet."""
        for key, seen in self._seen.items():
            if self._here.get(key):
                seen = seen._replace(at=int(time.time()))
            if seen.at != self._written.get(key):
                self._store.post(roster.seen(key, seen.at, seen.way))

    def describe(self, one: Key, me: bytes) -> dict[str, Any]:
        seen, here, name = (
            self._seen.get(one.key),
            self._here.get(one.key, {}),
            self._authority.name_of,
        )
        return {
            "name": one.name,
            "operator": one.operator,
            "key": signing.show(one.key),
            "fingerprint": joincode.group(joincode.fingerprint(one.key)),
            "added": one.added,
            "added_by": name(one.actor),
            "added_from": self._authority.device_of(one.actor),
            **self._authority.when("key", one.key),
            "seen": int(time.time()) if here else seen.at if seen else None,
            "way": seen.way if seen else None,
            "connected": [
                {"way": _way(conn), "modality": conn.modality, "since": since}
                for conn, since in here.items()
            ],
            "this": one.key == me,
        }


def _way(conn: Connection) -> str:
    return RELAY if conn.channel else LOCAL


# ------------------------------------------------------------ operations


def _of(ops: Ops, conn: Connection, q: dict[str, Any]) -> str:
    """Whose devices are meant: one's own, or with `manage` anybody's."""
    name: str = q["operator"] or conn.operator
    if name != conn.operator:
        ops.may(conn, "manage", None)
    ops.engine.authority.describe(name, time.time())  # is known
    return name


async def device_ls(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    name = _of(ops, conn, q)
    return {
        "operator": name,
        "devices": [
            ops.engine.devices.describe(one, conn.key) for one in ops.engine.authority.devices(name)
        ],
    }


async def device_add(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """One whose key was made elsewhere and is known here; whoever has none yet comes with a code (host/invitations.py)."""
    name, authority = _of(ops, conn, q), ops.engine.authority
    try:
        key = signing.read(q["key"])
    except ValueError as e:
        raise Usage(f"{q['key'][:60]!a} is not a key", "a key looks like ed25519:...") from e
    authority.fits(name, key, conn.key, time.time())
    if q["device"]:
        authority.unused(name, q["device"])
    await ops.engine.door.clear(
        q["act!"],
        number,
        "operator",
        details={"name": name, "device": q["device"], "key": q["key"]},
        wait_s=q["hold"] or 0.0,
    )
    await q["act!"].intend()
    added = await authority.add_key(name, key, conn.key, time.time(), q["device"])
    return {
        **ops.engine.devices.describe(added, conn.key),
        "outcome": {"name": name, "device": added.name},
    }


async def device_rename(
    ops: Ops, conn: Connection, number: int, q: dict[str, Any]
) -> dict[str, Any]:
    name, authority = _of(ops, conn, q), ops.engine.authority
    was = authority.renamable(name, q["device"], q["to"]).name
    await ops.engine.door.clear(
        q["act!"],
        number,
        "operator",
        details={"name": name, "device": was, "to": q["to"]},
        wait_s=q["hold"] or 0.0,
    )
    await q["act!"].intend()
    renamed = await authority.rename_device(name, q["device"], q["to"], conn.key, time.time())
    return {
        **ops.engine.devices.describe(renamed, conn.key),
        "was": was,
        "outcome": {"name": name, "device": renamed.name, "was": was},
    }


async def device_revoke(
    ops: Ops, conn: Connection, number: int, q: dict[str, Any]
) -> dict[str, Any]:
    authority, name = ops.engine.authority, q["operator"] or conn.operator
    try:
        one = authority.device(name, q["device"])
    except NotFound:
        if name != conn.operator:
            ops.may(conn, "manage", None)  # who may not look is not told what there is
        raise
    conn.revoking = True
    added = authority.added_by(one.key)
    await authority.revoke_key(
        one.key, conn.key, time.time(), q["force"], q["grants"]
    )  # neither a policy nor a disk keeps a stolen key alive
    q["act!"].happened(name=name, device=one.name, key=signing.show(one.key))
    return {
        **ops.engine.devices.describe(one, conn.key),
        "left": len(authority.devices(name, all=False)),
        "had_added": [
            {"name": authority.device_of(key), "revoked": authority.dead(key)} for key in added
        ],
    }


OPS: dict[
    str, tuple[Any, dict[str, Any]]
] = {  # as in ops.py: the handler, and its fields with type and default
    "device.ls": (device_ls, {"operator": (str, None)}),
    "device.add": (device_add, {"operator": (str, None), "device": (str, ""), "key": (str,)}),
    "device.rename": (device_rename, {"operator": (str, None), "device": (str,), "to": (str,)}),
    "device.revoke": (
        device_revoke,
        {
            "operator": (str, None),
            "device": (str,),
            "force": (bool, False),
            "grants": (bool, False),
        },
    ),
}
