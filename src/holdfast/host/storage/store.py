"""The host's durable state: which sessions there are and were, what happened to them, which term speaks.

SQLite through apsw, because the interpreter's own library may carry the WAL-reset bug (two connections that write and
checkpoint at once corrupt the file; fixed in 3.51.3). One connection, used by one writer thread; callers queue functions,
which are committed in groups. What must be durable before it is acknowledged is awaited (`write`); the rest is posted.

A file that is not a database is put aside, never overwritten, and the state is rebuilt from the keepers, which know their
sessions themselves. A full or read-only disk makes `write` fail with a typed error; running sessions do not notice. What was
posted is owed: it is kept (bounded) and tried again until the disk takes it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import apsw

from holdfast.core.exposition import Histogram
from holdfast.host import recordtable
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
CREATE TABLE IF NOT EXISTS operators (name TEXT PRIMARY KEY, kind TEXT NOT NULL, added INTEGER NOT NULL, actor BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS operator_keys (key BLOB PRIMARY KEY, operator TEXT NOT NULL, added INTEGER NOT NULL, actor BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS devices (key BLOB PRIMARY KEY, name TEXT NOT NULL DEFAULT '', seen INTEGER, way TEXT) STRICT;
CREATE TABLE IF NOT EXISTS envelopes (link BLOB PRIMARY KEY, chain TEXT NOT NULL, given INTEGER NOT NULL, actor BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS revocations (
    kind TEXT NOT NULL, subject BLOB NOT NULL, at INTEGER NOT NULL, actor BLOB NOT NULL, PRIMARY KEY (kind, subject)) STRICT;
CREATE TABLE IF NOT EXISTS approvals (id TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS invitations (id TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
"""
EVENTS_KEPT = 10_000  # the newest ones; the record proper is not this table
GROUP_JOBS = 256  # committed together
OWED_JOBS = 2_000  # kept while the disk takes nothing; beyond it the oldest are dropped
RETRY_S = 1.0  # how often what is owed is tried again


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
    viewers: int = 0  # attached; after a restart of the host: on their way back


class _Job(NamedTuple):
    work: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any] | None = None
    owed: bool = True  # tried again until it is durable; otherwise a failure is told


class Store:
    def __init__(self, path: str) -> None:
        self.path = path
        self.failures = 0
        self.last_failure = ""
        self.put_aside: str | None = None
        self.took = Histogram()  # until a group was durable; of the writer's thread
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._owed: deque[_Job] = deque(maxlen=OWED_JOBS)
        self._db = self._open()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    # ------------------------------------------------------------ opening

    def _open(self) -> apsw.Connection:
        try:
            try:
                return self._try_open()
            except (apsw.NotADBError, apsw.CorruptError):
                self.put_aside = f"{self.path}.unreadable-{time.time_ns()}"
                for suffix in ("", "-wal", "-shm"):
                    if os.path.exists(self.path + suffix):
                        os.rename(self.path + suffix, self.put_aside + suffix)
                db = self._try_open()
                # For good: an empty table in this file does not mean that nothing was ever in it.
                db.execute("INSERT OR REPLACE INTO meta VALUES ('follows_a_lost_one', 1)")
                return db
        except apsw.BusyError as e:
            pid = _locked_by(self.path) or "unknown"
            raise Unavailable(
                f"another process ({pid}) has {self.path} open",
                f"if it is a host whose lock file was removed, `kill {pid}` ends it; sessions keep running",
            ) from e
        except (apsw.Error, OSError) as e:
            raise Unavailable(
                f"cannot open {self.path}: {e}", "free disk space or make the directory writable"
            ) from e

    def _try_open(self) -> apsw.Connection:
        old = os.umask(0o177)
        try:
            db = apsw.Connection(self.path)
        finally:
            os.umask(old)
        db.set_busy_timeout(2000)
        # The lock first: it keeps out every other connection (also a person's sqlite3, which may have the bug) only if WAL begins under it.
        db.execute(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"
        )
        version = _number(db.execute("PRAGMA user_version"))
        if version > SCHEMA:
            db.close()
            raise Unavailable(
                f"{self.path} was written by a newer release (schema {version})", "upgrade holdfast"
            )
        if (found := db.execute("PRAGMA quick_check(1)").fetchall()) != [("ok",)]:
            db.close()
            raise apsw.CorruptError(str(found[:1]))
        db.execute(_CREATE + recordtable.CREATE)
        if version != SCHEMA:
            db.execute(f"PRAGMA user_version={SCHEMA}")
        return db

    # ------------------------------------------------------------ the writer

    def _work(self) -> None:
        while True:
            taken = self._take()
            jobs = [*self._owed, *(job for job in taken if job is not None)]
            self._owed.clear()
            if not self._commit(jobs):
                for (
                    job
                ) in jobs:  # one by one: what can be done is done, and each failure is its own
                    self._commit([job])
            if None in taken:
                self._db.close()
                return

    def _take(self) -> list[_Job | None]:
        """The next jobs; none if it is time to try again what is owed."""
        try:
            jobs = [self._jobs.get(timeout=RETRY_S if self._owed else None)]
        except queue.Empty:
            return []
        while jobs[-1] is not None and not self._jobs.empty() and len(jobs) < GROUP_JOBS:
            jobs.append(self._jobs.get())
        return jobs

    def _commit(self, jobs: list[_Job]) -> bool:
        """All of them in one transaction. False: nothing was done, and they are to be tried one by one."""
        try:
            self._db.execute("BEGIN")
            results = [job.work(self._db) for job in jobs]
            began = time.monotonic()
            self._db.execute("COMMIT")
            self.took.add(time.monotonic() - began)
        except (
            Exception
        ) as e:  # whatever it was: the writer goes on, or nobody is ever answered again
            if self._db.in_transaction:  # a full disk has ended it already
                self._db.execute("ROLLBACK")
            if len(jobs) != 1:
                return False
            self.failures += 1
            self.last_failure = str(e)
            [job] = jobs
            if job.owed and isinstance(e, apsw.Error | OSError):
                self._owed.append(job)
            elif job.future is not None:
                self._tell(
                    job.future,
                    Unavailable(
                        f"cannot write {self.path}: {e}",
                        "free disk space or make the directory writable",
                    ),
                )
            return True
        for job, result in zip(jobs, results, strict=True):
            if job.future is not None:
                self._tell(job.future, result)
        return True

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
        except RuntimeError:  # the loop is gone: nobody waits any more
            pass

    def post(self, work: Callable[[apsw.Connection], Any]) -> None:
        self._jobs.put(_Job(work))

    async def write(self, work: Callable[[apsw.Connection], Any], patient: bool = False) -> Any:
        """Returns when `work` is durable; raises Unavailable if it cannot be made so now, or waits until it can if `patient`."""
        future = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(work, future, patient))
        return await future

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout=5)

    # ------------------------------------------------------------ contents (before the thread starts)

    def next_term(self) -> int:
        """A number above every earlier host's of this home."""
        try:
            return _number(
                self._db.execute(
                    "INSERT INTO meta VALUES ('term', 1) ON CONFLICT(key) DO UPDATE SET value = value + 1 RETURNING value"
                )
            )
        except apsw.Error as e:
            raise Unavailable(
                f"cannot write {self.path}: {e}", "free disk space or make the directory writable"
            ) from e

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._db.execute(query).fetchall()

    def records(self) -> list[Record]:
        """What can be read of it; a row that cannot is left out, for its keeper knows better."""
        found = []
        for (body,) in self._db.execute("SELECT body FROM sessions").fetchall():
            try:
                record = Record(**json.loads(str(body)))
            except (ValueError, TypeError):
                self.failures += 1
                self.last_failure = "a row of the sessions is unreadable"
                continue
            found.append(record)
        return found


def _locked_by(path: str) -> int:
    """The process that keeps us from a file, as the kernel has it; 0 if it does not say."""
    flock = struct.Struct("hhqqi")  # type, whence, start, length, pid
    try:
        with open(path, "rb+") as file:
            return int(
                flock.unpack(
                    fcntl.fcntl(
                        file, fcntl.F_GETLK, flock.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                    )
                )[4]
            )
    except OSError:
        return 0


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
        db.execute(
            "INSERT INTO sessions VALUES (?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
            "name=excluded.name, state=excluded.state, ended=excluded.ended, body=excluded.body",
            row,
        )

    return job


def forget(session: str) -> Callable[[apsw.Connection], None]:
    def job(db: apsw.Connection) -> None:
        db.execute("DELETE FROM sessions WHERE id = ?", (session,))

    return job


def event(
    at: float, session: str, name: str, body: dict[str, Any]
) -> Callable[[apsw.Connection], None]:
    row = (at, session, name, json.dumps(body))

    def job(db: apsw.Connection) -> None:
        db.execute("INSERT INTO events (at, session, event, body) VALUES (?,?,?,?)", row)
        if db.last_insert_rowid() % 1000 == 0:
            db.execute(
                "DELETE FROM events WHERE number <= ?", (db.last_insert_rowid() - EVENTS_KEPT,)
            )

    return job


def events_after(
    session: str | None, after: int, limit: int
) -> Callable[[apsw.Connection], list[dict[str, Any]]]:
    """The oldest ones after that number."""
    return _events(session, after, limit, "ASC")


def events_of(
    session: str | None, after: int, limit: int
) -> Callable[[apsw.Connection], list[dict[str, Any]]]:
    """The newest ones, oldest first."""
    newest = _events(session, after, limit, "DESC")
    return lambda db: newest(db)[::-1]


def _events(
    session: str | None, after: int, limit: int, order: str
) -> Callable[[apsw.Connection], list[dict[str, Any]]]:
    def job(db: apsw.Connection) -> list[dict[str, Any]]:
        where, args = ("session = ? AND ", [session]) if session else ("", [])
        rows = db.execute(
            f"SELECT number, at, session, event, body FROM events WHERE {where} number > ? "
            f"ORDER BY number {order} LIMIT ?",
            (*args, after, limit),
        ).fetchall()
        return [
            {"number": n, "time": at, "session": s, "event": e, **json.loads(str(b))}
            for n, at, s, e, b in rows
        ]

    return job
