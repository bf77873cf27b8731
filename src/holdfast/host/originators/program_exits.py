"""The kernel's exit code of the last program that a session's shell started for a command.

The shell states the exit code of a command itself, by a mark. Code in the shell can make it state
another one. The kernel reports the exit of every process (host/processes/process_events.py), and
these reports pass no code of the session. Where the kernel reports nothing, there is no answer.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from holdfast.host.session.commands import ProgramExit

if TYPE_CHECKING:
    from holdfast.core.originators.lineage import Member
    from holdfast.host.session.session import Session

ACTS_KEPT: Final = 16  # newest acts of a session
SIGNALLED: Final = 128  # added to the number of a signal, as shells do


class _Started:
    __slots__ = ("code", "count", "last")

    def __init__(self) -> None:
        self.count, self.last = 0, 0
        self.code: int | None = None


class ProgramExits:
    """One per host."""

    def __init__(self) -> None:
        self._sessions: dict[str, OrderedDict[int, _Started]] = {}

    def begin(self, session: Session) -> None:
        self._sessions[session.id] = OrderedDict()
        session.commands.program_exit = lambda act: self.of(session.id, act)

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def of(self, session: str, act: int) -> ProgramExit | None:
        acts = self._sessions.get(session)
        found = acts.get(act) if acts is not None else None
        return ProgramExit(found.count, found.code) if found is not None else None

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        acts, lineage = self._sessions.get(session.id), session.commands.lineage
        member = lineage.member(pid) if what == "started" else was
        if acts is None or member is None or member.parent != lineage.root:
            return
        if (act := member.cause.act) is None:
            return
        if what == "started":
            started = acts.setdefault(act, _Started())
            started.count += 1
            started.last, started.code = pid, None
            if len(acts) > ACTS_KEPT:
                acts.popitem(last=False)
        elif status is not None and (known := acts.get(act)) is not None and known.last == pid:
            known.code = _code(status)


def _code(status: int) -> int:
    """The exit code that a shell reports for a wait status."""
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    return code if code >= 0 else SIGNALLED - code
