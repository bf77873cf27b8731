"""Reports marks in a session's output that its shell did not write.

Such a mark has no effect (`core/session/shell_marks.py`). It is reported because a program may have
printed it to make a failed command look successful. Playing back the raw output of another session
prints such marks too, without bad intent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

REPORT_S: Final = 10.0  # between two events of a session; the marks meanwhile are counted


class ForgedMarks:
    def __init__(self, session: Session) -> None:
        self._session, self._count = session, 0
        self._timer: asyncio.TimerHandle | None = None

    def seen(self, count: int) -> None:
        """Reports the first marks at once, and later ones together."""
        self._count += count
        if self._timer is None:
            self._report()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _report(self) -> None:
        self._timer = None
        if not self._count:
            return
        session, count = self._session, self._count
        cause, self._count = session.commands.lineage.now, 0
        session.event(
            "shell.forged",
            count=count,
            actor=cause.actor if cause is not None else None,
            act=cause.ref(session.ref) if cause is not None else None,
        )
        self._timer = session.loop.call_later(REPORT_S, self._report)
