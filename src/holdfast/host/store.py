"""The host's durable state: which sessions there are and were, what happened to them, which term speaks.

SQLite through apsw, because the interpreter's own library may carry the WAL-reset bug (two connections that write and
checkpoint at once corrupt the file; fixed in 3.51.3). One connection, used by one writer thread; callers queue functions,
which are committed in groups. What must be durable before it is acknowledged is awaited (`write`); the rest is posted.

A file that is not a database is put aside, never overwritten, and the state is rebuilt from the keepers, which know their
sessions themselves. A full or read-only disk makes `write` fail with a typed error; running sessions do not notice.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import apsw

from holdfast.model.errors import Unavailable

SCHEMA = 1
_CREATE = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, ended REAL, body TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, session TEXT NOT NULL, event TEXT NOT NULL,
    body TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS events_of ON events (session, number);
"""
EVENTS_KEPT = 10_000          # the newest ones; the record proper is not this table


@dataclass
class Record:
    """What is kept of a session, living or ended."""

    id: str
    name: str
    state: str
    epoch: int
    created: float
    argv: list[str]
    cwd: str
    boot: str
    cols: int = 80
    rows: int = 24
    root_pid: int = 0
    root_start: int = 0
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    screen: list[str] = field(default_factory=list)
    ansi: str = ""
    output_start: int = 0
    output_end: int = 0
    survivors: int = 0


class Store:
    def __init__(self, path: str) -> None:
        self.path = path
        self.failures = 0
        self.last_failure = ""
        self.put_aside: str | None = None
        self._jobs: queue.SimpleQueue[tuple[Callable[[apsw.Connection], Any], asyncio.Future[Any] | None] | None]
        self._jobs = queue.SimpleQueue()
        self._db = self._open()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    # ------------------------------------------------------------ opening

    def _open(self) -> apsw.Connection:
        try:
            return self._try_open()
        except (apsw.NotADBError, apsw.CorruptError):
            self.put_aside = f"{self.path}.unreadable-{int(time.time())}"
            for suffix in ("", "-wal", "-shm"):
                if os.path.exists(self.path + suffix):
                    os.rename(self.path + suffix, self.put_aside + suffix)
            return self._try_open()
        except apsw.Error as e:
            raise Unavailable(f"cannot open {self.path}: {e}", "free disk space or make the directory writable") from e

    def _try_open(self) -> apsw.Connection:
        old = os.umask(0o177)
        try:
            db = apsw.Connection(self.path)
        finally:
            os.umask(old)
        db.set_busy_timeout(2000)
        db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA locking_mode=EXCLUSIVE")
        version = _number(db.execute("PRAGMA user_version"))
        if version > SCHEMA:
            db.close()
            raise Unavailable(f"{self.path} was written by a newer release (schema {version})", "upgrade holdfast")
        db.execute(_CREATE)
        db.execute(f"PRAGMA user_version={SCHEMA}")
        db.execute("PRAGMA quick_check(1)").fetchall()
        return db

    # ------------------------------------------------------------ the writer

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while not self._jobs.empty() and len(jobs) < 256:
                jobs.append(self._jobs.get())
            done: list[tuple[asyncio.Future[Any], Any]] = []
            try:
                with self._db:
                    for job in jobs:
                        if job is not None:
                            result = job[0](self._db)
                            if job[1] is not None:
                                done.append((job[1], result))
            except (apsw.Error, OSError) as e:
                self.failures += 1
                self.last_failure = str(e)
                error = Unavailable(f"cannot write {self.path}: {e}", "free disk space or make the directory writable")
                done = [(job[1], error) for job in jobs if job is not None and job[1] is not None]
            for future, result in done:
                self._tell(future, result)
            if None in jobs:
                self._db.close()
                return

    def _tell(self, future: asyncio.Future[Any], result: Any) -> None:
        def settle() -> None:
            if not future.done():
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:      # the loop is gone: nobody waits any more
            pass

    def post(self, job: Callable[[apsw.Connection], Any]) -> None:
        self._jobs.put((job, None))

    async def write(self, job: Callable[[apsw.Connection], Any]) -> Any:
        """Returns when `job` is durable; raises Unavailable if it cannot be made so."""
        future = asyncio.get_running_loop().create_future()
        self._jobs.put((job, future))
        return await future

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout=5)

    # ------------------------------------------------------------ contents (before the thread starts)

    def next_term(self) -> int:
        """A number above every earlier host's of this home."""
        return _number(self._db.execute(
            "INSERT INTO meta VALUES ('term', 1) ON CONFLICT(key) DO UPDATE SET value = value + 1 RETURNING value"))

    def records(self) -> list[Record]:
        rows = self._db.execute("SELECT body FROM sessions").fetchall()
        return [Record(**json.loads(str(body))) for (body,) in rows]


def _number(cursor: apsw.Cursor) -> int:
    """The one number that a statement gives."""
    return int(str(next(iter(cursor))[0]))


def raise_term(value: int) -> Callable[[apsw.Connection], None]:
    def job(db: apsw.Connection) -> None:
        db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'term'", (value,))

    return job


def save(record: Record) -> Callable[[apsw.Connection], None]:
    row = (record.id, record.name, record.state, record.ended, json.dumps(asdict(record)))

    def job(db: apsw.Connection) -> None:
        db.execute("INSERT INTO sessions VALUES (?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
                   "name=excluded.name, state=excluded.state, ended=excluded.ended, body=excluded.body", row)

    return job


def forget(session: str) -> Callable[[apsw.Connection], None]:
    def job(db: apsw.Connection) -> None:
        db.execute("DELETE FROM sessions WHERE id = ?", (session,))

    return job


def event(at: float, session: str, name: str, body: dict[str, Any]) -> Callable[[apsw.Connection], None]:
    row = (at, session, name, json.dumps(body))

    def job(db: apsw.Connection) -> None:
        db.execute("INSERT INTO events (at, session, event, body) VALUES (?,?,?,?)", row)
        if db.last_insert_rowid() % 1000 == 0:
            db.execute("DELETE FROM events WHERE number <= ?", (db.last_insert_rowid() - EVENTS_KEPT,))

    return job


def events_of(session: str | None, after: int, limit: int) -> Callable[[apsw.Connection], list[dict[str, Any]]]:
    def job(db: apsw.Connection) -> list[dict[str, Any]]:
        where, args = ("session = ? AND ", [session]) if session else ("", [])
        rows = db.execute(f"SELECT number, at, session, event, body FROM events WHERE {where} number > ? "
                          "ORDER BY number DESC LIMIT ?", (*args, after, limit)).fetchall()
        return [{"number": n, "time": at, "session": s, "event": e, **json.loads(b)} for n, at, s, e, b in reversed(rows)]

    return job
