"""The record's tables in the store: jobs for the writer thread, without any decisions.

Each function is a job or part of a job. A job runs inside the writer's transaction, and may run
again after a rollback. So the end of a chain is always read from the table, never remembered: a
group that could not be committed leaves no trace.

Contents have a separate table, because entries are never updated (a trigger refuses that) but
contents can be deleted. The entries' table has row ids although no query needs row ids: without row
ids a row above 1 KB takes a whole page (measured: 4.7 KB per signed command, with row ids 1.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from holdfast.core.record import record
from holdfast.core.record.record import Draft, Signed, Written
from holdfast.model import canonical

PAGE_BYTES = 1 << 20  # of entries and contents read at once; a page is never empty
CATCH_UP_ENTRIES = 4096  # read after a start to find the last recorded act of each client
REDACT_AT_ONCE = 1000  # entries in a `redact`
BROUGHT = 0  # instead of the entry of a key that another machine brought

# tests/vectors/handover.json has this text byte for byte, so the long lines stay.
CREATE = """
CREATE TABLE IF NOT EXISTS record (
    session TEXT NOT NULL, seq INTEGER NOT NULL, time INTEGER NOT NULL, hash TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (session, seq)) STRICT;
CREATE TABLE IF NOT EXISTS record_content (
    session TEXT NOT NULL, seq INTEGER NOT NULL, content BLOB NOT NULL, salt BLOB NOT NULL, PRIMARY KEY (session, seq)) STRICT;
CREATE TABLE IF NOT EXISTS record_open (
    session TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (session, seq)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record_heads (
    session TEXT PRIMARY KEY, seq INTEGER NOT NULL, body BLOB NOT NULL, signature BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS record_is_never_changed BEFORE UPDATE ON record BEGIN SELECT RAISE(ABORT, 'the record is append-only'); END;
CREATE TABLE IF NOT EXISTS record_once (
    session TEXT NOT NULL, actor TEXT NOT NULL, once TEXT NOT NULL, seq INTEGER NOT NULL, same BLOB NOT NULL, outcome TEXT, reply BLOB,
    PRIMARY KEY (session, actor, once)) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS record_once_of ON record_once (session, seq);
"""  # noqa: E501


Fields = dict[str, Any]  # of an entry, as in core/record/record.py


# Of an intent. The key of an act that was recorded after its effect has an outcome from the start,
# and the number of what was the newest entry then: another act's intent, perhaps.
_ITS_KEY = "session = ? AND seq = ? AND outcome IS NULL"


class Tip(NamedTuple):
    seq: int
    hash: str


class Bounds(NamedTuple):
    first: int  # 1 if there are no entries
    tip: Tip


def _rows(db: apsw.Connection, sql: str, *values: str | int) -> list[tuple[Any, ...]]:
    return db.execute(sql, values).fetchall()


def tip(db: apsw.Connection, session: str) -> Tip:
    rows = _rows(
        db, "SELECT seq, hash FROM record WHERE session = ? ORDER BY seq DESC LIMIT 1", session
    )
    return Tip(*rows[0]) if rows else Tip(0, record.GENESIS)


def bounds(db: apsw.Connection, session: str) -> Bounds:
    rows = _rows(db, "SELECT seq FROM record WHERE session = ? ORDER BY seq LIMIT 1", session)
    return Bounds(rows[0][0] if rows else 1, tip(db, session))


def append(db: apsw.Connection, draft: Draft, end: Tip, time: int, late: bool = False) -> Written:
    """Writes an entry behind `end`. ValueError, before any write, if the draft is invalid."""
    written = record.chain(draft, end.seq + 1, end.hash, time, late)
    db.execute(
        "INSERT INTO record VALUES (?,?,?,?,?)",
        (written.session, written.seq, time, written.hash, written.body),
    )
    if written.content is not None and written.salt is not None:
        db.execute(
            "INSERT INTO record_content VALUES (?,?,?,?)",
            (written.session, written.seq, written.content, written.salt),
        )
    if draft.phase == record.INTENT:
        db.execute("INSERT INTO record_open VALUES (?,?)", (written.session, written.seq))
        if draft.keyed is not None:
            put_once(db, written.session, draft.actor, *draft.keyed, written.seq, None, None)
    elif draft.phase == record.OUTCOME:
        which = (written.session, draft.intent)
        db.execute("DELETE FROM record_open WHERE session = ? AND seq = ?", which)
        if draft.outcome in record.NO_EFFECT:
            db.execute(f"DELETE FROM record_once WHERE {_ITS_KEY}", which)
        else:
            db.execute(
                f"UPDATE record_once SET outcome = ?, reply = ? WHERE {_ITS_KEY}",
                (draft.outcome, draft.reply, *which),
            )
    return written


class KeyedAct(NamedTuple):
    """The act to which an idempotency key belongs."""

    seq: int
    same: bytes
    outcome: str | None  # None: not over, or the host died and could not say
    reply: bytes | None
    hash: str | None
    client: str | None
    number: int | None
    actor: str


def put_once(
    db: apsw.Connection,
    session: str,
    actor: str,
    once: str,
    same: bytes,
    seq: int,
    outcome: str | None,
    reply: bytes | None,
) -> None:
    row = (session, actor, once, seq, same, outcome, reply)
    db.execute("INSERT OR REPLACE INTO record_once VALUES (?,?,?,?,?,?,?)", row)


Key = tuple[str, str, bytes, str | None, bytes | None]  # actor, key, same, outcome, reply


def once_keys(db: apsw.Connection, session: str) -> list[Key]:
    asked = "SELECT actor, once, same, outcome, reply FROM record_once WHERE session = ?"
    return [(row[0], row[1], row[2], row[3], row[4]) for row in _rows(db, asked, session)]


def inherit_once(db: apsw.Connection, keys: Sequence[Key], branch: str) -> None:
    """Copy the keys. They belong to the first entry of the branch, which names the parent."""
    for actor, once, same, outcome, reply in keys:
        put_once(db, branch, actor, once, same, 1, outcome, reply)


def forget_once(db: apsw.Connection, session: str) -> None:
    db.execute("DELETE FROM record_once WHERE session = ?", (session,))


_ONCE = (
    "SELECT o.actor, o.once, o.seq, o.same, o.outcome, o.reply, r.hash, r.body FROM record_once o "
    "LEFT JOIN record r USING (session, seq) WHERE o.session = ? "
)


def _keyed(row: tuple[Any, ...]) -> tuple[str, KeyedAct]:
    """Key and act."""
    actor, key, seq, same, outcome, reply, hash, body = row
    entry: Fields = canonical.decode(body) if body is not None else {}
    client, number = entry.get("client"), entry.get("number")
    return key, KeyedAct(max(seq, BROUGHT), same, outcome, reply, hash, client, number, actor)


def once(db: apsw.Connection, session: str, once: str) -> dict[str, KeyedAct]:
    """The acts with that key, by actor."""
    found = (_keyed(row) for row in _rows(db, _ONCE + "AND o.once = ?", session, once))
    return {act.actor: act for _, act in found}


def complete_once(
    db: apsw.Connection, session: str, actor: str, once: str, outcome: str, reply: bytes | None
) -> None:
    sql = (
        "UPDATE record_once SET outcome = ?, reply = ? WHERE session = ? AND actor = ? AND once = ?"
    )
    db.execute(sql, (outcome, reply, session, actor, once))


def newest_once(db: apsw.Connection, session: str, limit: int) -> list[tuple[str, KeyedAct]]:
    rows = _rows(db, _ONCE + "ORDER BY o.seq DESC LIMIT ?", session, limit)
    return [_keyed(row) for row in rows]


def arrived_once(db: apsw.Connection, session: str, keys: Sequence[Key]) -> None:
    """Store keys that were brought; those of an earlier arrival are replaced.

    The number is negative, as no entry's: that of the next entry. They expire with that entry.
    """
    db.execute("DELETE FROM record_once WHERE session = ? AND seq <= ?", (session, BROUGHT))
    seq = -(tip(db, session).seq + 1)
    for actor, key, same, outcome, reply in keys:
        db.execute(
            "INSERT INTO record_once VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
            "reply = iif(outcome IS NULL, excluded.reply, reply), "
            "outcome = ifnull(outcome, excluded.outcome)",
            (session, actor, key, seq, same, outcome, reply),
        )


def put_head(db: apsw.Connection, session: str, seq: int, head: Signed) -> None:
    db.execute(
        "INSERT OR REPLACE INTO record_heads VALUES (?,?,?,?)",
        (session, seq, head.body, head.signature),
    )


def heads(db: apsw.Connection) -> dict[str, Signed]:
    return {
        str(s): Signed(b, g)
        for s, b, g in _rows(db, "SELECT session, body, signature FROM record_heads")
    }


def sessions(db: apsw.Connection) -> list[str]:
    """Every session that has a record; each query jumps to the next session in the index."""
    found: list[str] = []
    while rows := _rows(
        db,
        "SELECT session FROM record WHERE session > ? ORDER BY session LIMIT 1",
        found[-1] if found else "",
    ):
        found.append(str(rows[0][0]))
    return found


def hash_at(db: apsw.Connection, session: str, seq: int) -> str | None:
    rows = _rows(db, "SELECT hash FROM record WHERE session = ? AND seq = ?", session, seq)
    return str(rows[0][0]) if rows else None


def newest_hashes(db: apsw.Connection, session: str, limit: int) -> list[str]:
    """Oldest first."""
    sql = "SELECT hash FROM record WHERE session = ? ORDER BY seq DESC LIMIT ?"
    return [str(hash) for (hash,) in _rows(db, sql, session, limit)][::-1]


def acts(db: apsw.Connection, session: str) -> int:
    """How many acts there are: intents and keys, apart from the act that discards the session."""
    sql = "SELECT body FROM record WHERE session = ?"
    found = [canonical.decode(body) for (body,) in _rows(db, sql, session)]
    return len([one for one in found if _is_act(one)])


def _is_act(entry: Fields) -> bool:
    kind, intent = entry["kind"], entry["phase"] == record.INTENT
    return bool(kind == record.KEYS or (intent and kind != "discard"))


def open_intents(db: apsw.Connection) -> list[Fields]:
    rows = _rows(
        db,
        "SELECT r.body FROM record_open o JOIN record r USING (session, seq) "
        "ORDER BY o.session, o.seq",
    )
    return [canonical.decode(body) for (body,) in rows]


def unfinished_at(db: apsw.Connection, session: str, after: int, time: int) -> list[Fields]:
    """The intents without outcome at that time, which is later than entry `after`.

    `act`: the number of the act, if an outcome has told it since.
    """
    rows = _rows(db, "SELECT body FROM record WHERE session = ? AND seq > ?", session, after)
    since = [canonical.decode(body) for (body,) in rows]
    numbers = _acts_of(since)
    ended = {one["intent"]: one["time"] for one in since if one["phase"] == record.OUTCOME}
    seqs = [seq for seq, at in ended.items() if at >= time]
    seqs += [seq for (seq,) in _rows(db, "SELECT seq FROM record_open WHERE session = ?", session)]
    sql = "SELECT body FROM record WHERE session = ? AND seq = ?"
    rows = [row for seq in sorted(seqs) for row in _rows(db, sql, session, seq)]  # or it is pruned
    found = [canonical.decode(body) for (body,) in rows]
    return [_with_act(one, numbers) for one in found if one["time"] < time]


def not_over_at(db: apsw.Connection, session: str, after: int, time: int) -> set[int]:
    """The intents that began or ended since that time, which is later than entry `after`."""
    rows = _rows(db, "SELECT body FROM record WHERE session = ? AND seq > ?", session, after)
    since = [one for (body,) in rows if (one := canonical.decode(body))["time"] >= time]
    return {int(one.get("intent") or one["seq"]) for one in since if one["phase"] != record.FACT}


def _acts_of(entries: Iterable[Fields]) -> dict[int, int]:
    """The session's number of each act, by its intent: the outcome of an applied act says it."""
    found = [(one["intent"], one.get("facts", {}).get("act")) for one in entries if "intent" in one]
    return {intent: act for intent, act in found if type(act) is int}


def _with_act(intent: Fields, numbers: Mapping[int, int]) -> Fields:
    act = numbers.get(intent["seq"])
    return intent if act is None else intent | {"act": act}


def acts_after(db: apsw.Connection, session: str, after: int) -> list[Fields]:
    """The acts in newer entries, without those that had no effect. `act`: its number, if known."""
    sql = "SELECT body FROM record WHERE session = ? AND seq > ? ORDER BY seq DESC LIMIT ?"
    rows = _rows(db, sql, session, after, CATCH_UP_ENTRIES)
    found = [canonical.decode(body) for (body,) in reversed(rows)]
    void = {one["intent"] for one in found if one.get("outcome") in record.NO_EFFECT}
    numbers = _acts_of(found)
    return [_with_act(one, numbers) for one in found if _is_act(one) and one["seq"] not in void]


def known_outcomes(db: apsw.Connection, session: str, after: int) -> set[int]:
    """The intents whose outcome is recorded behind entry `after`, and is not `unknown`."""
    rows = _rows(db, "SELECT body FROM record WHERE session = ? AND seq > ?", session, after)
    found = (canonical.decode(body) for (body,) in rows)
    return {
        int(one["intent"])
        for one in found
        if one["phase"] == record.OUTCOME and one["outcome"] != record.UNKNOWN
    }


_SELECT = (
    "SELECT r.session, r.seq, r.hash, r.time, r.body, c.content, c.salt "
    "FROM record r LEFT JOIN record_content c USING (session, seq) "
    "WHERE r.session = ? AND "
)


def page(
    session: str, after: int, limit: int, through: int | None = None
) -> Callable[[apsw.Connection], list[Written]]:
    """The oldest entries after that number."""

    def job(db: apsw.Connection) -> list[Written]:
        rows = db.execute(
            _SELECT + "r.seq > ? AND r.seq <= ? ORDER BY r.seq LIMIT ?",
            (session, after, (1 << 62) if through is None else through, limit),
        )
        return list(_within_a_page(rows))

    return job


def newest(session: str, limit: int) -> Callable[[apsw.Connection], list[Written]]:
    """The newest entries, oldest first."""

    def job(db: apsw.Connection) -> list[Written]:
        rows = db.execute(_SELECT + "r.seq > 0 ORDER BY r.seq DESC LIMIT ?", (session, limit))
        return list(_within_a_page(rows))[::-1]

    return job


def _within_a_page(rows: apsw.Cursor) -> Iterator[Written]:
    size = 0
    for row in rows:
        written = Written(*row)
        size += len(written.body) + len(written.content or b"")
        yield written
        if size > PAGE_BYTES:
            rows.close()
            return


def redact(db: apsw.Connection, session: str, seqs: Sequence[int]) -> list[int]:
    """Deletes the contents of these entries; returns the entries that had content.

    SQLite overwrites the freed space.
    """
    db.execute("PRAGMA secure_delete = ON")
    sql = "DELETE FROM record_content WHERE session = ? AND seq = ? RETURNING seq"
    return [seq for seq in dict.fromkeys(seqs) if _rows(db, sql, session, seq)]


def prune_through(
    db: apsw.Connection, session: str, before_time: int | None, keep: int | None
) -> int:
    """The last entry that may be dropped.

    That entry is older than `before_time`, is not among the newest `keep` entries, and lies before
    every intent without outcome.
    """
    limits = [tip(db, session).seq]
    if before_time is not None:
        rows = _rows(
            db,
            "SELECT seq FROM record WHERE session = ? AND time >= ? ORDER BY seq LIMIT 1",
            session,
            before_time,
        )
        limits += [rows[0][0] - 1] if rows else []
    if keep is not None:
        limits.append(tip(db, session).seq - keep)
    rows = _rows(db, "SELECT seq FROM record_open WHERE session = ? ORDER BY seq LIMIT 1", session)
    limits += [rows[0][0] - 1] if rows else []
    return min(limits)


def prune(db: apsw.Connection, session: str, through: int) -> None:
    db.execute("PRAGMA secure_delete = ON")
    for table in ("record", "record_content", "record_once"):
        sql = f"DELETE FROM {table} WHERE session = ? AND seq BETWEEN 1 AND ?"
        db.execute(sql, (session, through))
    sql = "DELETE FROM record_once WHERE session = ? AND seq < ? AND seq >= ?"
    db.execute(sql, (session, BROUGHT, -through))


def last_of_clients(db: apsw.Connection, session: str) -> dict[str, Fields]:
    """The entry with the highest number of each client, among the newest entries."""
    found: dict[str, Fields] = {}
    sql = "SELECT body FROM record WHERE session = ? ORDER BY seq DESC LIMIT ?"
    for (body,) in _rows(db, sql, session, CATCH_UP_ENTRIES):
        entry = canonical.decode(body)
        client, number = entry.get("client"), entry.get("number")
        if (
            client is not None
            and number is not None
            and number > found.get(client, {}).get("number", -1)
        ):
            found[client] = entry
    return found
