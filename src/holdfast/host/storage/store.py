"""The host's durable state: living and ended sessions, events, operators, and the host's term.

Callers queue functions. One writer thread runs them on the only connection and commits them in
groups. A caller that must not acknowledge before a change is durable awaits `write`; all other
callers use `post`.

If the file is unreadable and was put aside, the host rebuilds its state from the keepers, which
know the running sessions. A full or read-only disk makes `write` fail with a typed error; running
sessions are not affected. The writer keeps posted work (at most OWED_JOBS) and tries again until
the disk accepts the work.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import queue
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import apsw

from holdfast.core.prometheus_text import Histogram
from holdfast.host.storage import record_table
from holdfast.model.errors import Unavailable
from holdfast.storage.database import Database, Work, number, settle

# tests/vectors/handover.json has this text byte for byte, so the long lines stay.
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
"""  # noqa: E501
# Sealed descriptions of living sessions (host/storage/remembered.py).
_REMEMBERED = """
CREATE TABLE IF NOT EXISTS remembered (session TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
"""
EVENTS_KEPT = 10_000  # the newest; the record of acts is in other tables
GROUP_JOBS = 256  # committed together
OWED_JOBS = 2_000  # kept while the disk refuses; beyond that the oldest are dropped
RETRY_S = 1.0  # between attempts to write owed jobs


@dataclass
class SessionRow:
    """A row of the table `sessions`: the stored facts of a session, living or ended."""

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
    ended_by: str = ""  # the operator whose act ended the first program, or "unknown"
    screen: list[str] = field(default_factory=list)
    ansi: str = ""
    output_start: int = 0
    output_end: int = 0
    survivors: int = 0
    rehomable: bool = False  # its keeper has a deadline: the end of this machine's lease
    viewers: int = 0  # attached clients; after a restart of the host: expected back
    halted: bool = False  # while it is fenced: whether it is halted afterwards
    interrupted: bool = False  # ended, and not settled yet (core/session/interruption.py)

    @property
    def lost(self) -> bool:
        """Whether it ended without an exit of its program, and can be re-established."""
        return self.state == "ended" and (self.interrupted or self.reason.startswith("lost"))


_LATER = ("ended_by", "interrupted")
Event = dict[str, Any]
Job = Callable[[apsw.Connection], None]
Search = Callable[[apsw.Connection], list[Event]]


class _Queued(NamedTuple):
    work: Work
    future: asyncio.Future[Any] | None = None
    owed: bool = True  # tried again until durable; otherwise the caller gets the failure


class Store(Database):
    SCHEMA = 1
    TABLES = _CREATE + record_table.CREATE + _REMEMBERED

    def __init__(self, path: str) -> None:
        self.last_failure = ""
        self.took = Histogram()  # seconds per commit; filled by the writer thread
        self._jobs: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._owed: deque[_Queued] = deque(maxlen=OWED_JOBS)
        super().__init__(path)

    def _in_use(self) -> Unavailable:
        pid = _locked_by(self.path) or "unknown"
        return Unavailable(
            f"another process ({pid}) has {self.path} open",
            f"if it is a host whose lock file was removed, `kill {pid}` ends it; "
            "sessions keep running",
        )

    def _replaced(self, db: apsw.Connection) -> None:
        # Kept for ever: a missing row no longer proves that the row never existed.
        db.execute("INSERT OR REPLACE INTO meta VALUES ('follows_a_lost_one', 1)")

    # ------------------------------------------------------------ the writer

    def _work(self) -> None:
        while True:
            taken = self._take()
            jobs = [*self._owed, *(job for job in taken if job is not None)]
            self._owed.clear()
            if not self._commit(jobs):
                for job in jobs:  # singly: a failure then concerns a single job
                    self._commit([job])
            if None in taken:
                self._db.close()
                return

    def _take(self) -> list[_Queued | None]:
        """The next jobs; an empty list when owed jobs are due for a new attempt."""
        try:
            jobs = [self._jobs.get(timeout=RETRY_S if self._owed else None)]
        except queue.Empty:
            return []
        while jobs[-1] is not None and not self._jobs.empty() and len(jobs) < GROUP_JOBS:
            jobs.append(self._jobs.get())
        return jobs

    def _commit(self, jobs: list[_Queued]) -> bool:
        """Runs all jobs in a transaction. False: rolled back; try the jobs singly."""
        try:
            self._db.execute("BEGIN")
            results = [job.work(self._db) for job in jobs]
            began = time.monotonic()
            self._db.execute("COMMIT")
            self.took.add(time.monotonic() - began)
        except Exception as e:  # of any kind: the writer must go on, or no caller gets an answer
            if self._db.in_transaction:  # a full disk ends the transaction by itself
                self._db.execute("ROLLBACK")
            if len(jobs) != 1:
                return False
            self.failures += 1
            self.last_failure = str(e)
            [job] = jobs
            if job.owed and isinstance(e, apsw.Error | OSError):
                self._owed.append(job)
            elif job.future is not None:
                settle(job.future, self.cannot_write(e))
            return True
        for job, result in zip(jobs, results, strict=True):
            if job.future is not None:
                settle(job.future, result)
        return True

    def post(self, work: Work) -> None:
        self._jobs.put(_Queued(work))

    async def run(self, work: Work, patient: bool = False) -> Any:
        """Runs `work`, a read or a change, in the writer thread; returns when a change is durable.

        If the disk refuses, raises Unavailable, or keeps trying if `patient`.
        """
        future = asyncio.get_running_loop().create_future()
        self._jobs.put(_Queued(work, future, patient))
        return await future

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout=5)

    # ------------------------------------------------------------ reading before the thread starts

    def next_term(self) -> int:
        """A term above that of every earlier host of this home."""
        try:
            return number(
                self._db.execute(
                    "INSERT INTO meta VALUES ('term', 1) "
                    "ON CONFLICT(key) DO UPDATE SET value = value + 1 RETURNING value"
                )
            )
        except apsw.Error as e:
            raise self.cannot_write(e) from e

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._db.execute(query).fetchall()

    def records(self) -> list[SessionRow]:
        """The stored sessions. An unreadable row is left out: the session's keeper knows better."""
        found = []
        for (body,) in self._db.execute("SELECT body FROM sessions").fetchall():
            try:
                record = SessionRow(**json.loads(str(body)))
            except (ValueError, TypeError):
                self.failures += 1
                self.last_failure = "a row of the sessions is unreadable"
                continue
            found.append(record)
        return found


def _locked_by(path: str) -> int:
    """The pid of the process that holds a lock on the file; 0 if the kernel does not tell."""
    flock = struct.Struct("hhqqi")  # type, whence, start, length, pid
    try:
        with open(path, "rb+") as file:
            wanted = flock.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            return int(flock.unpack(fcntl.fcntl(file, fcntl.F_GETLK, wanted))[4])
    except OSError:
        return 0


def statement(sql: str, *rows: tuple[apsw.SQLiteValue, ...]) -> Job:
    """A job that executes a statement for each of these rows."""

    def job(db: apsw.Connection) -> None:
        db.executemany(sql, rows)

    return job


def together(*jobs: Job) -> Job:
    """A job that does all of these jobs."""

    def job(db: apsw.Connection) -> None:
        for one in jobs:
            one(db)

    return job


def raise_term(value: int) -> Job:
    return statement("UPDATE meta SET value = max(value, ?) WHERE key = 'term'", (value,))


def body_of(record: SessionRow) -> dict[str, Any]:
    """The stored fields, without later fields that are empty: earlier hosts do not know them."""
    return {name: value for name, value in asdict(record).items() if value or name not in _LATER}


def save(record: SessionRow) -> Job:
    body = body_of(record)
    return statement(
        "INSERT INTO sessions VALUES (?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
        "name=excluded.name, state=excluded.state, ended=excluded.ended, body=excluded.body",
        (record.id, record.name, record.state, record.ended, json.dumps(body)),
    )


def keep_fact(key: str, value: int) -> Job:
    return statement("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def forget_fact(key: str) -> Job:
    return statement("DELETE FROM meta WHERE key = ?", (key,))


def forget(session: str) -> Job:
    return together(
        statement("DELETE FROM sessions WHERE id = ?", (session,)), forget_description(session)
    )


def forget_description(session: str) -> Job:
    return statement("DELETE FROM remembered WHERE session = ?", (session,))


def event(at: float, session: str, name: str, body: Mapping[str, object]) -> Job:
    row = (at, session, name, json.dumps(body))

    def job(db: apsw.Connection) -> None:
        db.execute("INSERT INTO events (at, session, event, body) VALUES (?,?,?,?)", row)
        if db.last_insert_rowid() % 1000 == 0:
            db.execute(
                "DELETE FROM events WHERE number <= ?", (db.last_insert_rowid() - EVENTS_KEPT,)
            )

    return job


def events_after(session: str | None, after: int, limit: int) -> Search:
    """The oldest events after that number."""
    return _events(session, after, limit, "ASC")


def events_of(session: str | None, after: int, limit: int) -> Search:
    """The newest events, oldest first."""
    newest = _events(session, after, limit, "DESC")
    return lambda db: newest(db)[::-1]


def _events(session: str | None, after: int, limit: int, order: str) -> Search:
    def job(db: apsw.Connection) -> list[Event]:
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
