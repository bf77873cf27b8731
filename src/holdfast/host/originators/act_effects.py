"""What an act of an agent or service did: programs started, files written, ports opened (G2).

- Programs: each exec that the kernel reports for a process of the act. At exec depth the gate knows
  the path. Elsewhere the path is read after the report, so a very short program may be "unknown".
- Files: those that a process of the act wrote, made or moved, by the reports that `writers.py`
  reads. They are named when the entry is written. Deleted files do not count.
- Ports: the listening TCP sockets of the act's living processes. No report tells of a socket, so
  /proc is read, LOOKS_S after the act and after the end of its command. A port that was open only
  between two looks is not seen.

The outcome of a `run` that was followed to its end has the effects up to then (`effects_now`).
Effects that come later get an entry `effects`, which replaces the earlier entry: after the command
of a typed line, after a look that found a new port, and after the act's last process. An act with
no timer left wakes the host only by its own processes.

A kind is `unknown` if there may be more than is listed: the kernel does not report it to this
account, reports were lost, a bound was reached, or an earlier host saw a part.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from holdfast.core.originators.act_effects import (
    FILES,
    NAMES_MAX,
    PORTS,
    PROGRAMS,
    TRACED,
    Effects,
    EffectsOfActs,
    Shown,
)
from holdfast.core.originators.lineage import Cause
from holdfast.core.record.record import host_fact
from holdfast.core.session.shell_marks import CommandStarted, Effect, PromptShown
from holdfast.host.originators import file_events
from holdfast.host.processes import proc_scan, process
from holdfast.host.runtime.notify import tell

if TYPE_CHECKING:
    from holdfast.core.originators.lineage import Member
    from holdfast.core.originators.writers import Author
    from holdfast.host.originators.writers import Writers
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal

LOOKS_S: Final = (0.5, 1.5, 6.0, 22.0)  # pauses between looks at the ports of living processes
SETTLE_S: Final = 0.5  # from the end of a command or process to the check what is left
# Files that are looked up for the names of one entry. The shell writes its own files, which do not
# count, before and after the command.
FILES_TRIED: Final = 4 * NAMES_MAX
LAST_TRIED: Final = 16
_WRITTEN: Final = file_events.WRITES | file_events.CREATE | file_events.MOVED_TO

Found = Callable[["Session", int, Effects, Shown], None]


class _Timers:
    """The next look at an act, and the check after an exit."""

    def __init__(self) -> None:
        self.over = False  # the command of the act has ended
        self.pauses: Iterator[float] = iter(LOOKS_S)
        self.look: asyncio.TimerHandle | None = None
        self.settle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        for timer in (self.look, self.settle):
            if timer is not None:
                timer.cancel()
        self.look = self.settle = None


class ActEffects:
    """One per host."""

    def __init__(
        self,
        writers: Writers,
        journal: Journal,
        kind_of: Callable[[str], str | None],
    ) -> None:
        """`kind_of`: the kind of an operator by its name."""
        self._lineages, self._writers = writers.lineages, writers
        self._journal, self._kind_of = journal, kind_of
        self._sessions: dict[str, Session] = {}
        self._writing: dict[str, EffectsOfActs] = {}  # of sessions with such acts that wrote files
        self._timers: dict[tuple[str, int], _Timers] = {}
        self.on_found: list[Found] = []  # called with each later entry

    def begin(self, session: Session) -> None:
        commands = session.commands
        self._sessions[session.id] = session
        commands.effects.newest = session.ring.accepted
        commands.effects.gaps = lambda: (self._lineages.lost, self._writers.gaps)
        commands.effects_now = lambda act, ended: self._now(session, act, ended)
        commands.listeners.append(lambda effects: self._marks(session, effects))

    def end(self, session: Session) -> None:
        self._writing.pop(session.id, None)
        if self._sessions.pop(session.id, None) is not None:
            for act, one in session.commands.effects:
                if not one.awaited:
                    self._finish(session, act, one)

    # ------------------------------------------------------------ reports of the kernel

    def _of(self, session: Session, cause: Cause) -> Effects | None:
        if cause.act is None or self._kind_of(cause.actor) not in TRACED:
            return None
        return session.commands.effects.of(cause.act, cause.actor)

    def executed(self, pid: int, judged: str | None) -> None:
        """`judged`: the path that the exec gate let the process execute, if it asked the gate."""
        if (session := self._lineages.session_of(pid)) is not None and (
            one := self._of(session, session.commands.lineage.of(pid))
        ) is not None:
            one.executed(judged or _program(pid))

    def written(self, authors: dict[int, Author], events: list[file_events.Event]) -> None:
        mine: dict[int, tuple[Session, Effects]] = {}
        for pid, author in authors.items():
            session = self._sessions.get(author.session)
            if session is not None and (one := self._of(session, author.cause)) is not None:
                mine[pid] = session, one
                self._writing[author.session] = session.commands.effects
        if not self._writing:
            return
        for mask, pid, key in events:
            if mask & _WRITTEN and not mask & file_events.ONDIR and pid in mine:
                session, one = mine[pid]
                session.commands.effects.wrote(one, key)
            if mask & file_events.DELETE_SELF:
                for each in self._writing.values():
                    each.gone(key)

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if what == "started" or was is None or not session.commands.effects:
            return
        act, one = was.cause.act, session.commands.effects.get(was.cause.act)
        if act is None or one is None:
            return
        if (timers := self._timers.get((session.id, act))) is not None and timers.over:
            self._settle_later(session, act, one, timers)

    def _settle_later(self, session: Session, act: int, one: Effects, timers: _Timers) -> None:
        if timers.settle is None:
            timers.settle = session.loop.call_later(
                SETTLE_S, self._settle, session, act, one, timers
            )

    def _settle(self, session: Session, act: int, one: Effects, timers: _Timers) -> None:
        """Finishes an act whose command is over, unless processes of it are left since then."""
        timers.settle = None
        if session.commands.effects.get(act) is not one or one.awaited:
            return
        if not self._living(session, act) if timers.over else self._is_over(session, act, one):
            self._finish(session, act, one)

    # ------------------------------------------------------------ the end of an act's command

    def _now(self, session: Session, act: int, ended: bool) -> Shown | None:
        """The effects for the outcome of an act; None if they come later, or there are none."""
        if (one := session.commands.effects.get(act)) is None:
            return None
        one.awaited = False
        behind = self._writers.behind and session.id in self._sessions
        if behind or not (ended or self._is_over(session, act, one)):
            self._look_later(session, act, one)
            return None
        one.recorded = self._shown(session, one)
        self._leave(session, act, one)
        return one.recorded if one or one.command else None

    def _marks(self, session: Session, effects: list[Effect]) -> None:
        if session.commands.effects and any(
            isinstance(each, PromptShown | CommandStarted) for each in effects
        ):
            for act, one in session.commands.effects:
                if not one.awaited and self._is_over(session, act, one):
                    # Later: of a quick `run`, the mark may come before the host awaits its outcome.
                    timers = self._timers.setdefault((session.id, act), _Timers())
                    if not timers.over:
                        self._settle_later(session, act, one, timers)

    def _is_over(self, session: Session, act: int, one: Effects) -> bool:
        return session.ended.done() or session.commands.lineage.over(Cause(one.actor, act))

    def _finish(self, session: Session, act: int, one: Effects) -> None:
        """Records the effects of an act whose command is over."""
        if self._writers.behind and session.id in self._sessions:
            self._look_later(session, act, one)
            return
        self._record(session, act, one)
        self._leave(session, act, one)

    def _leave(self, session: Session, act: int, one: Effects) -> None:
        """Closes an act without a living process; looks at the ports of the others."""
        if (timers := self._timers.pop((session.id, act), None)) is not None:
            timers.cancel()
        if session.id in self._sessions and self._living(session, act):
            self._look_later(session, act, one)
            self._timers[session.id, act].over = True
        else:
            session.commands.effects.close(act)
            if not session.commands.effects:
                self._writing.pop(session.id, None)

    def _record(self, session: Session, act: int, one: Effects) -> None:
        shown = self._shown(session, one)
        if shown == one.recorded or not (one or (one.command and one.recorded is None)):
            return
        one.recorded = shown
        epoch = session.record.epoch
        facts: Shown = {"of": f"{session.ref}#{act}", "effects": shown}
        self._journal.post(
            host_fact(session.id, epoch, "effects", one.actor, "host", act=act, facts=facts)
        )
        tell(self.on_found, session, act, one, shown)

    # ------------------------------------------------------------ looks

    def _look_later(self, session: Session, act: int, one: Effects) -> None:
        timers = self._timers.setdefault((session.id, act), _Timers())
        if timers.look is None and (pause := next(timers.pauses, None)) is not None:
            timers.look = session.loop.call_later(
                pause, lambda: session.spawn(self._look(session, act, one, timers))
            )

    async def _look(self, session: Session, act: int, one: Effects, timers: _Timers) -> None:
        timers.look = None
        new = False
        if pids := self._living(session, act):
            found = await session.in_thread(_listening, pids)
            new = one.listens(found[0])
            if found[1]:
                one.unknown.add(PORTS)
        if session.commands.effects.get(act) is not one:
            self._timers.pop((session.id, act), None)
            return
        self._writers.catch_up()
        if timers.over or self._is_over(session, act, one):
            if not timers.over or not self._living(session, act):
                return self._finish(session, act, one)
            self._record(session, act, one)
        elif new:
            self._record(session, act, one)
        self._look_later(session, act, one)

    def _living(self, session: Session, act: int) -> list[int]:
        lineage = session.commands.lineage
        if not self._lineages.told:
            return []
        return [pid for pid in lineage.members if lineage.of(pid).act == act]

    # ------------------------------------------------------------ names

    def _shown(self, session: Session, one: Effects) -> Shown:
        unknown = set[str]()
        if not self._lineages.told:
            unknown |= {PROGRAMS, FILES, PORTS}
        if not self._writers.kernel_reports:
            unknown.add(FILES)
        processes, files = self._lineages.lost, self._writers.gaps
        if processes != one.gaps[0]:
            unknown |= {PROGRAMS, FILES}
        if files != one.gaps[1]:
            unknown.add(FILES)
        return one.show(self._names(session, one), unknown)

    def _names(self, session: Session, one: Effects) -> list[str]:
        """The paths of the first files. Devices and the shell's own files are left out."""
        names = list[str]()
        own, mounts = str(session.directories.writable), self._writers.mounts() if one.files else ()
        keys = [*one.files]
        for key in (*keys[:FILES_TRIED], *keys[FILES_TRIED:][-LAST_TRIED:]):
            if (found := file_events.found(mounts, key)) is None:
                session.commands.effects.gone(key)  # no event tells what this host deletes
                continue
            path, mode = found
            if os.path.dirname(path) == own or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                session.commands.effects.ignore(key)
            elif len(names) < NAMES_MAX:
                names.append(path)
        return names


def _program(pid: int) -> str:
    """The program of a process that has just executed it."""
    with contextlib.suppress(OSError):
        if not process.half(pid):
            return os.readlink(f"/proc/{pid}/exe")
    found = process.read_stat(pid)  # a zombie still has a name
    return found.comm if found is not None else "unknown"


def _listening(pids: list[int]) -> tuple[list[str], list[int]]:
    """The TCP ports on which processes listen, and processes with sockets closed to us."""
    ports = [
        f"[{one.address}]:{one.port}" if ":" in one.address else f"{one.address}:{one.port}"
        for one in proc_scan.listening(pids)
        if one.port is not None
    ]
    return ports, proc_scan.unreadable(pids)
