"""Which act started which process, for all sessions of this host: the kernel's events and a look at /proc, given to `core/lineage.py`.

Where the kernel tells of forks (host/procevents.py), every process of a session is known from its first moment, however short it lives and wherever it moves. Where it does not,
or when events were lost, /proc is looked at when somebody asks, and what began unseen is unknown unless its parent says it (`told` says which of the two it is).

After a loss every session is looked at again: in a thread, one after the other, however much was lost meanwhile, with pauses as long as it takes: whoever starts processes faster than they
can be told must not keep the host from everybody else.

A look takes time, and what the kernel tells meanwhile is newer: whoever looks says so before (`looking`), and gives it back with what was found (`seen`).

Whoever is told of other doings of processes (host/writers.py) may hear of them after they have exited: those are kept until they are (`forget_exited`), if somebody asks for it.

What is known is written down a moment after it changed, for the next host; processes that began while there was none began unseen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from holdfast.core.interpreters import reads_orders
from holdfast.core.lineage import Cause, Member
from holdfast.host import kept, observe, process, procevents
from holdfast.host.heldup import HeldUp
from holdfast.host.session import Session
from holdfast.host.telling import anyway, tell
from holdfast.model.errors import Unavailable

SAVE_S: Final = 0.5  # after a change; later where that takes long:
SAVED_S: Final = 0.005  # between looks whether it is written
SAVE_SHARE: Final = 50  # at most this part of the time is spent on it
LOST_S: Final = 0.05  # after a loss, before it is looked again
LOST_SHARE: Final = 10  # at most this part of the time is spent on that
FILE: Final = "lineage"  # in the session's directory
FILE_BYTES: Final = 16 << 20
EXITED_KEPT: Final = 16_384

Changed = Callable[[Session, str, int, int | None, Member | None], None]
"""That a process of a session "started" or "exited", with its status if that is known."""


class Beside(Protocol):
    """Who is told of the same sessions at the same times, and whose events must be taken before a shell's marks, too."""

    def open(self) -> None: ...
    def begin(self, session: Session) -> None: ...
    def catch_up(self) -> None: ...
    def end(self, session: Session) -> None: ...
    def close(self) -> None: ...


class Kin:
    """One per host."""

    def __init__(self) -> None:
        self.held_up = HeldUp()
        self.on_change: list[Changed] = []
        self.beside: list[Beside] = []
        self.keeps_exited = False
        self.raised = False  # a process of a session goes on as another account, or may have while nobody looked
        self._gone: dict[int, tuple[Session, Member]] = {}  # exited, and not forgotten yet
        self._twice: set[int] = set()  # two processes had this pid since then
        self.on_exec: Callable[[int], None] = lambda pid: (
            None
        )  # a process of this machine runs another program now
        self._sessions: dict[str, Session] = {}
        self._owner: dict[int, Session] = {}
        self._events: procevents.Events | None = None
        self._saving: dict[str, asyncio.TimerHandle] = {}
        self._waiting: set[str] = set()  # sessions whose marks are waited for
        self._save_s = SAVE_S
        self._writing: set[str] = set()  # sessions whose file is being written
        self._pen = threading.Lock()
        self._missing = asyncio.Event()  # something was lost since the last look at everything
        self._searching: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Where the kernel refuses, it is done without; `doctor` says why."""
        with contextlib.suppress(OSError):
            self._events = procevents.Events(
                self._forked, self._exited, self._lost, lambda pid: self.on_exec(pid)
            )
            self._events.on_account = self._other_account
            self._searching = asyncio.get_running_loop().create_task(self._search())
        tell(other.open for other in self.beside)

    @property
    def events(self) -> procevents.Events | None:
        """The kernel's word; None where it refuses."""
        return self._events

    @property
    def told(self) -> bool:
        return self._events is not None and self._events.told

    # ------------------------------------------------------------ sessions

    def begin(self, session: Session) -> None:
        lineage = session.commands.lineage
        if session.ring.accepted:  # somebody has typed before this host came
            lineage.typists, lineage.opened = None, True
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError
        ):
            known = json.loads(kept.read(f"{session.memory}/{FILE}", FILE_BYTES))
            self.raised = True
            lineage.restore(known)
        session.commands.before_marks = self._before_marks
        self.held_up.begin(session)
        self.catch_up()
        self._sessions[session.id] = self._owner[lineage.root] = session
        self._take(session, _living(session), None, True)
        self.catch_up()  # what they have started since they were looked at, as their own
        tell((other.begin for other in self.beside), session)

    def looking(self, session: Session) -> frozenset[int]:
        """Before somebody reads all of its processes: who was there."""
        return frozenset(session.commands.lineage.members)

    def seen(
        self,
        session: Session,
        living: dict[int, tuple[int, int]],
        before: frozenset[int] | None = None,
        whole: bool = True,
    ) -> bool:
        """What was read of its processes, since `looking` gave `before`; `whole`: of all of them. Whether there were some that nobody saw begin: what those have started
        meanwhile was seen by nobody either. A look that comes back after the end says nothing."""
        self.catch_up()
        return self._sessions.get(session.id) is session and self._take(
            session, living, before, whole
        )

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
        self._owner.update(
            (pid, session) for pid in lineage.members if not (exited and pid == lineage.root)
        )
        self._save_soon(session)
        return bool(new)

    def end(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            self.held_up.end(session)
        tell((other.end for other in self.beside), session)
        for pid in [pid for pid, owner in self._owner.items() if owner is session]:
            del self._owner[pid]
        if (timer := self._saving.pop(session.id, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        tell(other.close for other in self.beside)
        if self._events is not None:
            self._events.close()
        if self._searching is not None:
            self._searching.cancel()
        for session in [*self._sessions.values()]:
            if session.id in self._saving or session.id in self._writing:
                lineage = session.commands.lineage
                lineage.started(_starts(lineage.unstarted()))
                self._write(session.memory, lineage.save())
            self.end(session)

    # ------------------------------------------------------------ the kernel's word

    def _before_marks(self) -> None:
        """What the shell did before it wrote them is known first."""
        tell((self.catch_up, *(other.catch_up for other in self.beside)))

    def catch_up(self) -> None:
        """What was started, before a shell's marks are taken or an exec is judged."""
        if self._events is not None and self._events.told:
            self._events.catch_up()

    def doers(self, pids: set[int]) -> dict[int, tuple[Session, Cause]]:
        """Of these processes, those of sessions, and on whose order they do what they do. Who belongs to none, or to two one after the other since `forget_exited`, is not in it.
        A fork that was lost leaves its process out; an exit that was lost is found before the pid can be used again."""
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
        self._gone.clear()
        self._twice.clear()

    def _forked(self, parent: int, child: int) -> None:
        if (before := self._owner.get(child)) is not None and not _same(
            before, child
        ):  # nobody told that it was gone
            self._is_gone(before, child, None, before.commands.lineage.exited(child))
        if child in self._gone:
            self._twice.add(child)
        session = self._owner.get(parent)
        if session is not None and session.commands.lineage.forked(
            parent, child, self._takes_orders(session)
        ):
            self._owner[child] = session
            self._save_soon(session)
            if session.commands.lineage.doubtful and session.id not in self._waiting:
                self._waiting.add(session.id)
                session.spawn(self._make_certain(session))
            self._tell(session, "started", child)

    def _takes_orders(self, session: Session) -> Callable[[int], bool]:
        """Whether a process has the terminal and does what it reads there. Of one whose words may hold up the loop it is believed."""

        def takes(pid: int) -> bool:
            found = process.read_stat(pid)
            if found is None or found.pgrp != found.tpgid:
                return False
            if self.held_up.slow(session):
                return reads_orders(found.comm, tuple)
            with self.held_up.reads(session):
                return reads_orders(found.comm, lambda: process.read_argv(pid))

        return takes

    async def _make_certain(self, session: Session) -> None:
        """The keeper's answer comes after the output that it had: then the shell's marks up to the question are known."""
        lineage = session.commands.lineage
        try:
            while asked := lineage.doubtful:
                with contextlib.suppress(Unavailable):
                    await session.marks_seen()
                lineage.certain(asked)
        finally:
            self._waiting.discard(session.id)

    def cause(self, session: Session, pid: int, parent: int) -> Cause:
        """Why a process is there that is about to execute something. Where the kernel does not tell of forks, it counts as started now."""
        lineage = session.commands.lineage
        if pid not in lineage.members and not self.told and self._owner.get(parent) is session:
            self._forked(parent, pid)
        return lineage.of(pid)

    def _exited(self, pid: int, status: int) -> None:
        if (session := self._owner.get(pid)) is None:
            return
        if self._events is not None and process.lives_on(pid):
            self._events.threads.add(pid)
            return
        self._is_gone(session, pid, status, session.commands.lineage.exited(pid))

    def _is_gone(self, session: Session, pid: int, status: int | None, was: Member | None) -> None:
        """`was`: what its lineage has forgotten of it; it forgets nothing of its root."""
        self._owner.pop(pid, None)
        if self._events is not None:
            self._events.threads.discard(pid)
        if (
            self.keeps_exited
            and (member := was or session.commands.lineage.member(pid)) is not None
        ):
            self._gone[pid] = session, member
            if len(self._gone) > EXITED_KEPT:
                del self._gone[next(iter(self._gone))]
        self._save_soon(session)
        self._tell(session, "exited", pid, status, was)

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
            for session in [*self._sessions.values()]:
                with anyway(f"a look at the processes of {session.id}"):
                    before = self.looking(session)
                    if self.seen(session, await asyncio.to_thread(_living, session), before):
                        self._missing.set()
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
        if session.id not in self._saving:
            self._saving[session.id] = session.loop.call_later(
                self._save_s, self._begin_save, session
            )

    async def saved(self, session: Session) -> None:
        """What is known now is written down when this returns: for what must mean the same to the next host."""
        while session.id in self._writing:
            await asyncio.sleep(SAVED_S)
        self._writing.add(session.id)
        await self._save(session)

    def _begin_save(self, session: Session) -> None:
        self._saving.pop(session.id, None)
        if session.id in self._writing:
            return self._save_soon(session)
        self._writing.add(session.id)
        session.spawn(self._save(session))

    async def _save(self, session: Session) -> None:
        """In a thread: thousands of processes take longer than the loop has."""
        try:
            began, lineage = time.monotonic(), session.commands.lineage
            lineage.started(await asyncio.to_thread(_starts, lineage.unstarted()))
            await asyncio.to_thread(self._write, session.memory, lineage.save())
            self._save_s = max(SAVE_S, SAVE_SHARE * (time.monotonic() - began))
        finally:
            self._writing.discard(session.id)

    def _write(self, directory: str, known: dict[str, Any]) -> None:
        """One that cannot be written costs what began since the last."""
        with self._pen:
            kept.write(f"{directory}/{FILE}", (json.dumps(known),))


def _same(session: Session, pid: int) -> bool:
    """Whether this process is one that was found by a look, before its beginning was told; not another that has its pid."""
    member = session.commands.lineage.member(pid)
    found = process.read_stat(pid) if member is not None and member.start else None
    return pid == session.commands.lineage.root or (
        found is not None and member is not None and found.start == member.start
    )


def _starts(pids: list[int]) -> dict[int, int]:
    return {pid: found.start for pid in pids if (found := process.read_stat(pid)) is not None}


def _living(session: Session) -> dict[int, tuple[int, int]]:
    return {
        one.pid: (one.start, one.ppid)
        for one in observe.descendants(session.keeper_pid, with_argv=False)
    }
