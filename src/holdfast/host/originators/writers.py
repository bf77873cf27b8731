"""The authors of files, for all sessions of this host (P3).

As root, the kernel reports every write, move, link and change of attributes on the file systems
that sessions can write (host/originators/file_events.py). The writing process is looked up in the
lineages (host/originators/lineage.py), which read pending events first.
`core/originators/writers.py` keeps the result. `kernel_reports` says whether this works. Otherwise
authors are only guessed (rule 6 of `core/originators/writers.py`).

When a session begins, the file systems that the session can write are marked. Unmounting a file
system removes the mark: the known authors of the files there then need proof. A file system that is
mounted later is marked when a caller asks for a file there, or when the next session begins. Until
then the authors of those files are unknown. REST_S after the last session ended all marks are
removed, so that the machine's own work does not wake the host.

The table is saved a moment after a change, in a thread and in small pieces, to leave the other
threads the interpreter lock. Each file is saved with the change time, so that the next host can
prove that no process wrote the file since. Files written while no host ran have an unknown author.

A path is resolved in a thread, for LOOK_S at most, with LOOKERS threads per session. If a file
system does not answer, the authors of the files there are unknown. While all threads of a session
are blocked that way, all authors are unknown for that session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from itertools import islice
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.core.originators.activity import Activity, InputGivers
from holdfast.core.originators.lineage import Cause, Member
from holdfast.core.originators.originators import UNKNOWN, Shaped
from holdfast.core.originators.writers import Author, Entry, Stamp, Table, guessed, shaped
from holdfast.core.session.shell_marks import CommandStarted, Effect, PromptShown
from holdfast.host.originators import file_events, path_writers
from holdfast.host.originators.included import Included
from holdfast.host.originators.lineage import Lineages
from holdfast.host.originators.path_writers import Piece
from holdfast.host.originators.unreported import Unreported
from holdfast.host.processes import process
from holdfast.host.runtime import filesystems, handover_file
from holdfast.host.runtime.filesystems import Mount
from holdfast.host.runtime.notify import tell
from holdfast.host.runtime.saver import Saver
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.runtime.threads import Quota, Threads
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal

MOUNTS_MAX: Final = 512
SAVE_SHARE: Final = 20  # at most this part of the time is spent on saving
SETTLE_AT_ONCE: Final = 256  # files before the loop goes on with other work
SETTLE_MAX: Final = 4096  # files before the table is saved
ROWS_AT_ONCE: Final = 128  # written between two pauses
PAUSE_S: Final = 0.002
FILE: Final = "writers"
FILE_BYTES: Final = 16 << 20
REST_S: Final = 30.0
LOOKERS: Final = 2  # threads for one session
LOOK_S: Final = 2.0  # for all paths of one question
LEAVE_S: Final = 1.0  # for all file systems, when the host ends
_STEADY_CLOCK: Final = time.CLOCK_BOOTTIME

P = ParamSpec("P")
T = TypeVar("T")
Observed = Callable[[dict[int, Author], list[file_events.Event]], None]


class Writers:
    """One per host."""

    def __init__(
        self,
        lineages: Lineages,
        directory: str,
        operators: Callable[[], Sequence[str]] = tuple,
        journal: Journal | None = None,
    ) -> None:
        """`directory`: where the table is saved for the next host.

        `operators`: known here. With several of them, an included file may be another's.
        """
        self._operators, self._journal = operators, journal
        self._included: Included | None = None
        # Called with the authors of known processes, by pid, and all reported events.
        self.on_events: list[Observed] = []
        self.table = Table()
        self.lineages = self._lineages = lineages
        self._path = f"{directory}/{FILE}"
        self._events: file_events.Events | None = None
        # device -> the first bytes of the keys of all files there, and a path to the file system
        self._marked: dict[str, tuple[bytes, str]] = {}
        # Unmarked file systems (first bytes of keys) that we already tried to mark
        self._tried: set[bytes] = set()
        self.refused: dict[str, str] = {}  # mount points that could not be marked, and why
        self._sessions: dict[str, Session] = {}
        self._running: dict[int, Author] = {}  # without file events: the author of each process
        self._orders: dict[str, Author] = {}  # ... and of the command that each shell executes
        self._activity = Activity(time.time())
        self._inputs = InputGivers(time.time())
        self._unreported = Unreported(self._activity)
        self._opened = False
        self._nameless = 0  # how often a write had no author, because its shell was ahead
        self._behind = False  # a shell's mark was processed while file events were still pending
        self._resting: asyncio.TimerHandle | None = None
        self._pen = threading.Lock()
        self._threads = Threads("paths")
        self._tasks = Tasks("authors of files")
        self._saver = Saver(self._save, self._tasks.spawn, SAVE_SHARE)

    @property
    def silent(self) -> bool:
        """Whether the kernel reports no write and no open at all."""
        return self._events is None

    @property
    def kernel_reports(self) -> bool:
        """Whether the kernel reports who writes files, except on file systems in `refused`."""
        return self._events is not None and self._events.open and self._lineages.told

    @property
    def gaps(self) -> int:
        """How often so far a write of a session may have been missed."""
        return self._nameless + (self._events.lost if self._events is not None else 0)

    @property
    def behind(self) -> bool:
        """Whether reported events are still to be read, although `catch_up` was called."""
        return self._behind

    # ------------------------------------------------------------ sessions

    def open(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._opened = True
        with contextlib.suppress(
            OSError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            OverflowError,
            RecursionError,
            StopIteration,
        ):
            self._restore()
        # AttributeError: a C library without fanotify
        with contextlib.suppress(OSError, AttributeError):
            self._events = file_events.Events(self._written, self._all_read, self._lost)
            self._lineages.keeps_exited = True
            self._included = Included(
                self.table, self._lineages, self._journal, self.mounts, self.catch_up
            )
        self._watches = False  # all known files are watched for opens

    def begin(self, session: Session) -> None:
        self._wake()
        self.table.began(session.record.created)
        self._sessions[session.id] = session
        self._inputs.began(session.id, session.commands.lineage.inputs_of)
        self._saver.soon()
        if self._events is not None:
            if len(self._sessions) == 1:
                self._mark_soon(session, "/proc/self")
            self._mark_soon(session, f"/proc/{session.record.root_pid}")
        else:
            self._unreported.begin(session, time.time())
            session.commands.listeners.append(lambda effects: self._shell_marks(session, effects))

    def forget_acts(self, session: str) -> None:
        self.table.forget_acts(session)

    def end(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._inputs.ended(session.id)
            self._unreported.end(session, time.time())
            self.catch_up()
            for running in (
                *filter(None, (self._orders.pop(session.id, None),)),
                *(
                    self._running.pop(pid)
                    for pid, author in [*self._running.items()]
                    if author.session == session.id
                ),
            ):
                self._activity.ended(running, time.time())
            if not self._sessions:
                self._wake()
                self._resting = self._loop.call_later(REST_S, self._rest)

    async def provided(self, paths: Sequence[str]) -> None:
        """Note files that this host wrote for a session that has no program yet."""
        found = await asyncio.to_thread(path_writers.identified, paths)
        self.catch_up()  # the kernel has reported these writes too
        if not self._behind:
            for key, stamp in found:
                self.table.provided(key, stamp)

    def uploaded(
        self, session: Session, cause: Cause, key: bytes, stamp: Stamp, moved: bool
    ) -> None:
        """Note a file that an operator wrote or moved through the host, not by a process."""
        self.catch_up()  # the kernel has reported this write too, by a process of no session
        author = Author(session.id, cause)
        if moved:
            self.table.touched(key, author)
        elif self._events is not None:
            self.table.uploaded(key, author)
        else:
            self.table.provided(key, stamp, author)
        self._saver.soon()
        self._watch([key])

    def _wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()

    def _rest(self) -> None:
        if not self._sessions and self._events is not None and self._marked:
            self.catch_up()
            self._events.unmark()
            self._marked.clear()
            self._tried.clear()
            self.table.lost()

    def close(self) -> None:
        self._wake()
        self._saver.close()
        if self._opened:
            self.catch_up()
            self._settle_now()
            self._write(self.table.save(), self._inputs.save(), 0.0)
        if self._events is not None:
            self._events.close()
        if self._included is not None:
            self._included.close()
        self._tasks.cancel()
        self._sessions.clear()
        self._threads.close()

    # ------------------------------------------------------------ file systems

    def _mark_soon(self, session: Session, proc: str) -> None:
        self._tasks.spawn(self._threads.do((Quota(("mark", session.id), 1),), self._mark, proc))

    def _mark(self, proc: str) -> None:
        """Mark the file systems that a process can write; `proc`: the process's /proc directory.

        In a thread: a mount point may lie behind a file system that does not answer.
        """
        events, root = self._events, "" if proc == "/proc/self" else f"{proc}/root"
        if events is None:
            return
        with contextlib.suppress(OSError):
            with open(f"{proc}/mountinfo", errors="surrogateescape") as table:
                mounts = writable(table)
            self.on_loop(self._check_marks)
            for mount in mounts:
                if mount.device not in self._marked:
                    self._mark_one(events, mount, f"{root}{mount.point}")

    def mounts(self) -> list[tuple[bytes, str]]:
        """The marked file systems: first bytes of the keys of all files there, and a path.

        A copy: threads add to them (`_mark`).
        """
        return list(self._marked.values())

    def _mark_one(self, events: file_events.Events, mount: Mount, path: str) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as e:
            self.refused[mount.point] = e.strerror or "cannot be opened"
            return
        try:
            if (
                mount.kind != "btrfs"
                and file_events.device_name(os.fstat(fd).st_dev) != mount.device
            ):
                return  # a later mount covers this mount
            events.mark(f"/proc/self/fd/{fd}")
            self._marked[mount.device] = (key := file_events.key_of(fd) or b"")[:8], path
            self._tried.discard(key[:8])
            self.refused.pop(mount.point, None)
            if not key:
                self.refused[mount.point] = "its files have no handles"
        except OSError as e:
            self.refused[mount.point] = e.strerror or "cannot be marked"
        finally:
            os.close(fd)

    def _mark_more(self, session: Session, systems: set[bytes]) -> None:
        """Mark file systems that were mounted since the session began."""
        if self._events is not None and (
            new := systems - self._tried - {system for system, _ in [*self._marked.values()]}
        ):
            self._tried |= new
            self._mark_soon(session, f"/proc/{session.record.root_pid}")

    def _check_marks(self) -> None:
        """Find marks that are gone because the file system was unmounted."""
        if self._events is not None:
            there = self._events.marked()
            for device in [
                one for one in [*self._marked] if file_events.device_number(one) not in there
            ]:
                self.table.lost_on(self._marked.pop(device)[0])

    # ------------------------------------------------------------ file events

    def catch_up(self) -> None:
        """Read all file events that the kernel has reported up to now."""
        if self._events is not None:
            self._behind = not self._events.read() or self._behind

    def _written(self, events: list[file_events.Event]) -> None:
        self._clock()
        doers = self._lineages.doers({pid for _, pid, _ in events})
        authors = {
            pid: Author(session.id, cause)
            for pid, (session, cause) in doers.items()
            if not (self._behind and pid == session.commands.lineage.root)
        }
        self._nameless += len(authors) < len(doers)
        table, wrote = self.table, self.table.wrote
        for mask, pid, key in events:
            if mask & file_events.WRITES:
                wrote(key, authors.get(pid))
            elif mask & file_events.CREATE:
                table.made(key, authors.get(pid))
            elif mask & file_events.TOUCHES:
                table.touched(key, authors.get(pid))
            if mask & file_events.DELETE_SELF:
                table.gone(key)
        tell(self.on_events, authors, events)
        if authors:
            self._saver.soon()
            self._watch([key for mask, pid, key in events if pid in authors])

    def _watch(self, keys: list[bytes]) -> None:
        """Watches files of operators for opens, if there are several operators."""
        if self._included is not None and len(self._operators()) > 1:
            self._included.watch(keys if self._watches else self.table.keys())
            self._watches = True

    def _all_read(self) -> None:
        self._behind = False
        self.table.all_told()
        if self._included is not None:
            self._included.read()
        self._lineages.forget_exited()

    def _lost(self) -> None:
        self.table.lost()
        if self._events is not None and not self._events.open:
            self._behind = self._lineages.keeps_exited = False
            self._lineages.forget_exited()

    # ------------------------------------------------------------ without file events: who ran when

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if self._events is not None:
            return
        if what == "started":
            self._running[pid] = author = Author(session.id, session.commands.lineage.of(pid))
            self._activity.began(author, time.time())
        elif (known := self._running.pop(pid, None)) is not None:
            self._activity.ended(known, time.time())

    def _shell_marks(self, session: Session, effects: list[Effect]) -> None:
        self._clock()
        for effect in effects:
            if isinstance(effect, PromptShown):
                self._unreported.prompt(session, time.time(), self._lineages.told)
            if (
                isinstance(effect, CommandStarted | PromptShown)
                and (before := self._orders.pop(session.id, None)) is not None
            ):
                self._activity.ended(before, time.time())
            if isinstance(effect, CommandStarted):
                self._orders[session.id] = author = Author(
                    session.id, session.commands.lineage.now or Cause(UNKNOWN, None)
                )
                self._activity.began(author, time.time())
                self._unreported.started(session, time.time())

    def _running_at(self, moment: float) -> list[Author] | None:
        """The authors that may have written a file then; None: not known any more.

        Includes the authors of processes that started unreported, and of sessions with a program
        that sends no marks.
        """
        known = self._activity.at(moment)
        if known is None or not self._lineages.told:
            return None if known is None else [*known]
        lineages = [
            (one.id, one.commands.lineage, one.commands.kind is not None)
            for one in self._sessions.values()
        ]
        return [
            *known,
            *(
                Author(id, lineage.of(pid))
                for id, lineage, shell in lineages
                for pid in lineage.members
                if pid not in self._running and not (shell and pid == lineage.root)
            ),
        ]

    # ------------------------------------------------------------ answers

    def authors_blocking(self, session: Session, names: Sequence[str]) -> tuple[Shaped, ...]:
        """All known authors of these files and of links to the files. Blocks: for a thread."""
        found: dict[str, list[Piece]] = {}
        record = session.record
        path_writers.pieces_of_all(record.root_pid, record.root_start, names, found)
        paths = [(path, found.get(path, [path_writers.UNKNOWN])) for path in names]
        try:
            return self.on_loop(lambda: self._judged(session, paths))
        except TooLate:
            return tuple(Shaped("file", path, UNKNOWN) for path in names)

    async def authors(self, session: Session, names: Iterable[str]) -> tuple[Shaped, ...]:
        """The same, on the loop. A file that is not found within LOOK_S has an unknown author."""
        wanted = [*dict.fromkeys(names)]
        if not wanted:
            return ()
        found: dict[str, list[Piece]] = {}
        record, look = session.record, path_writers.pieces_of_all
        await self.in_thread(session, look, record.root_pid, record.root_start, wanted, found)
        return self._judged(
            session, [(path, found.get(path, [path_writers.UNKNOWN])) for path in wanted]
        )

    async def in_thread(
        self, session: Session, look: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """The result of a function that asks file systems; None without an answer in LOOK_S.

        Also None if all threads for this session are still blocked by earlier calls.
        """
        try:
            return await asyncio.wait_for(
                self._threads.do((Quota(session.id, LOOKERS),), look, *args, **kwargs), LOOK_S
            )
        except TimeoutError:
            return None

    def _judged(self, session: Session, paths: list[tuple[str, list[Piece]]]) -> tuple[Shaped, ...]:
        self._check_marks()
        self.catch_up()
        if not self._watches:
            self._watch([])
        self._clock()
        files = [pieces[-1].key for _, pieces in paths if pieces]
        self._mark_more(session, {key[:8] for key in files if key is not None})
        return tuple(
            dict.fromkeys(
                one
                for path, pieces in paths
                for piece in reversed(pieces)
                for one in self._authors_of_piece(session, path, piece)
            )
        )

    def _clock(self) -> None:
        self.table.clock(time.time(), time.clock_gettime(_STEADY_CLOCK))

    def _authors_of_piece(self, session: Session, path: str, piece: Piece) -> tuple[Shaped, ...]:
        entry = self.table.entry(piece.key, piece.stamp) if piece.key is not None else None
        unknown = (Shaped("file", path, UNKNOWN),)
        if piece.kind == "directory":
            # Entries come and go. Only an operator that moved the directory there counts.
            if entry is None or not entry.hands:
                return ()
            return shaped(entry._replace(content=entry.hands[0], perhaps=()), session.id, path)
        if piece.kind == "unknown" or self._behind:
            return unknown
        if entry is not None:
            return shaped(entry, session.id, path)
        # A directory changes with each entry; the files in it have authors of their own.
        if piece.kind == "folder" or (piece.ages and self.table.old(piece.stamp)):
            return ()
        if self._events is not None:
            return unknown
        if not piece.ours and self._lineages.told and not self._lineages.raised:
            return ()
        if not piece.ages:
            return unknown
        return self.guess(session, path, piece.stamp.changed / 1e9)

    def alone(self) -> set[str]:
        """The only operator that ever gave input here; empty if there are several."""
        return {one.cause.actor for one in self._inputs.alone_at(time.time()) or ()}

    def guess(self, session: Session, path: str, changed: float) -> tuple[Shaped, ...]:
        """The author of an unreported change at that time."""
        found = guessed(self._running_at(changed), session.id, path)
        if found != (Shaped("file", path, UNKNOWN),):
            return found
        return guessed(self._inputs.alone_at(changed), session.id, path)

    def on_loop(self, work: Callable[[], T]) -> T:
        if threading.get_ident() == self._thread:
            return work()
        answer: Future[T] = Future()

        def do() -> None:
            try:
                answer.set_result(work())
            except BaseException as e:
                answer.set_exception(e)

        self._loop.call_soon_threadsafe(do)
        return answer.result(LOOK_S)

    # ------------------------------------------------------------ for the next host

    async def _save(self) -> None:
        for _ in range(0, SETTLE_MAX, SETTLE_AT_ONCE):
            unsettled, now = self.table.unsettled(SETTLE_AT_ONCE), time.time_ns()
            if self._settle(unsettled, await self._stamped(unsettled), now) < SETTLE_AT_ONCE:
                break
        rows = self.table.save()
        await asyncio.to_thread(self._write, rows, self._inputs.save(), PAUSE_S)
        if self.table.unsettled(1):
            self._saver.soon()

    def _settle_now(self) -> None:
        """Called on the loop when the host ends. Leaves out file systems that do not answer."""
        unsettled, now = self.table.unsettled(SETTLE_MAX), time.time_ns()
        stamps, deadline = dict[bytes, Stamp](), time.monotonic() + LEAVE_S
        for looking in [
            self._threads.pool.submit(self._stamps, *one) for one in self._wanted(unsettled)
        ]:
            with contextlib.suppress(TimeoutError):
                stamps |= looking.result(max(0.0, deadline - time.monotonic()))
        self._settle(unsettled, stamps, now)

    def _settle(
        self, unsettled: list[tuple[bytes, Entry]], stamps: dict[bytes, Stamp], now: int
    ) -> int:
        """Settle entries by change times; returns how many. Newer events take precedence."""
        self.catch_up()
        if self._behind:
            return 0
        return sum(self.table.settled(key, entry, stamps.get(key), now) for key, entry in unsettled)

    def _wanted(self, unsettled: list[tuple[bytes, Entry]]) -> list[tuple[bytes, str, list[bytes]]]:
        """For each file system: the first bytes of the keys, a path, and the wanted keys."""
        found = [
            (system, path, [key for key, _ in unsettled if key.startswith(system)])
            for system, path in [*self._marked.values()]
        ]
        return [one for one in found if one[2]]

    async def _stamped(self, unsettled: list[tuple[bytes, Entry]]) -> dict[bytes, Stamp]:
        """The change times of files, except on file systems that do not answer."""
        found: dict[bytes, Stamp] = {}
        for system, path, keys in self._wanted(unsettled):
            with contextlib.suppress(TimeoutError):
                found |= await asyncio.wait_for(
                    self._threads.do(
                        (Quota(("stamps", system), 1),), self._stamps, system, path, keys
                    ),
                    LOOK_S,
                )
        return found

    def _stamps(self, system: bytes, path: str, wanted: list[bytes]) -> dict[bytes, Stamp]:
        found: dict[bytes, Stamp] = {}
        with contextlib.suppress(OSError):
            mount = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if (file_events.key_of(mount) or b"")[:8] == system:
                    found = {
                        key: stamp
                        for key in wanted
                        if (stamp := path_writers.stamp(mount, key)) is not None
                    }
            finally:
                os.close(mount)
        return found

    def _write(self, rows: Iterable[list[Any]], inputs: list[Any], pause: float) -> None:
        def lines() -> Iterator[str]:
            yield json.dumps([process.boot_id(), self._lineages.raised, inputs]) + "\n"
            for n, row in enumerate(rows):
                yield json.dumps(row) + "\n"
                if pause and not n % ROWS_AT_ONCE:
                    time.sleep(pause)

        with self._pen:
            handover_file.write(self._path, lines())

    def _restore(self) -> None:
        (boot, raised, *inputs), *rows = (
            json.loads(line) for line in handover_file.read(self._path, FILE_BYTES).splitlines()
        )
        self._lineages.raised = self._lineages.raised or bool(raised)
        if inputs:
            self._inputs.restore(*inputs)
        self.table.restore(rows, boot == process.boot_id())
        self._clock()


def writable(lines: Iterable[str]) -> list[Mount]:
    """The local file systems of a mount table that can be written.

    Each mount point of a file system is listed, since a later mount may cover the first.
    """
    found = (m for m in filesystems.mounts(lines) if m.writable and m.kind in filesystems.LOCAL)
    return [*islice(found, MOUNTS_MAX)]
