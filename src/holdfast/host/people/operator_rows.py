"""The rows behind the authority: operators, keys, envelopes and revocations.

This module decides nothing. Every change is a function for the store's writer, so one transaction.
Every change can be written again without harm, because the authority's picture in memory counts
while the host lives. Revocations depend on no envelope or operator: a key or link that was never
seen here can be revoked, and the row is plain bytes that cannot fail to be read. An envelope that
no longer verifies (another machine key, a damaged row) is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw

from holdfast.core.people import devices, envelope
from holdfast.core.people.envelope import Verified
from holdfast.host.storage.store import Job, Store, statement

Subject = tuple[str, bytes]
"""What can be revoked: ("operator", name), ("key", key) or ("link", id)."""


class Key(NamedTuple):
    key: bytes
    operator: str
    added: int
    actor: bytes  # the key that added this key
    name: str = ""  # of the device, unique for the operator


class Operator(NamedTuple):
    name: str
    kind: str
    added: int
    actor: bytes


class Held(NamedTuple):
    """An envelope and the key that holds the envelope."""

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
    # By key: the recoveries that its operator was not told of, as name and time.
    unseen: dict[bytes, dict[str, int]] = field(default_factory=dict)
    unreadable: int = 0
    lost: bool = False  # an earlier roster is gone


def load(store: Store, machine: bytes) -> Roster:
    """Reads the store, before the thread of the store starts."""
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
                store.post(save(key=found.keys[key]))  # for good: a restart must not reuse the name
    for kind, subject, at, actor in store.rows("SELECT kind, subject, at, actor FROM revocations"):
        found.revoked[kind, subject] = Revocation(at, actor)
    for row, at in store.rows("SELECT key, value FROM meta WHERE key GLOB 'untold/*'"):
        _, key, name = row.split("/")
        found.unseen.setdefault(bytes.fromhex(key), {})[name] = at
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
    held: Sequence[Held] = (),
    drop: Iterable[Held] = (),
) -> Job:
    """All of these, or none."""
    gone = [(one.id,) for one in drop]
    given = [(one.id, one.text, one.given, one.actor) for one in held]

    def job(db: apsw.Connection) -> None:
        if operator is not None:
            db.execute(
                "INSERT INTO operators VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET "
                "kind=excluded.kind, added=excluded.added, actor=excluded.actor",
                operator,
            )
        if key is not None:
            db.execute(
                "INSERT INTO operator_keys VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET "
                "operator=excluded.operator, added=excluded.added, "
                "actor=excluded.actor",
                key[:4],
            )
            db.execute(
                "INSERT INTO devices (key, name) VALUES (?,?) "
                "ON CONFLICT DO UPDATE SET name=excluded.name",
                (key.key, key.name),
            )
        db.executemany("DELETE FROM envelopes WHERE link = ?", gone)
        db.executemany("INSERT OR REPLACE INTO envelopes VALUES (?,?,?,?)", given)

    return job


def untold(keys: Iterable[bytes], name: str, at: int) -> Job:
    """These keys have to be told that this operator was recovered."""
    rows = [(_untold(key, name), at) for key in keys]
    return statement("INSERT OR REPLACE INTO meta VALUES (?,?)", *rows)


def told(key: bytes, names: Iterable[str]) -> Job:
    rows = [(_untold(key, name),) for name in names]
    return statement("DELETE FROM meta WHERE key = ?", *rows)


def _untold(key: bytes, name: str) -> str:
    return f"untold/{key.hex()}/{name}"


def seen(key: bytes, at: int, way: str) -> Job:
    """When a device was last here, and by which way."""
    return statement(
        "INSERT INTO devices (key, seen, way) VALUES (?,?,?) "
        "ON CONFLICT DO UPDATE SET seen=excluded.seen, way=excluded.way",
        (key, at, way),
    )


def revoke(subjects: Iterable[Subject], revocation: Revocation) -> Job:
    rows = [(kind, subject, revocation.at, revocation.actor) for kind, subject in subjects]
    return statement("INSERT OR IGNORE INTO revocations VALUES (?,?,?,?)", *rows)
