"""The record after a crash: settles recorded acts by asking what the keepers took."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from holdfast.core.record.acts import BY_KEEPER
from holdfast.core.record.record import APPLIED, MACHINE, UNKNOWN, VOID
from holdfast.host.acts.door import Door
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal
from holdfast.model.errors import Unavailable

DAY_NS = 86400 * 10**9


async def go_on_recording(
    journal: Journal, door: Door, sessions: Mapping[str, Session]
) -> list[str]:
    """Runs before clients are served; gives sessions whose record this machine did not sign.

    A full disk does not keep a host from serving: acts are refused then, and owed entries are
    written later.
    """
    try:
        recovered = await journal.recover(
            lambda intent: fate(intent, sessions.get(intent["session"]))
        )
        for session in sessions.values():
            await journal.catch_up(session.id, session.record.epoch, session.lane.restore_number)
        await journal.catch_up(MACHINE, door.here.epoch, door.recorded)
    except Unavailable:
        return []
    return recovered.damaged


async def retain(journal: Journal, days: int) -> None:
    """Drops old entries once a day; the record says so."""
    while days:
        with contextlib.suppress(Unavailable):
            await journal.retain(time.time_ns() - days * DAY_NS)
        await asyncio.sleep(DAY_NS / 1e9)


def fate(intent: dict[str, Any], session: Session | None) -> str:
    """Whether the keeper took an act that a dead host had recorded."""
    if (
        session is None
        or intent["kind"] not in BY_KEEPER
        or session.record.epoch != intent["epoch"]
    ):
        return UNKNOWN
    return APPLIED if session.lane.acked(int(intent["client"], 16)) >= intent["number"] else VOID
