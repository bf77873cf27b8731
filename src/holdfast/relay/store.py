"""The relay's database: tenants, hashes of tokens, and routes.

A relay that lost this file knows no tokens. The relay says so and admits no host until an
administrator makes new tokens.

A route (a generation, hashes of passes, when it was last seen) changes often and matters little.
The store keeps the latest state of each changed route and writes several together, with retries
until the disk accepts them. Tokens matter: `write` returns when a token is durably made or revoked.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.limits import RELAY_ROUTE_KEPT_S
from holdfast.relay.events import Known
from holdfast.storage.database import Database, Work, settle

# SQLite stores this text in every database: do not change the line breaks.
_CREATE = """
PRAGMA foreign_keys=ON;
CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, created INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL REFERENCES tenants (name), created INTEGER NOT NULL, expires INTEGER,
    revoked INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS routes (
    key BLOB PRIMARY KEY, tenant TEXT NOT NULL, token TEXT, generation INTEGER NOT NULL, passes BLOB NOT NULL, seen INTEGER NOT NULL) STRICT;
"""  # noqa: E501
RETRY_S = 1.0  # between attempts to write pending routes
GATHER_S = 0.1  # routes that change within this time are written together
_DIGEST = 32

T = TypeVar("T")


class _Job(NamedTuple):
    work: Work
    future: asyncio.Future[Any]


class Store(Database):
    SCHEMA = 1
    TABLES = _CREATE

    def __init__(self, path: str) -> None:
        self._owed: dict[bytes, Known | None] = {}
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        super().__init__(path)

    def _in_use(self) -> Unavailable:
        return Unavailable(
            f"another process has {self.path} open",
            "one relay for one directory: give this one its own with --data",
        )

    # ------------------------------------------------------------ before the thread starts

    def routes(self, now: int) -> list[Known]:
        """Return the recently seen routes and delete the rest."""
        self.at_once(
            lambda db: db.execute("DELETE FROM routes WHERE seen < ?", (now - RELAY_ROUTE_KEPT_S,))
        )
        rows: list[Any] = self._db.execute(
            "SELECT key, tenant, token, generation, passes, seen FROM routes"
        ).fetchall()
        return [
            Known(
                key,
                tenant,
                token,
                generation,
                tuple(passes[i : i + _DIGEST] for i in range(0, len(passes), _DIGEST)),
                seen,
            )
            for key, tenant, token, generation, passes, seen in rows
        ]

    def at_once(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in this thread, durably; only before the writer thread starts."""
        assert not self._thread.is_alive()
        try:
            with self._db:
                result = work(self._db)
        except (apsw.Error, OSError) as e:
            raise self.cannot_write(e) from e
        return result

    # ------------------------------------------------------------ the writer

    def save(self, known: Known) -> None:
        with self._wake:
            self._owed[known.key] = known
            self._wake.notify()

    def forget(self, key: bytes) -> None:
        with self._wake:
            self._owed[key] = None
            self._wake.notify()

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work`, a read or a change, in the writer thread; return when a change is durable.

        Raises Unavailable if the disk refuses the change.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._jobs.append(_Job(work, future))
            self._wake.notify()
        return await future

    def close(self) -> None:
        """Write pending routes if possible, then close."""
        if self._thread.is_alive():
            with self._wake:
                self._closing = True
                self._wake.notify()
            self._thread.join(timeout=5)
        else:
            self._db.close()

    def _work(self) -> None:
        failed = False
        while True:
            with self._wake:
                if failed:
                    self._wake.wait_for(lambda: self._jobs or self._closing, timeout=RETRY_S)
                else:
                    self._wake.wait_for(lambda: self._jobs or self._owed or self._closing)
                    # When many hosts return at once, their routes are written together.
                    if not self._jobs and not self._closing:
                        self._wake.wait_for(lambda: self._jobs or self._closing, timeout=GATHER_S)
                owed, self._owed = self._owed, {}
                jobs, closing = list(self._jobs), self._closing
                self._jobs.clear()
            failed = not self._routes(owed)
            if failed:
                with self._wake:
                    self._owed = {**owed, **self._owed}
            for job in jobs:
                self._job(job)
            if closing:
                self._db.close()
                return

    def _routes(self, owed: dict[bytes, Known | None]) -> bool:
        if not owed:
            return True
        try:
            with self._db:
                for key, known in owed.items():
                    if known is None:
                        self._db.execute("DELETE FROM routes WHERE key = ?", (key,))
                    else:
                        self._db.execute(
                            "INSERT OR REPLACE INTO routes VALUES (?,?,?,?,?,?)",
                            (
                                key,
                                known.tenant,
                                known.token,
                                known.generation,
                                b"".join(known.passes),
                                known.seen,
                            ),
                        )
        except (apsw.Error, OSError):
            self.failures += 1
            return False
        return True

    def _job(self, job: _Job) -> None:
        result: object
        try:
            with self._db:
                result = job.work(self._db)
        except HoldfastError as e:
            result = e
        except Exception as e:  # of any kind: the writer must go on, or no caller gets an answer
            self.failures += 1
            result = self.cannot_write(e)
        settle(job.future, result)
