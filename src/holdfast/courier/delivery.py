"""Delivers a copy: offers it, sends the contents that the other machine lacks, and commits.

Every step can be repeated, and a content goes on where it was cut. The delivery gives up when the
other machine was silent for QUIET_S: no content moved, and it answered nothing, not even a ping.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Event, Reply
from holdfast.client.engine.wire import Exchange
from holdfast.client.gone import HostGone
from holdfast.model.errors import HoldfastError, Impossible, PeerFault, TimedOut, Unavailable
from holdfast.model.ids import is_digest

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

QUIET_S: Final = 60.0
ASKED_S, TOLD_S = 2.0, 5.0  # of silence: then a ping is sent; the time of giving up is told
PING_S: Final = 5.0
LOOK_S: Final = 1.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.2, 5.0
COMMIT_S: Final = 600.0  # for the other machine's disk
PIECE_BYTES: Final = 256 * 1024
TOLD_BYTES: Final = 4 << 20  # between two reports of progress


class Lacking(NamedTuple):
    """Contents that the other machine lacks: hash, size and the bytes that it has."""

    objects: list[tuple[str, int, int]]
    bytes: int  # left of all, also of those on later pages


class Delivery:
    def __init__(self, engine: Engine, errand: Json, tell: Callable[[Json], None]) -> None:
        self._engine, self._errand, self._tell = engine, errand, tell
        self._objects = Path(errand["objects"])
        self._named = {"id": errand["session"], "checkpoint": errand["checkpoint"]}
        self._name = errand["machine"]["name"]
        self._heard = time.monotonic()  # when the last content moved, or an answer came
        self.sent = 0

    async def run(self) -> Json:
        work, watch = asyncio.ensure_future(self._run()), asyncio.ensure_future(self._silent())
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise TimedOut(f"{self._name} did not answer for {QUIET_S:.0f} s", "try again")
            return work.result()
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _silent(self) -> None:
        """Return when the other machine was silent for QUIET_S. Tell of it meanwhile."""
        told = False
        while (silent := time.monotonic() - self._heard) < QUIET_S:
            if told or silent >= TOLD_S:
                told = silent >= TOLD_S
                until = {"until": time.time() + QUIET_S - silent} if told else {}
                self._tell({"progress": self.sent, "of": self.sent, **until})
            if silent >= ASKED_S:
                with contextlib.suppress(HoldfastError, TimeoutError):
                    async with asyncio.timeout(PING_S):
                        await self._engine.ask("ping", PING_S)
                        self._heard = time.monotonic()
            await asyncio.sleep(LOOK_S)

    async def _run(self) -> Json:
        began, errand = time.monotonic(), self._errand
        description = Path(errand["description"])
        offer = {
            **self._named,
            "name": errand["name"],
            "epoch": errand["epoch"],
            "sha256": description.name,
            "length": errand["size"],
        }
        await self._again("copies.offer", offer)
        described, before = False, 0
        while (lacking := await self._lacking()).objects:
            if described and lacking.bytes >= before:
                raise PeerFault("the other machine does not keep what it gets")
            whole = await self._send(lacking)
            # Until the description is there, the machine cannot name the contents.
            before = lacking.bytes
            described = whole and lacking.objects[0][0] != description.name
        done = await self._again("copies.commit", self._named)
        return {**done, "sent": self.sent, "took_ms": (time.monotonic() - began) * 1000}

    async def _lacking(self) -> Lacking:
        """What is not there; the other machine may say anything."""
        said = await self._again("copies.missing", {**self._named, "after": 0})
        try:
            objects = [(str(sha), int(size), int(have)) for sha, size, have in said["objects"]]
            found = Lacking(objects, int(said["bytes"]))
        except (KeyError, ValueError, TypeError, OverflowError) as e:
            raise PeerFault("the list of lacking contents is damaged") from e
        if not all(is_digest(sha) and 0 <= have <= size < 1 << 63 for sha, size, have in objects):
            raise PeerFault("the list of lacking contents is damaged")
        return found

    async def _again(self, op: str, fields: Json) -> Json:
        """The reply, over losses of the connection. The key makes a repeat harmless."""
        once = {} if op == "copies.missing" else {"once": os.urandom(16).hex()}
        pause = PAUSE_FIRST_S
        while True:
            try:
                said = await self._engine.ask(op, COMMIT_S, **fields, **once)
                self._heard = time.monotonic()
                return said
            except HoldfastError as e:
                pause = await self._waited(e, pause)

    async def _waited(self, error: HoldfastError, pause: float) -> float:
        """Wait before the next attempt; raises the error if another attempt cannot help."""
        lost = isinstance(error, HostGone | Unavailable | TimedOut)
        if not lost or time.monotonic() - self._heard > QUIET_S:
            raise error
        await asyncio.sleep(pause)
        return min(pause * 2, PAUSE_MAX_S)

    async def _send(self, lacking: Lacking) -> bool:
        """Send the contents; a cut connection leaves the rest to the next round. False: cut."""
        begun = asyncio.Event()
        total, before = lacking.bytes + self.sent, self.sent

        async def feed(exchange: Exchange) -> None:
            await begun.wait()
            for sha, size, have in lacking.objects:
                if not await self._one(exchange, sha, size, have, total):
                    return
            await exchange.send(b"")

        try:
            async for part in self._engine.stream("copies.put", None, feed=feed, **self._named):
                if isinstance(part, Event) and part.name == "began":
                    if begun.is_set():
                        raise HostGone("the connection was made anew")
                    begun.set()
                elif isinstance(part, Reply):
                    return True
            raise PeerFault("an answer without a reply")
        except HoldfastError as e:
            if self.sent > before:
                self._heard = time.monotonic()
            await self._waited(e, PAUSE_FIRST_S)
            return False

    async def _one(self, exchange: Exchange, sha: str, size: int, have: int, total: int) -> bool:
        try:
            fd = os.open(self._objects / sha, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Impossible(
                "the other machine has lost contents that it had",
                "the next attempt sends all of them",
                lost=True,
            ) from None
        try:
            head = bytes.fromhex(sha) + have.to_bytes(8, "big") + (size - have).to_bytes(8, "big")
            if not await exchange.send(head):
                return False
            at = have
            while at < size and (piece := os.pread(fd, min(PIECE_BYTES, size - at), at)):
                if not await exchange.send(piece):
                    return False
                at += len(piece)
                if self.sent // TOLD_BYTES != (self.sent + len(piece)) // TOLD_BYTES:
                    self._tell({"progress": self.sent, "of": total})
                self.sent += len(piece)
                self._heard = time.monotonic()
        finally:
            os.close(fd)
        return True
