"""The lanes of a client: asks, acts and follows, on this machine or through a relay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from holdfast.client.engine.attach import Attached
from holdfast.client.engine.lane import Explain, Fields, Lane
from holdfast.client.engine.parts import Part, Reply
from holdfast.client.engine.wire import Feed
from holdfast.client.link import Link
from holdfast.core.record import acts
from holdfast.model.errors import PeerFault, Refused
from holdfast.model.limits import CONNECT_WAIT_S, REPLY_WAIT_S

LANES_MAX: Final = 16  # each more than the first exists because an act waits for an approval
URGENT: Final = frozenset(("signal", "seize", "halt"))  # acts that stop what another act began
FOR_EVER: Final = float("inf")  # a follower waits for the host as long as its caller wants


class Engine:
    """`link`: makes a link for a further lane. `explain`: gives an error the face's advice."""

    def __init__(self, link: Callable[[], Link], explain: Explain | None = None) -> None:
        self._link, self._explain = link, explain
        self._lanes = [Lane(link(), explain)]
        self._runs: dict[str, asyncio.Lock] = {}  # by session

    async def connect(self) -> None:
        await self._lanes[0].connected(CONNECT_WAIT_S)

    @property
    def link(self) -> Link:
        """For signing statements that are not acts, like the answer to a question."""
        return self._lanes[0].link

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()

    async def ask(self, op: str, wait_s: float | None = REPLY_WAIT_S, **fields: Any) -> Fields:
        """The reply to a request."""
        async with contextlib.aclosing(self.stream(op, wait_s, **fields)) as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    return part.body
        raise PeerFault("an answer without a reply")

    def stream(
        self,
        op: str,
        wait_s: float | None = None,
        patient: bool = False,
        feed: Feed | None = None,
        **fields: Any,
    ) -> AsyncGenerator[Part, None]:
        """The parts of an answer, then its reply; over every loss of the connection.

        `patient`: wait for the host until the caller leaves. `feed`: sends bytes for the request.
        """
        patience_s = FOR_EVER if patient else CONNECT_WAIT_S
        return self._lane(op, fields).stream(op, fields, wait_s, patience_s, feed)

    def attached(self, session: str, size: tuple[int, int], observe: bool) -> Attached:
        """A terminal of the session, on a separate connection."""
        return Attached(self._link(), session, size, observe)

    def one_at_a_time(self, session: str) -> asyncio.Lock:
        """A shell runs a single command at a time: commands of this program wait here in order."""
        return self._runs.setdefault(session, asyncio.Lock())

    def _lane(self, op: str, fields: Fields) -> Lane:
        if not acts.is_act(op, fields):
            return self._lanes[0]
        place = acts.place(op, fields)
        # A signal must not wait behind a command that has not begun.
        passes = op in URGENT and self._lanes[0].busy(place)
        for lane in self._lanes[int(passes) :]:
            if not lane.waits(place):
                return lane
        if len(self._lanes) == LANES_MAX:
            raise Refused(
                f"{LANES_MAX} acts on {place} wait for approval", "wait for the approvers"
            )
        self._lanes.append(Lane(self._link(), self._explain))
        return self._lanes[-1]
