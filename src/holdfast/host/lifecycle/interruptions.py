"""Ends that may belong to a shutdown, until they are settled (core/session/interruption.py).

An unsettled end is in the store with the mark `interrupted`. The mark is removed when the end is
settled, and with it what the next incarnation would have needed. A host that finds the mark at its
start brings the session back, unless it has replaced the last host in place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from holdfast.core.session import interruption
from holdfast.host.storage.store import SessionRow

# systemd makes it when a shutdown begins, and when logins are closed because one is near.
SHUTTING_DOWN: Final = "/run/nologin"


class Interruptions:
    def __init__(self, settled: Callable[[SessionRow], None], replaced: bool) -> None:
        """`settled`: is called with the row of each session whose end is final.

        `replaced`: this host has replaced the last one in place, so the machine goes on.
        """
        self._settled, self._replaced = settled, replaced
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._rows: dict[str, SessionRow] = {}

    def found(self, row: SessionRow) -> bool:
        """Whether a starting host that finds this row brings the session back."""
        if row.interrupted and self._replaced:
            self.ended(row)
        return row.interrupted and not self._replaced

    def ended(self, row: SessionRow) -> None:
        """Settle the end later. The store has the row."""
        self.returns(row.id)
        self._rows[row.id] = row
        self._later(row, interruption.left_s(row.ended or 0.0, time.time()))

    def returns(self, session: str) -> None:
        """The session comes back, or is forgotten: there is no end to settle any more."""
        self._rows.pop(session, None)
        if (timer := self._timers.pop(session, None)) is not None:
            timer.cancel()

    def settle_all(self) -> None:
        """The host stops, and the machine goes on."""
        for row in list(self._rows.values()):
            self._settle(row)

    def _later(self, row: SessionRow, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[row.id] = loop.call_later(after_s, self._due, row)

    def _due(self, row: SessionRow) -> None:
        if os.path.exists(SHUTTING_DOWN):
            self._later(row, interruption.SETTLED_S)
        else:
            self._settle(row)

    def _settle(self, row: SessionRow) -> None:
        self.returns(row.id)
        row.interrupted = False
        self._settled(row)
