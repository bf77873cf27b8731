"""When each device of an operator was last seen, and how the device is connected now.

The authority knows which devices an operator has. The times here are shown to people and need not
be exact: each is written at most once in SEEN_EVERY_S, and a host that dies loses less than that.
No caller waits for the write, and there are no writes while no client comes or goes.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from holdfast.core.contract.devices import Device, DeviceConnection
from holdfast.core.people import join_code
from holdfast.host.people import operator_rows
from holdfast.host.people.authority import Authority
from holdfast.host.people.operator_rows import Key
from holdfast.host.runtime.connection import Connection
from holdfast.host.storage.store import Store
from holdfast.model import signing

SEEN_EVERY_S: Final = 60
LOCAL, RELAY = "local", "relay"


class Seen(NamedTuple):
    at: int
    way: str


class Devices:
    def __init__(self, database: Store, authority: Authority) -> None:
        """Reads the store: to be made before the thread of the store starts."""
        self._store, self._authority = database, authority
        self._seen = {
            key: Seen(at, way)
            for key, at, way in database.rows(
                "SELECT key, seen, way FROM devices WHERE seen IS NOT NULL AND way IS NOT NULL"
            )
        }
        self._written = {key: seen.at for key, seen in self._seen.items()}
        self._here: dict[bytes, dict[Connection, float]] = {}  # connections, with the time of each

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
            self._store.post(operator_rows.seen(conn.key, int(now), _way(conn)))

    def flush(self) -> None:
        """Writes times that were not written yet, before the host stops."""
        for key, seen in self._seen.items():
            if self._here.get(key):
                seen = seen._replace(at=int(time.time()))
            if seen.at != self._written.get(key):
                self._store.post(operator_rows.seen(key, seen.at, seen.way))

    def describe(self, one: Key, me: bytes) -> Device:
        """A device as `device ls` shows the device to the holder of the key `me`."""
        seen, here = self._seen.get(one.key), self._here.get(one.key, {})
        return Device(
            name=one.name,
            operator=one.operator,
            key=signing.show(one.key),
            fingerprint=join_code.group(join_code.fingerprint(one.key)),
            added=one.added,
            added_by=self._authority.name_of(one.actor),
            added_from=self._authority.device_of(one.actor),
            **self._authority.revocation("key", one.key),
            seen=int(time.time()) if here else seen.at if seen else None,
            way=seen.way if seen else None,
            connected=tuple(
                DeviceConnection(way=_way(conn), modality=conn.modality, since=since)
                for conn, since in here.items()
            ),
            this=one.key == me,
        )


def _way(conn: Connection) -> str:
    return RELAY if conn.channel else LOCAL
