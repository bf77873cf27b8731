"""The requests that carry out acts now, by session, client and number of the act."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.host.runtime.connection import Connection

TAKE_OVER_S: Final = 5.0  # for a cancelled request to end; it waits for nothing but the loop
Which = tuple[str, int, int]


class Carrying(NamedTuple):
    conn: Connection
    task: asyncio.Task[object] | None


class UnderWay:
    def __init__(self) -> None:
        self._requests: dict[Which, Carrying] = {}

    def __contains__(self, which: Which) -> bool:
        return which in self._requests

    @contextlib.contextmanager
    def carrying(self, which: Which, conn: Connection) -> Iterator[None]:
        self._requests[which] = Carrying(conn, asyncio.current_task())
        try:
            yield
        finally:
            del self._requests[which]

    async def take_over(self, conn: Connection, place: str, number: int) -> None:
        """Ends the older connection of a client that repeats an act which is under way there.

        The host may learn much later that this connection is dead, for example after the client
        moved to another network. The repeated request then follows the act.
        """
        older = self._requests.get((place, conn.client, number))
        if older is not None and older.conn is not conn and older.task is not None:
            older.conn.bye("replaced", "this client has connected anew")
            await asyncio.wait({older.task}, timeout=TAKE_OVER_S)
