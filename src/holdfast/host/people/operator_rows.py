"""The rows behind the authority: operators, their keys, the envelopes they hold, and what was revoked.

Nothing is decided here. Every change is one function for the store's writer, so one transaction; every one can be written again without harm, because the
authority's picture in memory is what counts while the host lives. Revocations have no envelope or operator they depend on: a key or a link that was
never seen here can be revoked, and the row is a row of bytes that cannot fail to be read.
An envelope that no longer verifies (another machine key, a damaged row) is left out and counted: it allows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

from holdfast.core import devices, envelope
from holdfast.core.envelope import Verified
from holdfast.host.store import Store

Job = Callable[[apsw.Connection], None]
Subject = tuple[str, bytes]
"""What can be revoked: ("operator", name), ("key", key) or ("link", id)."""


class Key(NamedTuple):
    key: bytes
    operator: str
    added: int
    actor: bytes  # the key of who added it
    name: str = ""  # of the device, among those of its operator


class Operator(NamedTuple):
    name: str
    kind: str
    added: int
    actor: bytes


class Held(NamedTuple):
    """An envelope that somebody holds here."""

    chain: Verified
    text: str
    given: int
    actor: bytes

    @property
    def id(self) -> bytes:
        return self.chain.last.id

    @property
    def holder(self) -> bytes:
        return self.chain.last.holder


class Revocation(NamedTuple):
    at: int
    actor: bytes


@dataclass
class Roster:
    operators: dict[str, Operator] = field(default_factory=dict)
    keys: dict[bytes, Key] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    revoked: dict[Subject, Revocation] = field(default_factory=dict)
    unreadable: int = 0
    lost: bool = False  # there was another roster before this one, and it is gone


def load(store: Store, machine: bytes) -> Roster:
    """What the store has. Before its thread starts."""
    found = Roster(lost=bool(store.rows("SELECT 1 FROM meta WHERE key = 'follows_a_lost_one'")))
    for name, kind, added, actor in store.rows(
        "SELECT name, kind, added, actor FROM operators ORDER BY rowid"
    ):
        found.operators[name] = Operator(name, kind, added, actor)
    for key, operator, added, actor in store.rows(
        "SELECT key, operator, added, actor FROM operator_keys ORDER BY rowid"
    ):
        found.keys[key] = Key(key, operator, added, actor)
    mine: dict[str, list[bytes]] = {}
    for one in found.keys.values():
        mine.setdefault(one.operator, []).append(one.key)
    names = dict(store.rows("SELECT key, name FROM devices"))
    for keys in mine.values():
        for key, name in devices.named(keys, names).items():
            found.keys[key] = found.keys[key]._replace(name=name)
            if not names.get(key):
                store.post(
                    save(key=found.keys[key])
                )  # for good: the next one must not be called so after a restart
    for kind, subject, at, actor in store.rows("SELECT kind, subject, at, actor FROM revocations"):
        found.revoked[kind, subject] = Revocation(at, actor)
    seen: set[envelope.Link] = set()
    for text, given, actor in store.rows(
        "SELECT chain, given, actor FROM envelopes ORDER BY rowid"
    ):
        try:
            chain = envelope.verify(envelope.decode(text), [machine], seen)
        except envelope.Malformed:
            found.unreadable += 1
            continue
        found.held.append(Held(chain, text, given, actor))
    return found


def save(
    operator: Operator | None = None,
    key: Key | None = None,
    held: Held | None = None,
    drop: Iterable[Held] = (),
) -> Job:
    """All of these, or none."""
    gone = [(one.id,) for one in drop]

    def job(db: apsw.Connection) -> None:
        if operator is not None:
            db.execute(
                "INSERT INTO operators VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET kind=excluded.kind, added=excluded.added, actor=excluded.actor",
                operator,
            )
        if key is not None:
            db.execute(
                "INSERT INTO operator_keys VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET operator=excluded.operator, added=excluded.added, "
                "actor=excluded.actor",
                key[:4],
            )
            db.execute(
                "INSERT INTO devices (key, name) VALUES (?,?) ON CONFLICT DO UPDATE SET name=excluded.name",
                (key.key, key.name),
            )
        for row in gone:
            db.execute("DELETE FROM envelopes WHERE link = ?", row)
        if held is not None:
            db.execute(
                "INSERT OR REPLACE INTO envelopes VALUES (?,?,?,?)",
                (held.id, held.text, held.given, held.actor),
            )

    return job


def seen(key: bytes, at: int, way: str) -> Job:
    """When a device was last here, and by which way."""

    def job(db: apsw.Connection) -> None:
        db.execute(
            "INSERT INTO devices (key, seen, way) VALUES (?,?,?) ON CONFLICT DO UPDATE SET seen=excluded.seen, way=excluded.way",
            (key, at, way),
        )

    return job


def revoke(subjects: Iterable[Subject], revocation: Revocation) -> Job:
    rows = [(kind, subject, revocation.at, revocation.actor) for kind, subject in subjects]

    def job(db: apsw.Connection) -> None:
        for row in rows:
            db.execute("INSERT OR IGNORE INTO revocations VALUES (?,?,?,?)", row)

    return job
