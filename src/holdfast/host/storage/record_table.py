"""The record's tables in the store: jobs for its writer thread, nothing decided.

Each function is a job or part of one: it runs inside the writer's transaction, and may run again after that was rolled back. So the end
of a chain is always read from the table, never remembered: a group that could not be committed has left nothing behind.

Contents lie in a table of their own: entries are never updated (a trigger refuses it), contents can be taken away. Entries have row ids,
though they do not need them: without, a row above 1 KB takes a page of its own (measured: 4.7 KB per signed command, with them 1.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from holdfast.core import record
from holdfast.core.record import Draft, Signed, Written
from holdfast.model import canonical

PAGE_BYTES = 1 << 20  # of entries read at once; contents come on top, at least one entry always
CATCH_UP_ENTRIES = 4096  # looked at to learn what was recorded of each client
REDACT_AT_ONCE = 1000  # entries that one `redact` names

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
"""


class Tip(NamedTuple):
    seq: int
    hash: str


class Bounds(NamedTuple):
    first: int  # 1 if there is nothing
    tip: Tip


def _rows(cursor: apsw.Cursor) -> list[tuple[Any, ...]]:
    return cursor.fetchall()


def tip(db: apsw.Connection, session: str) -> Tip:
    rows = _rows(
        db.execute(
            "SELECT seq, hash FROM record WHERE session = ? ORDER BY seq DESC LIMIT 1", (session,)
        )
    )
    return Tip(*rows[0]) if rows else Tip(0, record.GENESIS)


def bounds(db: apsw.Connection, session: str) -> Bounds:
    rows = _rows(
        db.execute("SELECT seq FROM record WHERE session = ? ORDER BY seq LIMIT 1", (session,))
    )
    return Bounds(rows[0][0] if rows else 1, tip(db, session))


def append(db: apsw.Connection, draft: Draft, end: Tip, time: int, late: bool = False) -> Written:
    """Writes the entry behind `end`; ValueError, with nothing written, if it cannot be one."""
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
    elif draft.phase == record.OUTCOME:
        db.execute(
            "DELETE FROM record_open WHERE session = ? AND seq = ?", (written.session, draft.intent)
        )
    return written


def put_head(db: apsw.Connection, session: str, seq: int, head: Signed) -> None:
    db.execute(
        "INSERT OR REPLACE INTO record_heads VALUES (?,?,?,?)",
        (session, seq, head.body, head.signature),
    )


def heads(db: apsw.Connection) -> dict[str, Signed]:
    return {
        str(s): Signed(b, g)
        for s, b, g in _rows(db.execute("SELECT session, body, signature FROM record_heads"))
    }


def sessions(db: apsw.Connection) -> list[str]:
    """Every session that has a record, found by jumping from one to the next."""
    found: list[str] = []
    while rows := _rows(
        db.execute(
            "SELECT session FROM record WHERE session > ? ORDER BY session LIMIT 1",
            (found[-1] if found else "",),
        )
    ):
        found.append(str(rows[0][0]))
    return found


def hash_at(db: apsw.Connection, session: str, seq: int) -> str | None:
    rows = _rows(
        db.execute("SELECT hash FROM record WHERE session = ? AND seq = ?", (session, seq))
    )
    return str(rows[0][0]) if rows else None


def newest_hashes(db: apsw.Connection, session: str, limit: int) -> list[str]:
    """Oldest first."""
    rows = _rows(
        db.execute(
            "SELECT hash FROM record WHERE session = ? ORDER BY seq DESC LIMIT ?", (session, limit)
        )
    )
    return [str(hash) for (hash,) in rows][::-1]


def open_intents(db: apsw.Connection) -> list[dict[str, Any]]:
    rows = _rows(
        db.execute(
            "SELECT r.body FROM record_open o JOIN record r USING (session, seq) ORDER BY o.session, o.seq"
        )
    )
    return [canonical.decode(body) for (body,) in rows]


_SELECT = (
    "SELECT r.session, r.seq, r.hash, r.time, r.body, c.content, c.salt FROM record r LEFT JOIN record_content c USING (session, seq) "
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
    """The newest ones, oldest first."""

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
    """Takes the contents of these entries away; gives those that had any. What SQLite frees is overwritten."""
    db.execute("PRAGMA secure_delete = ON")
    had = [
        seq
        for seq in dict.fromkeys(seqs)
        if _rows(
            db.execute("SELECT 1 FROM record_content WHERE session = ? AND seq = ?", (session, seq))
        )
    ]
    for seq in had:
        db.execute("DELETE FROM record_content WHERE session = ? AND seq = ?", (session, seq))
    return had


def prune_through(
    db: apsw.Connection, session: str, before_time: int | None, keep: int | None
) -> int:
    """The last entry that may go: older than that time or beyond that many, and before every intent that is still open."""
    limits = [tip(db, session).seq]
    if before_time is not None:
        rows = _rows(
            db.execute(
                "SELECT seq FROM record WHERE session = ? AND time >= ? ORDER BY seq LIMIT 1",
                (session, before_time),
            )
        )
        limits += [rows[0][0] - 1] if rows else []
    if keep is not None:
        limits.append(tip(db, session).seq - keep)
    rows = _rows(
        db.execute("SELECT seq FROM record_open WHERE session = ? ORDER BY seq LIMIT 1", (session,))
    )
    limits += [rows[0][0] - 1] if rows else []
    return min(limits)


def prune(db: apsw.Connection, session: str, through: int) -> None:
    db.execute("PRAGMA secure_delete = ON")
    for table in ("record", "record_content"):
        db.execute(f"DELETE FROM {table} WHERE session = ? AND seq <= ?", (session, through))


def forget(session: str) -> Callable[[apsw.Connection], None]:
    def job(db: apsw.Connection) -> None:
        for table in ("record", "record_content", "record_open", "record_heads"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))

    return job


def last_of_clients(db: apsw.Connection, session: str) -> dict[str, dict[str, Any]]:
    """The entry with the highest number of each client, among the newest entries."""
    found: dict[str, dict[str, Any]] = {}
    for (body,) in _rows(
        db.execute(
            "SELECT body FROM record WHERE session = ? ORDER BY seq DESC LIMIT ?",
            (session, CATCH_UP_ENTRIES),
        )
    ):
        entry = canonical.decode(body)
        client, number = entry.get("client"), entry.get("number")
        if (
            client is not None
            and number is not None
            and number > found.get(client, {}).get("number", -1)
        ):
            found[client] = entry
    return found
