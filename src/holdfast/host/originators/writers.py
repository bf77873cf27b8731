"""Who made a file what it is, for all sessions of this host (P3): the kernel's word on writes, given to `core/writers.py`, and answers for a path.

As root the kernel tells of every write, move, link and change of attributes on the file systems that sessions can write (host/fileevents.py); the process is looked up in the lineages
(host/lineage.py), which are caught up with first. `told` says whether that is so. Otherwise only what can be known without it (rule 6 of `core/writers.py`).

File systems are marked when a session begins, those that it can write. One that was unmounted lost its mark: what is known of it counts no more without proof. One that is mounted later is
marked when somebody asks for a file on it, or the next session begins; until then nothing is known of it. REST_S after the last session ended all marks are taken away: nobody is to be woken
by what the machine does for itself.

What is known is written down a moment after it changed, in a thread and in small pieces (no other thread may be held up by it): for each file with the change time by which the next host can
prove that nobody wrote since. What was written while there was no host is unknown.

A path is looked at in a thread of few (`LOOKERS` for each session), and for LOOK_S at most: a file system that does not answer makes its files unknown. While all of them wait for such a one, everything is unknown to
that session at once.
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
from typing import Any, Final, ParamSpec, TypeVar

from holdfast.core.activity import Activity
from holdfast.core.commands import CommandStarted, Effect, PromptShown
from holdfast.core.lineage import Cause, Member
from holdfast.core.originators import UNKNOWN, Shaped
from holdfast.core.writers import Author, Entry, Stamp, Table, guessed, shaped
from holdfast.host import fileevents, kept, paths, process
from holdfast.host.lineage import Kin
from holdfast.host.session import Session
from holdfast.host.threads import Share, Threads

SAVE_S: Final = 0.5  # after a change; later where that takes long:
SAVE_SHARE: Final = 20  # at most this part of the time is spent on it
SETTLE_AT_ONCE: Final = 256  # before the loop goes on with other things
SETTLE_MAX: Final = 4096  # before they are written
ROWS_AT_ONCE: Final = 128  # written between two breaths
BREATH_S: Final = 0.002
FILE: Final = "writers"
FILE_BYTES: Final = 16 << 20
REST_S: Final = 30.0
LOOKERS: Final = 2  # for one session
LOOK_S: Final = 2.0  # for all paths of one question
LEAVE_S: Final = 1.0  # for all file systems, when the host leaves
_STEADY: Final = time.CLOCK_BOOTTIME

P = ParamSpec("P")
T = TypeVar("T")


class Writers:
    """One per host, beside its `Kin`."""

    def __init__(self, kin: Kin, directory: str) -> None:
        """`directory`: of this home, where what is known is kept."""
        self.table = Table()
        self._kin, self._path = kin, f"{directory}/{FILE}"
        self._events: fileevents.Events | None = None
        self._marked: dict[
            str, tuple[bytes, str]
        ] = {}  # device -> how its keys begin, and a path to it
        self._tried: set[bytes] = (
            set()
        )  # file systems of files that were asked for, and that are not marked
        self.refused: dict[str, str] = {}  # mount points that could not be marked, and why
        self._sessions: dict[str, Session] = {}
        self._running: dict[int, Author] = {}  # without events: whose each process is
        self._orders: dict[str, Author] = {}  # ... and what each shell executes
        self._activity = Activity(time.time())
        self._opened = False
        self._behind = False  # not all was known when a mark was taken
        self._saving: asyncio.Handle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._save_s = SAVE_S
        self._pen = threading.Lock()
        self._threads = Threads("paths")
        self._tasks: set[asyncio.Task[None]] = set()
        kin.beside.append(self)

    @property
    def told(self) -> bool:
        """Whether the kernel tells who writes files, at least on the file systems that are not `refused`."""
        return self._events is not None and self._events.open and self._kin.told

    # ------------------------------------------------------------ sessions

    def open(self) -> None:
        self._loop, self._thread, self._opened = (
            asyncio.get_running_loop(),
            threading.get_ident(),
            True,
        )
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
        try:
            self._events = fileevents.Events(self._written, self._all_told, self._lost)
        except (OSError, AttributeError):  # AttributeError: a C library without it
            self._kin.on_change.append(self._happened)
            return
        self._kin.keeps_exited = True

    def begin(self, session: Session) -> None:
        self._wake()
        self.table.began(session.record.created)
        self._sessions[session.id] = session
        self._save_soon()
        if self._events is not None:
            for whose in (
                ("/proc/self", f"/proc/{session.record.root_pid}")
                if len(self._sessions) == 1
                else (f"/proc/{session.record.root_pid}",)
            ):
                self._mark_soon(session, whose)
        else:
            session.commands.listeners.append(lambda effects: self._ordered(session, effects))

    def end(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self.catch_up()
            for running in (
                *filter(None, (self._orders.pop(session.id, None),)),
                *(
                    self._running.pop(pid)
                    for pid, who in [*self._running.items()]
                    if who.session == session.id
                ),
            ):
                self._activity.ended(running, time.time())
            if not self._sessions:
                self._wake()
                self._resting = self._loop.call_later(REST_S, self._rest)

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
        if self._saving is not None:
            self._saving.cancel()
        if self._opened:
            self.catch_up()
            self._settle_now()
            self._write(self.table.save(), 0.0)
        if self._events is not None:
            self._events.close()
        for task in self._tasks:
            task.cancel()
        self._sessions.clear()
        self._threads.close()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------ file systems

    def _mark_soon(self, session: Session, whose: str) -> None:
        self._spawn(self._threads.do((Share(("mark", session.id), 1),), self._mark, whose))

    def _mark(self, whose: str) -> None:
        """Those that a process can write, by its mount table. In a thread: a mount point may lie behind another that does not answer."""
        events, root = self._events, "" if whose == "/proc/self" else f"{whose}/root"
        if events is None:
            return
        with contextlib.suppress(OSError):
            with open(f"{whose}/mountinfo", errors="surrogateescape") as table:
                mounts = fileevents.writable(table)
            self._on_loop(self._check_marks)
            for mount in mounts:
                if mount.device not in self._marked:
                    self._mark_one(events, mount, f"{root}{mount.point}")

    def _mark_one(self, events: fileevents.Events, mount: fileevents.Mount, path: str) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as e:
            self.refused[mount.point] = e.strerror or "cannot be opened"
            return
        try:
            if (
                mount.kind != "btrfs"
                and fileevents.device_name(os.fstat(fd).st_dev) != mount.device
            ):
                return  # something else is mounted over it
            events.mark(f"/proc/self/fd/{fd}")
            self._marked[mount.device] = (key := fileevents.key_of(fd) or b"")[:8], path
            self._tried.discard(key[:8])
            self.refused.pop(mount.point, None)
            if not key:
                self.refused[mount.point] = "its files have no handles"
        except OSError as e:
            self.refused[mount.point] = e.strerror or "cannot be marked"
        finally:
            os.close(fd)

    def _mark_more(self, session: Session, systems: set[bytes]) -> None:
        """What was mounted since its session began."""
        if self._events is not None and (
            new := systems - self._tried - {system for system, _ in [*self._marked.values()]}
        ):
            self._tried |= new
            self._mark_soon(session, f"/proc/{session.record.root_pid}")

    def _check_marks(self) -> None:
        """Whether each is still there: a file system that was unmounted took its mark with it."""
        if self._events is not None:
            there = self._events.marked()
            for device in [
                one for one in [*self._marked] if fileevents.device_number(one) not in there
            ]:
                self.table.lost_on(self._marked.pop(device)[0])

    # ------------------------------------------------------------ the kernel's word

    def catch_up(self) -> None:
        """All that was told up to now."""
        if self._events is not None:
            self._behind = not self._events.read() or self._behind

    def _written(self, events: list[fileevents.Event]) -> None:
        self._clock()
        doers = self._kin.doers({pid for _, pid, _ in events})
        authors = {
            pid: Author(session.id, cause)
            for pid, (session, cause) in doers.items()
            if not (self._behind and pid == session.commands.lineage.root)
        }
        table, wrote = self.table, self.table.wrote
        for mask, pid, key in events:
            if mask & fileevents.WRITES:
                wrote(key, authors.get(pid))
            elif mask & fileevents.CREATE:
                table.made(key, authors.get(pid))
            elif mask & fileevents.TOUCHES:
                table.touched(key, authors.get(pid))
            if mask & fileevents.DELETE_SELF:
                table.gone(key)
        if authors:
            self._save_soon()

    def _all_told(self) -> None:
        self._behind = False
        self.table.all_told()
        self._kin.forget_exited()

    def _lost(self) -> None:
        self.table.lost()
        if self._events is not None and not self._events.open:
            self._behind = self._kin.keeps_exited = False
            self._kin.forget_exited()

    # ------------------------------------------------------------ without it: who ran when

    def _happened(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if what == "started":
            self._running[pid] = who = Author(session.id, session.commands.lineage.of(pid))
            self._activity.began(who, time.time())
        elif (known := self._running.pop(pid, None)) is not None:
            self._activity.ended(known, time.time())

    def _ordered(self, session: Session, effects: list[Effect]) -> None:
        self._clock()
        for effect in effects:
            if (
                isinstance(effect, CommandStarted | PromptShown)
                and (before := self._orders.pop(session.id, None)) is not None
            ):
                self._activity.ended(before, time.time())
            if isinstance(effect, CommandStarted):
                self._orders[session.id] = who = Author(
                    session.id, session.commands.lineage.now or Cause(UNKNOWN, None)
                )
                self._activity.began(who, time.time())

    def _ran(self, moment: float) -> list[Author] | None:
        """Whose acts may have written something then: also those of processes that nobody saw begin, and of a session whose program tells nothing."""
        known = self._activity.at(moment)
        if known is None:
            return None
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

    def of(self, session: Session, path: str) -> Shaped | None:
        """Who shaped it, first of all; None: nobody in any session. Blocks: for a thread."""
        return next(iter(self.every(session, path)), None)

    def every(self, session: Session, path: str) -> tuple[Shaped, ...]:
        """Everybody who is known to have a hand in what stands there. Blocks: for a thread."""
        found = paths.look(session.record.root_pid, session.record.root_start, path)
        try:
            answer: tuple[Shaped, ...] = self._on_loop(
                lambda: self._judged(session, [(path, found)])
            )
        except TooLate:
            return (Shaped("file", path, UNKNOWN),)
        return answer

    def all(self, session: Session, names: Sequence[str]) -> tuple[Shaped, ...]:
        """The same for many at once."""
        found: dict[str, list[paths.Piece]] = {}
        paths.look_all(session.record.root_pid, session.record.root_start, names, found)
        try:
            answer: tuple[Shaped, ...] = self._on_loop(
                lambda: self._judged(
                    session, [(path, found.get(path, [paths.UNKNOWN])) for path in names]
                )
            )
        except TooLate:
            return tuple(Shaped("file", path, UNKNOWN) for path in names)
        return answer

    async def each(self, session: Session, names: Iterable[str]) -> tuple[Shaped, ...]:
        """The same for many, on the loop; what does not answer in LOOK_S is unknown, and so is what would have come after it."""
        wanted = [*dict.fromkeys(names)]
        if not wanted:
            return ()
        found: dict[str, list[paths.Piece]] = {}
        await self.looked(
            session,
            paths.look_all,
            session.record.root_pid,
            session.record.root_start,
            wanted,
            found,
        )
        return self._judged(session, [(path, found.get(path, [paths.UNKNOWN])) for path in wanted])

    async def looked(
        self, session: Session, look: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """What somebody found who looks at file systems; None: they did not answer in LOOK_S, or all who could look for this session still wait for one that does not."""
        try:
            return await asyncio.wait_for(
                self._threads.do((Share(session.id, LOOKERS),), look, *args, **kwargs), LOOK_S
            )
        except TimeoutError:
            return None

    def _judged(
        self, session: Session, looks: list[tuple[str, list[paths.Piece]]]
    ) -> tuple[Shaped, ...]:
        self._check_marks()
        self.catch_up()
        self._clock()
        self._mark_more(
            session,
            {
                piece.key[:8]
                for _, pieces in looks
                for piece in pieces[-1:]
                if piece.key is not None
            },
        )
        return tuple(
            dict.fromkeys(
                one
                for path, pieces in looks
                for piece in reversed(pieces)
                for one in self._piece(session, path, piece)
            )
        )

    def _clock(self) -> None:
        self.table.clock(time.time(), time.clock_gettime(_STEADY))

    def _piece(self, session: Session, path: str, piece: paths.Piece) -> tuple[Shaped, ...]:
        entry = self.table.entry(piece.key, piece.stamp) if piece.key is not None else None
        unknown = (Shaped("file", path, UNKNOWN),)
        if (
            piece.kind == "directory"
        ):  # what is in it comes and goes; who put it in the place of another counts
            return (
                ()
                if entry is None or not entry.hands
                else shaped(entry._replace(content=entry.hands[0], perhaps=()), session.id, path)
            )
        if piece.kind == "unknown" or self._behind:
            return unknown
        if entry is not None:
            return shaped(entry, session.id, path)
        if piece.ages and self.table.old(piece.stamp):
            return ()
        if self._events is not None:
            return unknown
        if not piece.ours and self._kin.told and not self._kin.raised:
            return ()
        return (
            guessed(self._ran(piece.stamp.changed / 1e9), session.id, path)
            if self._kin.told and piece.ages
            else unknown
        )

    def _on_loop(self, work: Callable[[], Any]) -> Any:
        if threading.get_ident() == self._thread:
            return work()
        answer: Future[Any] = Future()

        def do() -> None:
            try:
                answer.set_result(work())
            except BaseException as e:
                answer.set_exception(e)

        self._loop.call_soon_threadsafe(do)
        return answer.result(LOOK_S)

    # ------------------------------------------------------------ for the next host

    def _save_soon(self) -> None:
        if self._saving is None:
            self._saving = self._loop.call_later(self._save_s, lambda: self._spawn(self._save()))

    async def _save(self) -> None:
        began = time.monotonic()
        try:
            for _ in range(0, SETTLE_MAX, SETTLE_AT_ONCE):
                unsettled, now = self.table.unsettled(SETTLE_AT_ONCE), time.time_ns()
                if self._settle(unsettled, await self._stamped(unsettled), now) < SETTLE_AT_ONCE:
                    break
            rows = self.table.save()
            await asyncio.to_thread(self._write, rows, BREATH_S)
        finally:
            self._saving = None
            self._save_s = max(SAVE_S, SAVE_SHARE * (time.monotonic() - began))
        if self.table.unsettled(1):
            self._save_soon()

    def _settle_now(self) -> None:
        """On the loop, by a host that leaves: what does not answer soon stays unknown."""
        unsettled, now, stamps, deadline = (
            self.table.unsettled(SETTLE_MAX),
            time.time_ns(),
            dict[bytes, Stamp](),
            time.monotonic() + LEAVE_S,
        )
        for looking in [
            self._threads.pool.submit(self._stamps, *one) for one in self._wanted(unsettled)
        ]:
            with contextlib.suppress(TimeoutError):
                stamps |= looking.result(max(0.0, deadline - time.monotonic()))
        self._settle(unsettled, stamps, now)

    def _settle(
        self, unsettled: list[tuple[bytes, Entry]], stamps: dict[bytes, Stamp], now: int
    ) -> int:
        """How many could be. What was told meanwhile is newer than what was found."""
        self.catch_up()
        return (
            0
            if self._behind
            else sum(
                self.table.settled(key, entry, stamps.get(key), now) for key, entry in unsettled
            )
        )

    def _wanted(self, unsettled: list[tuple[bytes, Entry]]) -> list[tuple[bytes, str, list[bytes]]]:
        """Of each file system: how its keys begin, a path to it, and which of them are wanted."""
        found = [
            (system, path, [key for key, _ in unsettled if key.startswith(system)])
            for system, path in [*self._marked.values()]
        ]
        return [one for one in found if one[2]]

    async def _stamped(self, unsettled: list[tuple[bytes, Entry]]) -> dict[bytes, Stamp]:
        """A path to a file system may lead through another that does not answer: then only that one's files stay unknown."""
        found: dict[bytes, Stamp] = {}
        for system, path, keys in self._wanted(unsettled):
            with contextlib.suppress(TimeoutError):
                found |= await asyncio.wait_for(
                    self._threads.do(
                        (Share(("stamps", system), 1),), self._stamps, system, path, keys
                    ),
                    LOOK_S,
                )
        return found

    def _stamps(self, system: bytes, path: str, wanted: list[bytes]) -> dict[bytes, Stamp]:
        found: dict[bytes, Stamp] = {}
        with contextlib.suppress(OSError):
            mount = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if (fileevents.key_of(mount) or b"")[:8] == system:
                    found = {
                        key: stamp for key in wanted if (stamp := _stamp(mount, key)) is not None
                    }
            finally:
                os.close(mount)
        return found

    def _write(self, rows: Iterable[list[Any]], breath: float) -> None:
        def lines() -> Iterator[str]:
            yield json.dumps([process.boot_id(), self._kin.raised]) + "\n"
            for n, row in enumerate(rows):
                yield json.dumps(row) + "\n"
                if breath and not n % ROWS_AT_ONCE:
                    time.sleep(breath)

        with self._pen:
            kept.write(self._path, lines())

    def _restore(self) -> None:
        (boot, raised), *rows = (
            json.loads(line) for line in kept.read(self._path, FILE_BYTES).splitlines()
        )
        self._kin.raised = self._kin.raised or bool(raised)
        self.table.restore(rows, boot == process.boot_id())
        self._clock()


def _stamp(mount: int, key: bytes) -> Stamp | None:
    try:
        fd = fileevents.opened(mount, key)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        return Stamp(facts.st_ctime_ns, facts.st_size)
    finally:
        os.close(fd)
