"""A client of the host for its whole life: one id, one order of acts, connections that come and go.

The host knows an act by client and number, and takes the acts of one client on one session in the
order of their numbers. So a lane has at most one act per session that the host has not settled yet,
and repeats that act under the same number after a lost connection. While an act waits for an
approval, the engine sends further acts on that session through another lane. Signals, seizures and
halts never wait behind another act.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from holdfast.client.engine.parts import Data, Event, Gap, Part, Reply
from holdfast.client.engine.wire import Feed, NoAnswer, Wire
from holdfast.client.gone import HostGone
from holdfast.client.link import PAUSE_MOST_S, Link
from holdfast.client.repeating import Repeating
from holdfast.core.record import acts
from holdfast.model.errors import Busy, HoldfastError, Stale
from holdfast.model.limits import (
    CONNECT_WAIT_S,
    DOWNSTREAM_WINDOW_BYTES,
    INPUT_CHUNK_BYTES,
    RECONNECT_FIRST_S,
    REPLY_WAIT_S,
)

Fields = dict[str, Any]
Explain = Callable[[HoldfastError], HoldfastError]


class Lane:
    def __init__(self, link: Link, explain: Explain | None = None) -> None:
        """`explain`: gives an error the advice for the caller's face."""
        self.link, self._explain = link, explain or (lambda error: error)
        link.credit = DOWNSTREAM_WINDOW_BYTES
        self._wire: Wire | None = None
        self._opening: asyncio.Task[Wire] | None = None
        self._closed = False
        self._orders: dict[str, Order] = {}  # by place: a session or the machine

    def waits(self, place: str) -> bool:
        """Whether an act on this place waits for an approval."""
        return place in self._orders and self._orders[place].held

    def busy(self, place: str) -> bool:
        """Whether an act on this place is not settled, such as a command that has not begun."""
        return place in self._orders and self._orders[place].taken

    async def close(self) -> None:
        """Leaves. A thread that is connecting closes the socket itself."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, HoldfastError):
                await self._opening
        if self._wire is not None:
            self._wire.close()
        self.link.close()

    # ------------------------------------------------------------ connecting

    async def connected(self, patience_s: float, about: str | None = None) -> Wire:
        """The connection. All requests that find it lost share an attempt to connect again."""
        deadline, pause = time.monotonic() + patience_s, RECONNECT_FIRST_S
        while self._wire is None or self._wire.gone is not None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(about))
                self._opening.add_done_callback(self._opened)
            try:
                await asyncio.shield(self._opening)
            except HostGone as e:
                if e.stays or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_MOST_S)
        return self._wire

    async def _open(self, about: str | None) -> Wire:
        await asyncio.to_thread(self._connect, about)
        return await Wire.over(self.link)

    def _connect(self, about: str | None) -> None:
        """In a thread, which goes on if the lane is closed meanwhile."""
        try:
            self.link.connect(about)
        finally:
            if self._closed:
                self.link.close()

    def _opened(self, task: asyncio.Task[Wire]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._wire = task.result()

    # ------------------------------------------------------------ requests

    async def stream(
        self,
        op: str,
        fields: Fields,
        wait_s: float | None = None,
        patience_s: float = CONNECT_WAIT_S,
        feed: Feed | None = None,
    ) -> AsyncGenerator[Part, None]:
        """The parts of the answer; the last is the reply. Closing it early cancels the request.

        `wait_s`: for each part of the answer. `patience_s`: for the host to return after a lost
        connection. `feed`: sends bytes for the request, anew on each connection.
        """
        one = Repeating(op, fields, time.monotonic())
        place = acts.place(op, fields) if acts.is_act(op, fields) else None
        act = None if place is None else await self._orders.setdefault(place, Order()).enter()
        try:
            while True:
                one.connecting()
                try:
                    wire = await self.connected(patience_s, place)
                    if place is not None:
                        await self._sign(wire, op, fields, place)
                    one.is_sent()
                    asked = wire.parts({"op": op, **fields}, wait_s, feed)
                    async with contextlib.aclosing(asked) as parts:
                        async for part in parts:
                            if act is not None and place is not None:
                                self._told(act, place, part)
                            _continue_after(one, part)
                            yield part
                    return
                except HostGone as e:
                    one.lost(e, time.monotonic())
                except Busy as e:
                    one.busy(e)
                    await asyncio.sleep(PAUSE_MOST_S)
                except Stale as e:
                    one.stale(e)
                    self.link.acting.targets.pop(place or "", None)
        except HoldfastError as e:
            self.link.acting.refused(place or "", e)
            if not self._unheard(e) and not isinstance(e, Busy):
                one.answered()
            if (error := self._explain(one.failed(e))) is e:
                raise
            raise error from e
        finally:
            if act is not None:
                act.settle()

    def _unheard(self, error: HoldfastError) -> bool:
        """Whether an error says that no answer came; all other errors are the host's answer."""
        lost = self._wire is not None and self._wire.gone is error
        return lost or isinstance(error, HostGone | NoAnswer)

    async def _sign(self, wire: Wire, op: str, fields: Fields, place: str) -> None:
        """Signs for the session's present state, which is requested if unknown."""
        if "seq" not in fields:
            fields["seq"] = self._number(op, fields)
        if (target := self.link.acting.targets.get(place)) is None:
            told = await wire.ask({"op": "place", "session": place}, REPLY_WAIT_S)
            target = self.link.acting.learn(place, told)
        self.link.acting.sign(op, fields, target)

    def _number(self, op: str, fields: Fields) -> int:
        """The number of an act; long input has one for each of its pieces."""
        size = 0
        if op == "send":
            text = str(fields["text"]).encode("utf-8", "surrogateescape")
            size = len(text) + 16 * len(fields.get("keys") or ())
        return self.link.next_sequence(1 + size // INPUT_CHUNK_BYTES)

    def _told(self, act: Unsettled, place: str, part: Part) -> None:
        if isinstance(part, Event) and part.name == "held":
            act.hold()
        elif isinstance(part, Event) and part.name == "began":
            act.settle()
        elif isinstance(part, Reply) and (target := self.link.acting.targets.get(place)):
            target.acknowledged(part.body)
            self.link.keep_receipt(part.body.get("recorded"))


class Order:
    """The order of acts on a session or machine: the next act waits until one is settled."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.held = False  # the present act waits for an approval

    @property
    def taken(self) -> bool:
        return self._lock.locked()

    async def enter(self) -> Unsettled:
        await self._lock.acquire()
        return Unsettled(self, self._lock)


class Unsettled:
    """An act that may still have to be sent again under the same number."""

    def __init__(self, order: Order, lock: asyncio.Lock) -> None:
        self._order, self._lock = order, lock
        self._settled = False

    def hold(self) -> None:
        self._order.held = not self._settled

    def settle(self) -> None:
        """The host knows the act by its number, or the act is over: the next act may come."""
        if not self._settled:
            self._settled, self._order.held = True, False
            self._lock.release()


def _continue_after(one: Repeating, part: Part) -> None:
    """Makes a repeated request start after this part: nothing is delivered twice."""
    if isinstance(part, Data | Gap):
        one.delivered(part.end)
    elif isinstance(part, Event):
        one.told(part.body)
