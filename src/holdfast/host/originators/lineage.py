"""Which act started which process, for all sessions of this host.

This module feeds `core/originators/lineage.py` with the kernel's events and with scans of /proc.
`told` says whether the kernel reports forks (host/processes/process_events.py). With reports, every
process of a session is known from the fork on, however short the process lives and wherever the
process moves. Without reports, or when events were lost, /proc is scanned on demand. A process that
started unseen then has an unknown cause, unless the parent's cause is known.

After a loss all sessions are scanned again in a thread, in sequence, with pauses in proportion to
the time a scan takes. A program that starts processes faster than the kernel can report must not
take the host's time from other sessions.

A scan takes time, and events that arrive meanwhile are newer. Before a scan, a caller therefore
takes the known processes from `looking`, and passes both to `seen`.

File events (host/originators/writers.py) may arrive after the writing process has exited. If
`keeps_exited` is set, exited processes are kept until `forget_exited`.

The lineages are saved a moment after a change, for the next host. Processes that start while no
host runs have an unknown cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from holdfast.core.originators.lineage import Cause, Member
from holdfast.core.shellcode.interpreters import reads_orders
from holdfast.host.processes import proc_scan, process, process_events
from holdfast.host.processes.loop_watchdog import HeldUp
from holdfast.host.runtime import handover_file
from holdfast.host.runtime.notify import log_errors, tell
from holdfast.host.runtime.saver import Saver
from holdfast.host.session.session import Session
from holdfast.model.errors import Unavailable

SAVE_SHARE: Final = 50  # at most this part of the time is spent on saving
LOST_S: Final = 0.05  # from a loss to the scan
LOST_SHARE: Final = 10  # a scan takes at most 1/LOST_SHARE of the time
FILE: Final = "lineage"  # in the session's directory
FILE_BYTES: Final = 16 << 20
EXITED_KEPT: Final = 16_384
CHAIN_MAX: Final = 256  # parents that are followed
REST_S: Final = 30.0  # after the last session ended
TICKS: Final = os.sysconf("SC_CLK_TCK")  # of the kernel's start times, in a second

Changed = Callable[[Session, str, int, int | None, Member | None], None]
"""A process of a session "started" or "exited": session, which, pid, wait status, old member."""


class SessionObserver(Protocol):
    """An observer of the same sessions, with events that must be read before a shell's marks."""

    def open(self) -> None: ...
    def begin(self, session: Session) -> None: ...
    def catch_up(self) -> None: ...
    def end(self, session: Session) -> None: ...
    def close(self) -> None: ...


class Lineages:
    """One per host."""

    def __init__(self, replace: Callable[[], None] = lambda: None) -> None:
        """`replace`: start the next host, because this one's loop hangs."""
        self.held_up = HeldUp(replace)
        self.on_change: list[Changed] = []
        self.observers: list[SessionObserver] = []
        self.keeps_exited = False
        # A process of a session changed its account, or may have while no host watched.
        self.raised = False
        self._gone: dict[int, tuple[Session, Member]] = {}  # exited, and still kept
        self._twice: set[int] = set()  # pids used by two processes since `forget_exited`
        self._on_exec: list[Callable[[int], None]] = []
        self._sessions: dict[str, Session] = {}
        self._owner: dict[int, Session] = {}
        self._events: process_events.Events | None = None
        self._told, self._heard, self._lost_before = False, 0, 0  # of subscriptions that are over
        self._resting: asyncio.TimerHandle | None = None
        self._savers: dict[str, Saver] = {}
        self._waiting: set[str] = set()  # ids of sessions with a wait for marks
        self._pen = threading.Lock()
        self._missing = asyncio.Event()  # events were lost since the last scan
        self._searching: asyncio.Task[None] | None = None

    def wire(
        self,
        observers: Sequence[SessionObserver],
        changed: Sequence[Changed],
        executed: Sequence[Callable[[int], None]] = (),
    ) -> None:
        """Connects the observers, once, before `open`. Observers are told in this order.

        `executed`: called when a process of a session has executed a new program.
        """
        self.observers, self.on_change, self._on_exec = [*observers], [*changed], [*executed]

    def open(self) -> None:
        """Finds out whether the kernel reports processes; if not, `doctor` says why."""
        if self._listen() is not None:
            self._stop_listening()
        tell(other.open for other in self.observers)

    @property
    def told(self) -> bool:
        """Whether the kernel reports processes; without a session: the last known answer."""
        return self._events.told if self._events is not None else self._told

    @property
    def heard(self) -> int:
        """Messages of the kernel so far."""
        return self._heard + (self._events.heard if self._events is not None else 0)

    @property
    def lost(self) -> int:
        """How often messages were lost so far."""
        return self._lost_before + (self._events.lost if self._events is not None else 0)

    def _listen(self) -> process_events.Events | None:
        """Subscribe to process events, if not yet done.

        The host is subscribed only while there are sessions, and REST_S longer: late file events of
        an ended session need the owner of a pid (host/originators/writers.py).
        """
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._events is None:
            with contextlib.suppress(OSError):
                self._events = process_events.Events(
                    self._forked, self._exited, self._lost, self._executed, self._other_account
                )
                self._searching = asyncio.get_running_loop().create_task(self._search())
        self._told = False
        return self._events

    def _stop_listening(self) -> None:
        self._resting = None
        if self._searching is not None:
            self._searching.cancel()
            self._searching = None
        if self._events is not None:
            self._told = self._events.told
            self._heard += self._events.heard
            self._lost_before += self._events.lost
            self._events.close()
            self._events = None
        self.forget_exited()

    @contextlib.contextmanager
    def _everything(self) -> Iterator[None]:
        with self._events.everything() if self._events is not None else contextlib.nullcontext():
            yield

    def _unwatch(self, pid: int, exited: bool = True) -> None:
        if self._events is not None and pid not in self._owner and pid not in self._gone:
            self._events.unwatch(pid, exited)

    # ------------------------------------------------------------ sessions

    def begin(self, session: Session) -> None:
        lineage = session.commands.lineage
        if session.ring.accepted:  # there was input before this host started
            lineage.typists, lineage.opened = None, True
        known: dict[str, Any] = {}
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError
        ):
            known = json.loads(
                handover_file.read(f"{session.host_only_directory}/{FILE}", FILE_BYTES)
            )
            self.raised = True
            lineage.restore(known)
        session.commands.before_marks = self._before_marks
        self.held_up.begin(session)
        self._listen()
        self.catch_up()
        with self._everything():
            self._sessions[session.id] = self._owner[lineage.root] = session
            self._savers[session.id] = Saver(lambda: self._save(session), session.spawn, SAVE_SHARE)
            self._take(session, living(session), None, True)
        if lineage.save() != known:
            self._savers[session.id].soon()
        tell((other.begin for other in self.observers), session)

    def looking(self, session: Session) -> frozenset[int]:
        """The known processes of a session. Call this before a scan, for `seen`."""
        return frozenset(session.commands.lineage.members)

    def seen(
        self,
        session: Session,
        living: dict[int, tuple[int, int]],
        before: frozenset[int] | None = None,
        whole: bool = True,
    ) -> bool:
        """Takes the result of a scan: pid -> (start, parent).

        `before` is from `looking`; `whole`: the scan covers all processes of the session. Returns
        whether the scan found processes that the kernel had not reported: children of these
        processes may be unreported too. A result that comes after the end of the session is
        ignored.
        """
        self.catch_up()
        if self._sessions.get(session.id) is not session:
            return False
        self._savers[session.id].soon()
        return self._take(session, living, before, whole)

    def _take(
        self,
        session: Session,
        living: dict[int, tuple[int, int]],
        before: frozenset[int] | None,
        whole: bool,
    ) -> bool:
        lineage = session.commands.lineage
        known = {pid: lineage.member(pid) for pid in lineage.members}
        new = lineage.found(living, before, whole)
        for pid, was in known.items():
            now = lineage.member(pid)
            if was is not None and (now is None or was.start not in (0, now.start)):
                self._is_gone(session, pid, None, was)
                if now is not None and self.keeps_exited:
                    self._twice.add(pid)
        exited = lineage.root not in self._owner
        living_members = [pid for pid in lineage.members if not (exited and pid == lineage.root)]
        self._owner.update(dict.fromkeys(living_members, session))
        if self._events is not None:
            self._events.watch(living_members)
        return bool(new)

    def end(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            self.held_up.end(session)
        tell((other.end for other in self.observers), session)
        for pid in [pid for pid, owner in self._owner.items() if owner is session]:
            del self._owner[pid]
            self._unwatch(pid, exited=False)
        if (saver := self._savers.pop(session.id, None)) is not None:
            saver.close()
        if not self._sessions and self._events is not None and self._resting is None:
            self._resting = session.loop.call_later(REST_S, self._stop_listening)

    def close(self) -> None:
        tell(other.close for other in self.observers)
        self._stop_listening()
        for session in [*self._sessions.values()]:
            if self._savers[session.id].unsaved:
                lineage = session.commands.lineage
                lineage.started(_starts(lineage.unstarted()))
                self._write(session.host_only_directory, lineage.save())
            self.end(session)

    # ------------------------------------------------------------ events of the kernel

    def _before_marks(self) -> None:
        """Reads all events up to now: the shell caused these events before the marks."""
        tell((self.catch_up, *(other.catch_up for other in self.observers)))

    def catch_up(self) -> None:
        """Reads pending events, before a shell's marks are processed or an exec is judged."""
        if self._events is not None and self._events.told:
            self._events.catch_up()

    def doers(self, pids: set[int]) -> dict[int, tuple[Session, Cause]]:
        """The session and the cause of each of these processes that belongs to a session.

        A pid that two processes had since `forget_exited` is left out. A process with a lost fork
        is left out too. A lost exit is found before the kernel reuses the pid.
        """
        self.catch_up()
        found = dict[int, tuple[Session, Cause]]()
        for pid in pids - self._twice if self.told else ():
            if (session := self._owner.get(pid)) is not None:
                found[pid] = (
                    session,
                    session.commands.lineage.doing(pid, None, self._takes_orders(session)),
                )
            elif (gone := self._gone.get(pid)) is not None:
                found[pid] = (
                    gone[0],
                    gone[0].commands.lineage.doing(pid, gone[1], self._takes_orders(gone[0])),
                )
        return found

    def forget_exited(self) -> None:
        gone, self._gone = self._gone, {}
        self._twice.clear()
        for pid in gone:
            self._unwatch(pid)

    def _forked(self, parent: int, child: int) -> None:
        # Was the exit of an older process with this pid lost?
        if (before := self._owner.get(child)) is not None and not _same(before, child):
            self._is_gone(before, child, None, before.commands.lineage.exited(child))
        if child in self._gone:
            self._twice.add(child)
        session = self._owner.get(parent)
        if session is not None and session.commands.lineage.forked(
            parent, child, self._takes_orders(session)
        ):
            self._owner[child] = session
            if self._events is not None:
                self._events.watch((child,))
            self._save_soon(session)
            if session.commands.lineage.doubtful and session.id not in self._waiting:
                self._waiting.add(session.id)
                session.spawn(self._make_certain(session))
            self._tell(session, "started", child)
        else:
            self._unwatch(child, exited=False)

    def _takes_orders(self, session: Session) -> Callable[[int], bool]:
        """A function: does this process read commands from the terminal?

        If reading the arguments may block the loop, every interpreter of the session is assumed to
        read commands.
        """

        def takes(pid: int) -> bool:
            found = process.read_stat(pid)
            if found is None or not _above_foreground(session, pid, found):
                return False
            if self.held_up.slow(session):
                return reads_orders(found.comm, tuple)
            with self.held_up.reads(session):
                return reads_orders(found.comm, lambda: process.read_argv(pid))

        return takes

    async def _make_certain(self, session: Session) -> None:
        """Waits for the shell's marks: the keeper answers after all output that came before."""
        lineage = session.commands.lineage
        try:
            while asked := lineage.doubtful:
                with contextlib.suppress(Unavailable):
                    await session.marks_seen()
                lineage.certain(asked)
        finally:
            self._waiting.discard(session.id)

    def behind(self, session: Session, pid: int) -> Cause:
        """The cause of an exec of this process, with every operator who had a part in it."""
        return session.commands.lineage.behind(pid, in_foreground)

    def cause(self, session: Session, pid: int, parent: int) -> Cause:
        """The cause of a process that waits at the exec gate.

        Where the kernel does not report forks, the process counts as forked now. A child of the
        shell that is older than the last entered line may be left from any earlier order, so its
        cause is unknown.
        """
        lineage = session.commands.lineage
        if pid not in lineage.members:
            if (
                not self.told
                and self._owner.get(parent) is session
                and not (parent == lineage.root and _older(pid, session.commands.entered))
            ):
                self._forked(parent, pid)
            if self._events is not None:  # the fork was lost; the exec is compared all the same
                self._events.watch((pid,))
        return self.behind(session, pid)

    def _exited(self, pid: int, status: int) -> None:
        if (session := self._owner.get(pid)) is None:
            return self._unwatch(pid)
        if self._events is not None and process.lives_on(pid):
            self._events.threads.add(pid)
            return
        self._is_gone(session, pid, status, session.commands.lineage.exited(pid))

    def _is_gone(self, session: Session, pid: int, status: int | None, was: Member | None) -> None:
        """`was`: the entry that the lineage dropped; None for the root, which stays."""
        self._owner.pop(pid, None)
        if self._events is not None:
            self._events.threads.discard(pid)
        if (
            self.keeps_exited
            and (member := was or session.commands.lineage.member(pid)) is not None
        ):
            self._gone[pid] = session, member
            if len(self._gone) > EXITED_KEPT:
                del self._gone[oldest := next(iter(self._gone))]
                self._unwatch(oldest)
        self._unwatch(pid)
        self._save_soon(session)
        self._tell(session, "exited", pid, status, was)

    def session_of(self, pid: int) -> Session | None:
        """The session of a living process."""
        return self._owner.get(pid)

    def _executed(self, pid: int) -> None:
        tell(self._on_exec, pid)

    def _other_account(self, pid: int) -> None:
        self.raised = self.raised or pid in self._owner

    def _lost(self) -> None:
        self.raised = True
        self._missing.set()

    async def _search(self) -> None:
        pause = LOST_S
        while True:
            await self._missing.wait()
            await asyncio.sleep(pause)
            self._missing.clear()
            began = time.monotonic()
            with self._everything():
                for session in [*self._sessions.values()]:
                    with log_errors(f"a scan of the processes of {session.id}"):
                        before = self.looking(session)
                        if self.seen(session, await asyncio.to_thread(living, session), before):
                            self._missing.set()
            if self._events is not None:
                self._events.sweep(lambda pid: pid in self._owner or pid in self._gone)
            pause = max(LOST_S, LOST_SHARE * (time.monotonic() - began))

    def _tell(
        self,
        session: Session,
        what: str,
        pid: int,
        status: int | None = None,
        was: Member | None = None,
    ) -> None:
        tell(self.on_change, session, what, pid, status, was)

    # ------------------------------------------------------------ for the next host

    def _save_soon(self, session: Session) -> None:
        if (saver := self._savers.get(session.id)) is not None:
            saver.soon()

    async def saved(self, session: Session) -> None:
        """Returns when the present state is written: the next host must know the same causes."""
        if (saver := self._savers.get(session.id)) is not None:
            await saver.now()

    async def _save(self, session: Session) -> None:
        """In a thread: thousands of processes take longer than the loop has."""
        lineage = session.commands.lineage
        lineage.started(await asyncio.to_thread(_starts, lineage.unstarted()))
        await asyncio.to_thread(self._write, session.host_only_directory, lineage.save())

    def _write(self, directory: str, known: dict[str, Any]) -> None:
        """If writing fails, the next host does not know the processes since the last save."""
        with self._pen:
            handover_file.write(f"{directory}/{FILE}", (json.dumps(known),))


def in_foreground(pid: int) -> bool:
    """Whether the process may read the terminal; True if it is gone."""
    found = process.read_stat(pid)
    return found is None or found.pgrp == found.tpgid


def _above_foreground(session: Session, pid: int, found: process.Stat) -> bool:
    """Whether the terminal's foreground is the group of this process, or of a program below it.

    A shell gives the terminal to each program that it starts, perhaps before the host reads of the
    fork. A foreground group whose first process is not known may be below too.
    """
    lineage, above = session.commands.lineage, found.tpgid
    if found.pgrp == above or (above > 0 and lineage.member(above) is None):
        return True
    for _ in range(CHAIN_MAX):
        if above == pid:
            return True
        if above <= 0 or (parent := lineage.parent_of(above)) is None:
            return False
        above = parent
    return True


def _older(pid: int, moment: float) -> bool:
    """Whether a process began before this moment, in seconds since boot; True if it is gone."""
    found = process.read_stat(pid)
    return found is None or (found.start + 1) / TICKS < moment


def _same(session: Session, pid: int) -> bool:
    """Whether the known process is the forked process: a scan found it before the event."""
    member = session.commands.lineage.member(pid)
    found = process.read_stat(pid) if member is not None and member.start else None
    return pid == session.commands.lineage.root or (
        found is not None and member is not None and found.start == member.start
    )


def _starts(pids: list[int]) -> dict[int, int]:
    return {pid: found.start for pid in pids if (found := process.read_stat(pid)) is not None}


def living(session: Session) -> dict[int, tuple[int, int]]:
    return {one.pid: (one.start, one.ppid) for one in proc_scan.of_session(session.keeper_pid)}
