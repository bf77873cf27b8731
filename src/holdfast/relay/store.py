"""What a relay keeps on disk: tenants, tokens (their hashes), and the routes it has seen.

SQLite through apsw, with the care of the host's store and for the same reasons: STRICT tables, one process at a time (an exclusive lock for as long as it is open),
one writer thread, and a file that is not a database is put aside, never overwritten. A relay that lost this file knows no tokens: it says so, and admits nobody
until new ones are made.

Routes are saved often and matter little (a generation, hashes of passes, when it was seen), so they are owed: the latest state of each is kept and
written together with others, again and again until the disk takes it. Tokens matter: making and revoking one is awaited (`write`).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import apsw

from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.limits import RELAY_ROUTE_KEPT_S
from holdfast.relay.events import Known

SCHEMA = 1
_CREATE = """
CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, created INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL REFERENCES tenants (name), created INTEGER NOT NULL, expires INTEGER,
    revoked INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS routes (
    key BLOB PRIMARY KEY, tenant TEXT NOT NULL, token TEXT, generation INTEGER NOT NULL, passes BLOB NOT NULL, seen INTEGER NOT NULL) STRICT;
"""
RETRY_S = 1.0  # how often what is owed is tried again
GATHER_S = 0.1  # routes that change within this time are one write
_DIGEST = 32

Work = Callable[[apsw.Connection], Any]


class _Job(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Store:
    def __init__(self, path: str) -> None:
        self.path = path
        self.put_aside: str | None = None
        self.failures = 0
        self._owed: dict[bytes, Known | None] = {}
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._db = self._open()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self) -> None:
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
                return self._try_open()
        except apsw.BusyError as e:
            raise Unavailable(
                f"another process has {self.path} open",
                "one relay for one directory: give this one its own with --data",
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
        # The lock first: it keeps out every other connection only if WAL begins under it.
        db.execute(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON"
        )
        version = int(str(db.execute("PRAGMA user_version").fetchall()[0][0]))
        if version > SCHEMA:
            db.close()
            raise Unavailable(
                f"{self.path} was written by a newer release (schema {version})", "upgrade holdfast"
            )
        if (found := db.execute("PRAGMA quick_check(1)").fetchall()) != [("ok",)]:
            db.close()
            raise apsw.CorruptError(str(found[:1]))
        db.execute(_CREATE)
        if version != SCHEMA:
            db.execute(f"PRAGMA user_version={SCHEMA}")
        return db

    # ------------------------------------------------------------ before the thread starts

    def routes(self, now: int) -> list[Known]:
        """Those that were seen lately; the others are forgotten."""
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

    def at_once(self, work: Work) -> Any:
        """In this thread, durable on return; only while no other one is at it."""
        assert not self._thread.is_alive()
        try:
            with self._db:
                return work(self._db)
        except (apsw.Error, OSError) as e:
            raise _cannot(self.path, e) from e

    # ------------------------------------------------------------ the writer

    def save(self, known: Known) -> None:
        with self._wake:
            self._owed[known.key] = known
            self._wake.notify()

    def forget(self, key: bytes) -> None:
        with self._wake:
            self._owed[key] = None
            self._wake.notify()

    async def write(self, work: Work) -> Any:
        """Returns when `work` is durable; raises what it raised, or Unavailable if the disk does not take it."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._wake:
            self._jobs.append(_Job(work, future, loop))
            self._wake.notify()
        return await future

    def close(self) -> None:
        """What is owed is written first, if that is possible."""
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
                    if (
                        not self._jobs and not self._closing
                    ):  # when everybody comes back at once, they are written together
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
        result: Any
        try:
            with self._db:
                result = job.work(self._db)
        except HoldfastError as e:
            result = e
        except (
            Exception
        ) as e:  # whatever it was: the writer goes on, or nobody is ever answered again
            self.failures += 1
            result = _cannot(self.path, e)

        def settle() -> None:
            if not job.future.done():
                if isinstance(result, Exception):
                    job.future.set_exception(result)
                else:
                    job.future.set_result(result)

        try:
            job.loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is gone: nobody waits any more
            pass


def _cannot(path: str, e: Exception) -> Unavailable:
    return Unavailable(
        f"cannot write {path}: {e}", "free disk space or make the directory writable"
    )
