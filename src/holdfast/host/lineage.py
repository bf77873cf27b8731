"""Which act started which process, for all sessions of this host: the kernel's events and a look at /proc, given to `core/lineage.py`.

Where the kernel tells of forks (host/procevents.py), every process of a session is known from its first moment, however short it lives and wherever it moves. Where it does not,
or when events were lost, /proc is looked at when somebody asks, and what began unseen is unknown unless its parent says it (`told` says which of the two it is).

What is known is written down a moment after it changed, for the next host; processes that began while there was none began unseen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Final

from holdfast.core.interpreters import reads_orders
from holdfast.host import observe, process, procevents
from holdfast.host.session import Session
from holdfast.model.errors import Unavailable

SAVE_S: Final = 0.5              # after a change; later where that takes long:
SAVE_SHARE: Final = 50           # at most this part of the time is spent on it
FILE: Final = "lineage"          # in the session's directory
FILE_BYTES: Final = 16 << 20

Changed = Callable[[Session, str, int, int | None], None]
"""That a process of a session "started" or "exited", with its status if that is known."""


class Kin:
    """One per host."""

    def __init__(self) -> None:
        self.why = "the kernel does not tell of new processes here (a container?)"      # unless it does
        self.on_change: list[Changed] = []
        self._owner: dict[int, Session] = {}
        self._events: procevents.Events | None = None
        self._saving: dict[str, asyncio.TimerHandle] = {}
        self._waiting: set[str] = set()                 # sessions whose marks are waited for
        self._save_s = SAVE_S

    def open(self) -> None:
        try:
            self._events = procevents.Events(self._forked, self._exited, self._lost)
        except OSError as e:
            self.why = f"the kernel does not tell of new processes: {e.strerror}"

    @property
    def told(self) -> bool:
        return self._events is not None and self._events.told

    # ------------------------------------------------------------ sessions

    def begin(self, session: Session) -> None:
        lineage = session.commands.lineage
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(f"{session.directory}/{FILE}", "rb") as file:
            lineage.restore(json.loads(file.read(FILE_BYTES)))
        session.commands.before_marks = self._catch_up
        self.look(session)

    def look(self, session: Session) -> None:
        """Every process that there is now. Milliseconds: for the beginning, and after a loss."""
        self.seen(session, {one.pid: (one.start, one.ppid) for one in observe.descendants(session.keeper_pid, with_argv=False)})

    def seen(self, session: Session, living: dict[int, tuple[int, int]]) -> None:
        """What somebody has just read of all of its processes."""
        lineage = session.commands.lineage
        lineage.found(living)
        for pid in [pid for pid, owner in self._owner.items() if owner is session and pid not in living]:
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
        for session in {session.id: session for session in self._owner.values()}.values():
            if session.id in self._saving:
                self._save(session)
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
            self._tell(session, "started", child, None)

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
            session.commands.lineage.exited(pid)
            self._save_soon(session)
            self._tell(session, "exited", pid, status)

    def _lost(self) -> None:
        for session in {session.id: session for session in self._owner.values()}.values():
            self.look(session)

    def _tell(self, session: Session, what: str, pid: int, status: int | None) -> None:
        for changed in self.on_change:
            changed(session, what, pid, status)

    # ------------------------------------------------------------ for the next host

    def _save_soon(self, session: Session) -> None:
        if session.id not in self._saving:
            self._saving[session.id] = session.loop.call_later(self._save_s, self._save, session)

    def _save(self, session: Session) -> None:
        """A file, because it must outlive a process, not the machine; one that cannot be written costs what began since the last."""
        if (timer := self._saving.pop(session.id, None)) is not None:
            timer.cancel()
        began = time.monotonic()
        lineage = session.commands.lineage
        lineage.started({pid: stat.start for pid in lineage.unstarted() if (stat := process.read_stat(pid)) is not None})
        fresh = f"{session.directory}/{FILE}.new"
        with contextlib.suppress(OSError):
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "w") as file:
                json.dump(lineage.save(), file)
            os.rename(fresh, f"{session.directory}/{FILE}")
        self._save_s = max(SAVE_S, SAVE_SHARE * (time.monotonic() - began))


def takes_orders(pid: int) -> bool:
    """Whether it has the terminal and does what it reads there."""
    stat = process.read_stat(pid)
    return stat is not None and stat.pgrp == stat.tpgid and reads_orders(stat.comm, lambda: process.read_argv(pid))
