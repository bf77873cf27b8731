"""Which act started which process, for all sessions of this host: the kernel's events and a look at /proc, given to `core/lineage.py`.

Where the kernel tells of forks (host/procevents.py), every process of a session is known from its first moment, however short it lives and wherever it moves. Where it does not,
or when events were lost, /proc is looked at when somebody asks, and what began unseen is unknown unless its parent says it (`told` says which of the two it is).

After a loss every session is looked at again: in a thread, one after the other, however much was lost meanwhile, with pauses as long as it takes: whoever starts processes faster than they
can be told must not keep the host from everybody else.

A look takes time, and what the kernel tells meanwhile is newer: whoever looks says so before (`looking`), and gives it back with what was found (`seen`).

What is known is written down a moment after it changed, for the next host; processes that began while there was none began unseen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from holdfast.core.interpreters import reads_orders
from holdfast.core.lineage import Member
from holdfast.host import observe, process, procevents
from holdfast.host.session import Session
from holdfast.model.errors import Unavailable

SAVE_S: Final = 0.5              # after a change; later where that takes long:
SAVE_SHARE: Final = 50           # at most this part of the time is spent on it
LOST_S: Final = 0.05             # after a loss, before it is looked again
LOST_SHARE: Final = 10           # at most this part of the time is spent on that
FILE: Final = "lineage"          # in the session's directory
FILE_BYTES: Final = 16 << 20

Changed = Callable[[Session, str, int, int | None, Member | None], None]
"""That a process of a session "started" or "exited", with its status if that is known."""


class Kin:
    """One per host."""

    def __init__(self) -> None:
        self.on_change: list[Changed] = []
        self._owner: dict[int, Session] = {}
        self._events: procevents.Events | None = None
        self._saving: dict[str, asyncio.TimerHandle] = {}
        self._waiting: set[str] = set()                 # sessions whose marks are waited for
        self._save_s = SAVE_S
        self._writing: set[str] = set()                 # sessions whose file is being written
        self._pen = threading.Lock()
        self._missing = asyncio.Event()                 # something was lost since the last look at everything
        self._searching: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Where the kernel refuses, it is done without; `doctor` says why."""
        with contextlib.suppress(OSError):
            self._events = procevents.Events(self._forked, self._exited, self._lost)
            self._searching = asyncio.get_running_loop().create_task(self._search())

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
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            lineage.restore(json.loads(_read(f"{session.directory}/{FILE}")))
        session.commands.before_marks = self._catch_up
        self.seen(session, _living(session))

    def looking(self, session: Session) -> frozenset[int]:
        """Before somebody reads all of its processes: who was there."""
        return frozenset(session.commands.lineage.members)

    def seen(self, session: Session, living: dict[int, tuple[int, int]], before: frozenset[int] | None = None, whole: bool = True) -> None:
        """What was read of its processes, since `looking` gave `before`; `whole`: of all of them."""
        self._catch_up()
        lineage = session.commands.lineage
        lineage.found(living, before, whole)
        for pid in [pid for pid, owner in self._owner.items() if owner is session and pid not in lineage.members]:
            del self._owner[pid]
        self._owner.update(dict.fromkeys(lineage.members, session))
        self._save_soon(session)

    def end(self, session: Session) -> None:
        for pid in [pid for pid, owner in self._owner.items() if owner is session]:
            del self._owner[pid]
        if (timer := self._saving.pop(session.id, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        if self._searching is not None:
            self._searching.cancel()
        for session in {session.id: session for session in self._owner.values()}.values():
            if session.id in self._saving or session.id in self._writing:
                lineage = session.commands.lineage
                lineage.started(_starts(lineage.unstarted()))
                self._write(session.directory, lineage.save())
            self.end(session)

    # ------------------------------------------------------------ the kernel's word

    def _catch_up(self) -> None:
        """Before the shell's marks are taken: what it started before it wrote them is known first."""
        if self._events is not None and self._events.told:
            self._events.catch_up()

    def _forked(self, parent: int, child: int) -> None:
        session = self._owner.get(parent)
        if session is not None and session.commands.lineage.forked(parent, child, takes_orders):
            self._owner[child] = session
            self._save_soon(session)
            if session.commands.lineage.doubtful and session.id not in self._waiting:
                self._waiting.add(session.id)
                session.spawn(self._make_certain(session))
            self._tell(session, "started", child)

    async def _make_certain(self, session: Session) -> None:
        """The keeper's answer comes after the output that it had: then the shell's marks up to now are known."""
        try:
            await session.marks_seen()
        except Unavailable:
            pass
        finally:
            self._waiting.discard(session.id)
        session.commands.lineage.certain()

    def _exited(self, pid: int, status: int) -> None:
        session = self._owner.pop(pid, None)
        if session is not None:
            member = session.commands.lineage.exited(pid)
            self._save_soon(session)
            self._tell(session, "exited", pid, status, member)

    def _lost(self) -> None:
        self._missing.set()

    async def _search(self) -> None:
        pause = LOST_S
        while True:
            await self._missing.wait()
            await asyncio.sleep(pause)
            self._missing.clear()
            began = time.monotonic()
            for session in {session.id: session for session in self._owner.values()}.values():
                before = self.looking(session)
                living = await asyncio.to_thread(_living, session)
                if not session.ended.done():
                    self.seen(session, living, before)
            pause = max(LOST_S, LOST_SHARE * (time.monotonic() - began))

    def _tell(self, session: Session, what: str, pid: int, status: int | None = None, was: Member | None = None) -> None:
        for changed in self.on_change:
            changed(session, what, pid, status, was)

    # ------------------------------------------------------------ for the next host

    def _save_soon(self, session: Session) -> None:
        if session.id not in self._saving:
            self._saving[session.id] = session.loop.call_later(self._save_s, self._begin_save, session)

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
            await asyncio.to_thread(self._write, session.directory, lineage.save())
            self._save_s = max(SAVE_S, SAVE_SHARE * (time.monotonic() - began))
        finally:
            self._writing.discard(session.id)

    def _write(self, directory: str, known: dict[str, Any]) -> None:
        """A file, because it must outlive a process, not the machine; one that cannot be written costs what began since the last."""
        fresh = f"{directory}/{FILE}.new"
        with self._pen, contextlib.suppress(OSError):
            try:
                with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600), "w") as file:
                    file.write(json.dumps(known))
                os.rename(fresh, f"{directory}/{FILE}")
            except OSError:
                os.unlink(fresh)


def _read(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:      # whatever is there: it is not waited for
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("no file")
        return file.read(FILE_BYTES)


def _starts(pids: list[int]) -> dict[int, int]:
    return {pid: found.start for pid in pids if (found := process.read_stat(pid)) is not None}


def _living(session: Session) -> dict[int, tuple[int, int]]:
    return {one.pid: (one.start, one.ppid) for one in observe.descendants(session.keeper_pid, with_argv=False)}


def takes_orders(pid: int) -> bool:
    """Whether it has the terminal and does what it reads there."""
    found = process.read_stat(pid)
    return found is not None and found.pgrp == found.tpgid and reads_orders(found.comm, lambda: process.read_argv(pid))
