"""Leases in an SQLite file: for the homes of one machine that name the same path.

The file is opened anew after an error. It has a rollback journal and full syncs: other processes
may have it open, and a commit must be on the disk before its answer.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import apsw

from holdfast.core.lease.records import Commit, Stored
from holdfast.model.errors import Unavailable

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS leases (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS last_revision (
    only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO last_revision VALUES (1, 0);
"""
SCHEMA: Final = 1
MODE: Final = 0o600


class SQLiteStore:
    shared = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._db: apsw.Connection | None = None
        self._lock = threading.Lock()  # one connection, and threads of a pool

    def read(self, keys: Sequence[str], within_s: float) -> dict[str, Stored]:
        with self._alone(within_s):
            try:
                db = self._opened(within_s)
                marks = ",".join("?" * len(keys))
                rows = db.execute(
                    f"SELECT key, value, revision FROM leases WHERE key IN ({marks})", tuple(keys)
                ).fetchall()
            except (apsw.Error, OSError) as e:
                raise self._failed(e) from e
        found: dict[str, Stored] = {}
        for key, value, revision in rows:
            if isinstance(value, bytes) and isinstance(revision, int):
                found[str(key)] = Stored(value, revision)
        return {key: found.get(key, Stored(b"", 0)) for key in keys}

    def commit(self, wanted: Commit, within_s: float) -> int:
        with self._alone(within_s):
            try:
                db = self._opened(within_s)
                db.execute("BEGIN IMMEDIATE")
                try:
                    revision = _commit(db, wanted)
                    db.execute("COMMIT" if revision else "ROLLBACK")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
                return revision
            except (apsw.Error, OSError) as e:
                raise self._failed(e) from e

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextlib.contextmanager
    def _alone(self, within_s: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=within_s):
            raise Unavailable(f"the store of leases {self.path} is busy", "try again")
        try:
            yield
        finally:
            self._lock.release()

    def _opened(self, within_s: float) -> apsw.Connection:
        if self._db is None:
            old = os.umask(0o777 & ~MODE)
            try:
                db = apsw.Connection(self.path)
            finally:
                os.umask(old)
            db.set_busy_timeout(int(within_s * 1000))
            db.execute("PRAGMA journal_mode=TRUNCATE; PRAGMA synchronous=FULL")
            version = int(str(db.execute("PRAGMA user_version").fetchall()[0][0]))
            if version > SCHEMA:
                db.close()
                raise Unavailable(f"{self.path} was written by a newer release", "upgrade holdfast")
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"{_TABLES} PRAGMA user_version={SCHEMA}; COMMIT")
            self._db = db
        self._db.set_busy_timeout(int(within_s * 1000))
        return self._db

    def _failed(self, error: Exception) -> Unavailable:
        if self._db is not None:
            self._db.close()
            self._db = None
        return Unavailable(
            f"the store of leases {self.path} cannot be used: {error}",
            "free disk space, or see the option lease.path",
        )


def _commit(db: apsw.Connection, wanted: Commit) -> int:
    for key, expected in wanted.expect:
        rows = db.execute("SELECT revision FROM leases WHERE key = ?", (key,)).fetchall()
        if (int(str(rows[0][0])) if rows else 0) != expected:
            return 0
    db.execute("UPDATE last_revision SET revision = revision + 1")
    revision = int(str(db.execute("SELECT revision FROM last_revision").fetchall()[0][0]))
    for key, value in wanted.puts:
        db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", (key, value, revision))
    return revision
