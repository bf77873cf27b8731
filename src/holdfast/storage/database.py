"""A SQLite file that a single process opens and a single thread writes.

The library is apsw, because the interpreter's own SQLite may carry the WAL-reset bug: two
connections that write and checkpoint at once corrupt the file (fixed in 3.51.3). The process locks
the file for as long as the file is open. A damaged file, or a file that is not a database, is
renamed and never overwritten.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

import apsw

from holdfast.model.errors import HoldfastError, Unavailable

Work = Callable[[apsw.Connection], object]
"""Runs in the writer thread, inside a transaction. Its result goes to the caller that waits."""

T = TypeVar("T")
FREE_SPACE = "free disk space or make the directory writable"


class Database:
    """The base of a program's store: opening, and the answers of the writer thread `_work`."""

    SCHEMA: ClassVar[int]
    TABLES: ClassVar[str]  # SQL that creates missing tables

    def __init__(self, path: str) -> None:
        self.path = path
        self.failures = 0
        self.put_aside: str | None = None  # the new name of an unreadable file
        self._db = self._open()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ------------------------------------------------------------ for subclasses

    def _work(self) -> None:
        """The body of the writer thread."""
        raise NotImplementedError

    def _in_use(self) -> Unavailable:
        """The error when a different process has the file open."""
        raise NotImplementedError

    def _replaced(self, db: apsw.Connection) -> None:
        """Called with the new database after an unreadable file was put aside."""

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
                self._replaced(db)
                return db
        except apsw.BusyError as e:
            raise self._in_use() from e
        except (apsw.Error, OSError) as e:
            raise Unavailable(f"cannot open {self.path}: {e}", FREE_SPACE) from e

    def _try_open(self) -> apsw.Connection:
        old = os.umask(0o177)
        try:
            db = apsw.Connection(self.path)
        finally:
            os.umask(old)
        db.set_busy_timeout(2000)
        # The lock comes first: other connections are kept out only if WAL begins under the lock.
        # A person's sqlite3 is a connection of this kind, and may have the bug.
        db.execute(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"
        )
        version = number(db.execute("PRAGMA user_version"))
        if version > self.SCHEMA:
            db.close()
            raise Unavailable(
                f"{self.path} was written by a newer release (schema {version})", "upgrade holdfast"
            )
        if (found := db.execute("PRAGMA quick_check(1)").fetchall()) != [("ok",)]:
            db.close()
            raise apsw.CorruptError(str(found[:1]))
        db.execute(self.TABLES)
        if version != self.SCHEMA:
            db.execute(f"PRAGMA user_version={self.SCHEMA}")
        return db

    # ------------------------------------------------------------ answers

    def cannot_write(self, error: Exception) -> HoldfastError:
        return Unavailable(f"cannot write {self.path}: {error}", FREE_SPACE)


def settle(future: asyncio.Future[T], result: T | Exception) -> None:
    """Gives the result to a waiting coroutine; an exception is raised there.

    Called in the writer thread.
    """

    def do() -> None:
        if not future.done():
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    try:
        future.get_loop().call_soon_threadsafe(do)
    except RuntimeError:  # the loop is closed: no coroutine waits any more
        pass


def number(cursor: apsw.Cursor) -> int:
    """The number in the first column of the first row."""
    return int(str(next(iter(cursor))[0]))
