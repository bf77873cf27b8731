"""An attached terminal as a duplex stream: output with offsets, typed bytes, sizes.

The stream has a separate connection, because a connection has at most one attachment. After a
lost connection the client attaches again at its own offset, and sends again every input that the
session has not taken. The host drops repeats by number, so no byte is lost or doubled.

A reader that falls far behind gets the present screen instead of the output in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final, NamedTuple

from holdfast.client.attach.key_signing import KeySigning
from holdfast.client.attach.unacked import Unacked
from holdfast.client.engine.wire import Wire
from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.client.signing import SigningTarget
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Refused, from_wire
from holdfast.model.limits import (
    INPUT_CHUNK_BYTES,
    RECONNECT_FIRST_S,
    RECONNECT_MAX_S,
    REPLY_WAIT_S,
)
from holdfast.wire import frames

QUEUE_BYTES: Final = 1 << 20  # unread output; then the connection pauses
LEAVE_S: Final = 2.0  # for the host to answer a farewell


class Piece(NamedTuple):
    """Output up to the offset `end`; `screen`: it replaces the display."""

    end: int
    data: bytes
    screen: bool


class Attached:
    def __init__(self, link: Link, session: str, size: tuple[int, int], observe: bool) -> None:
        self._link, self._session, self._size, self._observe = link, session, size, observe
        self._wire: Wire | None = None
        self._offset: int | None = None
        self._pieces: deque[Piece] = deque()
        self._bytes = 0
        self._paused = False
        self._changed = asyncio.Event()  # output to read, taken input, or the end
        self._unacked, self._signing = Unacked(), KeySigning()
        self._refused: HoldfastError | None = None  # for the next write
        self._over: HoldfastError | None = None
        self._running: asyncio.Task[None] | None = None
        self._covers = 0  # signatures so far
        self.ended = False  # the session has ended

    async def open(self) -> None:
        try:
            await self._attach()
        except BaseException:
            await self.close()
            raise
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if (wire := self._wire) is not None and wire.gone is None:
            try:
                await self._cover()
                await wire.ask({"op": "detach"}, LEAVE_S)
            except HoldfastError:
                pass  # the session goes on in any case
            finally:
                wire.close()
        self._link.close()

    # ------------------------------------------------------------ the connection

    async def _attach(self) -> None:
        await asyncio.to_thread(self._link.connect, self._session)
        wire = self._wire = await Wire.over(self._link, self._frame)
        self._paused = False
        cols, rows = self._size
        asked = {"op": "attach", "session": self._session, "cols": cols, "rows": rows}
        asked |= {"observe": self._observe, "scrollback": 0, "resume": self._offset}
        answer = await wire.ask(asked, REPLY_WAIT_S)
        unsure = len(self._unacked) or self._unacked.waiting
        if self._signing.lost(answer, self._unacked) and unsure:
            self._refused = OutcomeUnknown(
                "the session's memory was lost, and a new incarnation runs; the last input may "
                "have taken effect before",
                "look at the screen before you type it again",
            )
        self._unacked.acked(int(answer["acked"]))
        target = SigningTarget(str(answer["id"]), int(answer["epoch"]), answer["seen"])
        self._signing.begin(target)
        for number, data in self._unacked:
            self._type(wire, number, data)
        self._send_waiting()
        self._changed.set()

    async def _run(self) -> None:
        """Signs typed keys, and attaches again after each loss, until the session has ended."""
        pause = RECONNECT_FIRST_S
        while not self.ended:
            assert self._wire is not None
            try:
                if self._wire.gone is not None:
                    if not isinstance(self._wire.gone, HostGone):
                        raise self._wire.gone
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RECONNECT_MAX_S)
                    await self._attach()
                    pause = RECONNECT_FIRST_S
                await self._cover_when_due()
            except HostGone as e:
                if e.reason == "down":
                    return self._end(e)
            except HoldfastError as e:
                return self._end(e)

    async def _cover_when_due(self) -> None:
        """Returns when the connection is lost, the session has ended or a signature was sent."""
        assert self._wire is not None
        while self._wire.gone is None and not self.ended:
            due = self._signing.at
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            if wait_s == 0.0:
                return await self._cover()
            woken = asyncio.create_task(self._wire.changed.wait())
            await asyncio.wait({woken}, timeout=wait_s)
            woken.cancel()
            self._wire.changed.clear()

    async def _cover(self) -> None:
        """Signs all typed keys that have no signature yet (P1)."""
        wire = self._wire
        assert wire is not None
        for keys in list(self._signing.unsigned()):
            self._covers += 1
            self._signing.sent(self._covers, keys)
            target, ok, answer = self._signing.target, True, dict[str, Any]()
            signed = self._link.acting.cover(target, keys)
            try:
                asked = {"op": "cover", "session": target.session, "signed": signed}
                answer = await wire.ask(asked, REPLY_WAIT_S)
            except HostGone:
                raise
            except HoldfastError as e:  # keys that the host did not take get no signature
                ok, answer = False, {"name": e.name}
            if self._signing.answered(self._covers, ok, answer):
                told = await wire.ask({"op": "place", "session": target.session}, REPLY_WAIT_S)
                target.seen = told.get("seen")
                self._signing.at = time.monotonic()

    def _end(self, why: HoldfastError | None) -> None:
        self._over = self._over or why
        self.ended = True
        self._changed.set()

    # ------------------------------------------------------------ frames

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.OUTPUT:
            _, end, acked, data = frames.read_output(payload)
            self._offset = end
            self._came(Piece(end, bytes(data), False), acked)
        elif kind == frames.SCREEN:
            offset, acked, _, _, _, data = frames.read_screen(payload)
            self._offset = offset
            self._came(Piece(offset, bytes(data), True), acked)
        elif kind == frames.EVENT:
            self._event(frames.read_json(payload))

    def _came(self, piece: Piece, acked: int) -> None:
        if acked:
            self._unacked.acked(acked)
            self._send_waiting()
        if piece.data:
            self._pieces.append(piece)
            self._bytes += len(piece.data)
            if self._bytes > QUEUE_BYTES and not self._paused and self._wire is not None:
                self._paused = True
                self._wire.pause(self)
        self._changed.set()

    def _event(self, body: dict[str, Any]) -> None:
        if body.get("event") == "ended":
            self._end(None)
            if self._wire is not None:
                self._wire.changed.set()
        elif body.get("event") == "refused":
            self._unacked.drop(int(body.get("number") or 0))
            self._refused = from_wire(body)
            self._send_waiting()
            self._changed.set()

    # ------------------------------------------------------------ use

    async def read(self) -> Piece | None:
        """The next output; None at the end of the session."""
        while not self._pieces:
            if self.ended:
                if self._over is not None:
                    raise self._over
                return None
            await self._wait()
        piece = self._pieces.popleft()
        self._bytes -= len(piece.data)
        if self._paused and self._bytes <= QUEUE_BYTES // 2 and self._wire is not None:
            self._paused = False
            self._wire.go_on(self)
        return piece

    async def write(self, data: bytes) -> None:
        """Types bytes; returns when the session has taken them."""
        self._refused = None
        for at in range(0, len(data), INPUT_CHUNK_BYTES):
            self._unacked.type(data[at : at + INPUT_CHUNK_BYTES])
        self._send_waiting()
        while self._unacked.waiting or len(self._unacked):
            if self._refused is not None:
                self._unacked.clear()
                raise self._refused
            if self.ended:
                raise self._over or Refused("the session has ended")
            await self._wait()
        if self._refused is not None:
            raise self._refused

    def resize(self, cols: int, rows: int) -> None:
        self._size = cols, rows
        if self._wire is not None:
            self._wire.write(frames.resize(0, cols, rows))

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _send_waiting(self) -> None:
        wire = self._wire
        while wire is not None and wire.gone is None and (data := self._unacked.next()) is not None:
            number = self._link.next_sequence()
            self._unacked.sent(number, data)
            self._type(wire, number, data)

    def _type(self, wire: Wire, number: int, data: bytes) -> None:
        wire.write(frames.input_(number, data, frames.INPUT_ACK))
        self._signing.typed(number, data, time.monotonic())
        wire.changed.set()
