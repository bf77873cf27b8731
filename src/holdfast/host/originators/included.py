"""Reports of the kernel about opened files that an operator's program wrote (P3).

Each file with a known author is watched for opens, once the machine knows several operators. An
open by a program of another operator's act is noted for that act (core/originators/included.py).
The reports have a queue of their own: the queue of writes has marks on whole file systems, and
opens of all files there would be too many.

Not noticed: the oldest files, if operators wrote more than WATCHED_MAX; an open in the moment
between the write and the mark; a file on a file system that opens no files by handle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

from holdfast.core.originators.lineage import UNKNOWN as UNKNOWN_CAUSE
from holdfast.core.originators.lineage import Cause
from holdfast.core.originators.originators import UNKNOWN, Shaped, names
from holdfast.core.originators.writers import Table, shaped
from holdfast.core.record.record import host_fact
from holdfast.host.originators import file_events
from holdfast.host.originators.lineage import Lineages
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal

WATCHED_MAX = 16_384  # watched files; a mark keeps the kernel's record of the file in memory


class _Opens(file_events.Events):
    """The queue of opens, which is read after the queue of writes: an author may have changed."""

    written: Callable[[], None]

    def _read_some(self) -> None:
        self._timer = None
        self.written()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)


class Included:
    """One per host that gets reports of writes."""

    def __init__(
        self,
        table: Table,
        lineages: Lineages,
        journal: Journal | None,
        mounts: Callable[[], Iterable[tuple[bytes, str]]],
        written: Callable[[], None],
    ) -> None:
        """`mounts`: first bytes of the keys of a file system, and a path to it.

        `written`: reads all reported writes, then calls `read`. Raises OSError if the kernel
        refuses.
        """
        self._table, self._lineages, self._journal = table, lineages, journal
        self._mounts = mounts
        self._watched: dict[bytes, None] = {}
        self._events = _Opens(self._opened, lambda: None, lambda: None)
        self._events.written = written

    def watch(self, keys: Iterable[bytes]) -> None:
        """Reports opens of these files from now on."""
        new = [key for key in keys if key not in self._watched]
        if len(self._watched) + len(new) > WATCHED_MAX:
            self._events.forget_files()
            self._watched.clear()
            new = new[-WATCHED_MAX:]
        self._watched.update(dict.fromkeys(new))
        for system, path in self._mounts() if new else ():
            wanted = [key for key in new if key.startswith(system)]
            with contextlib.suppress(OSError), _opened_at(path, wanted) as mount:
                for key in wanted:
                    with contextlib.suppress(OSError):
                        file = file_events.opened(mount, key)
                        try:
                            self._events.watch(file)
                        finally:
                            os.close(file)

    def read(self) -> None:
        """Processes all opens that the kernel has reported, after all writes that it reported."""
        self._events.read()

    def close(self) -> None:
        self._events.close()

    def _opened(self, events: list[file_events.Event]) -> None:
        doers = self._lineages.doers({pid for _, pid, _ in events})
        found: dict[tuple[str, int], tuple[Session, Cause, dict[Shaped, None]]] = {}
        for _, pid, key in events:
            session, cause = doers.get(pid, (None, UNKNOWN_CAUSE))
            if session is None or cause.act is None:
                continue
            if foreign := self._foreign(session, cause, key):
                items = found.setdefault((session.id, cause.act), (session, cause, {}))[2]
                items.update(dict.fromkeys(foreign))
        for (_, act), (session, cause, items) in found.items():
            if new := session.commands.included.note(act, items):
                self._record(session, cause, new)

    def _foreign(self, session: Session, cause: Cause, key: bytes) -> list[Shaped]:
        """The authors of the file, without the actor of the act and without unknown ones.

        The shell opens its own snapshots to write them (host/originators/snapshot_guard.py).
        """
        entry = self._table.known(key)
        if entry is None or not (authors := shaped(entry, session.id, "")):
            return []
        others = [one for one in authors if one.actor not in (cause.actor, UNKNOWN)]
        path = self._path(key) if others else ""
        if os.path.dirname(path) == str(session.directories.writable):
            return []
        return [one._replace(name=path) for one in others]

    def _path(self, key: bytes) -> str:
        found = file_events.found(self._mounts(), key)
        return found[0] if found is not None else "(removed)"

    def _record(self, session: Session, cause: Cause, items: tuple[Shaped, ...]) -> None:
        if self._journal is None:
            return
        facts = {"of": cause.ref(session.ref), "shaped": [one.show(session.ref) for one in items]}
        self._journal.post(
            host_fact(
                session.id,
                session.record.epoch,
                "included",
                cause.actor,
                "host",
                act=cause.act,
                originators=names(items, cause.actor),
                facts=facts,
            )
        )


@contextlib.contextmanager
def _opened_at(path: str, wanted: list[bytes]) -> Iterator[int]:
    """A descriptor on the file system of `path`, if any file there is wanted."""
    if not wanted:
        raise FileNotFoundError
    mount = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield mount
    finally:
        os.close(mount)
