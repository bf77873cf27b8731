"""The record after a crash: what the last host wrote down that it would do, and did or did not. The keepers know."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from holdfast.core.record import APPLIED, MACHINE, UNKNOWN, VOID
from holdfast.host.door import Door
from holdfast.host.journal import Journal
from holdfast.host.lane import TYPED
from holdfast.host.session import Session
from holdfast.model.errors import Unavailable

DAY_NS = 86400 * 10**9


async def go_on_recording(
    journal: Journal, door: Door, sessions: Mapping[str, Session]
) -> list[str]:
    """Before anybody is served. Gives the sessions whose record is not what this machine signed. A disk that takes nothing does not keep a
    host from serving: acts are refused then, and what is owed is written later."""
    try:
        recovered = await journal.recover(
            lambda intent: fate(intent, sessions.get(intent["session"]))
        )
        for session in sessions.values():
            await journal.catch_up(session.id, session.record.epoch, session.lane.taken)
        await journal.catch_up(MACHINE, door.here.epoch, door.recorded)
    except Unavailable:
        return []
    return recovered.damaged


async def retain(journal: Journal, days: int) -> None:
    """Once a day: what is older than that is dropped, and the record says so."""
    while days:
        with contextlib.suppress(Unavailable):
            await journal.retain(time.time_ns() - days * DAY_NS)
        await asyncio.sleep(DAY_NS / 1e9)


def fate(intent: dict[str, Any], session: Session | None) -> str:
    """Of an act that was written down by a host that died: whether the keeper took it."""
    if session is None or intent["kind"] not in TYPED or session.record.epoch != intent["epoch"]:
        return UNKNOWN
    return APPLIED if session.lane.acked(int(intent["client"], 16)) >= intent["number"] else VOID
