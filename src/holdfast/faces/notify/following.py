"""Follows the waits of several machines, and hands each to all ways at once.

A machine without an answer is asked again until the command ends. A way that fails or is slow does
not delay the rest: each way has a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Event
from holdfast.client.gone import NoRoute
from holdfast.core.policy.shown import shown
from holdfast.core.session.notices import Notice
from holdfast.core.session.waits import Wait, Waits
from holdfast.model.errors import HoldfastError, NotFound, TimedOut, Unavailable

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

AGAIN_S: Final = 1.0  # between attempts to reach a machine that does not answer
QUEUE_MAX: Final = 1000  # notices that a slow way has not taken yet
TEXT_CHARS: Final = 300  # of a command in a notice that people read

Said = Callable[[str], None]


def short(wait: Wait) -> str:
    """The text of a notice below the title."""
    text = wait.text if len(wait.text) <= TEXT_CHARS else wait.text[: TEXT_CHARS - 3] + "..."
    if wait.kind != "approval":
        return "" if wait.kind == "exit" else text
    which = f"{wait.machine}/{wait.id}" if wait.machine else wait.id
    return f"{text} (because {wait.why}; holdfast approve {which})"


class Way(Protocol):
    """How a notice reaches the person."""

    name: str

    async def send(self, wait: Wait) -> None:
        """Raises an error of Holdfast if the notice could not be delivered."""


class Outbox:
    """The notices for one way, in order."""

    def __init__(self, way: Way, said: Said) -> None:
        self._way, self._said = way, said
        self._queue: asyncio.Queue[Wait] = asyncio.Queue(QUEUE_MAX)

    def put(self, wait: Wait) -> None:
        try:
            self._queue.put_nowait(wait)
        except asyncio.QueueFull:
            self._said(f"{self._way.name}: too many notices wait; dropped: {wait.title}")

    async def run(self) -> None:
        while True:
            wait = await self._queue.get()
            try:
                await self._way.send(wait)
            except HoldfastError as e:
                self._said(f"{self._way.name}: not delivered: {wait.title}: {e.message}")


class Watched:
    """The waits of a machine. `machine`: the name; empty: this machine."""

    def __init__(
        self,
        engine: Engine,
        machine: str,
        kinds: frozenset[str],
        sessions: Sequence[str],
        told: Callable[[Wait], None],
        said: Said,
    ) -> None:
        self._engine, self._machine, self._told, self._said = engine, machine, told, said
        self._kinds, self._sessions = kinds, sessions
        self._waits = Waits(kinds)
        self._away = False  # the outage has been reported

    async def run(self) -> None:
        """Returns when all named sessions have ended; without names, never."""
        ids = [str((await self._named(one))["id"]) for one in self._sessions]
        self._waits = Waits(self._kinds, frozenset(ids))
        approvals = asyncio.create_task(self._follow("approvals"))
        try:
            if ids or self._kinds != {"approval"}:
                await self._follow("attention", sessions=ids)
            else:
                await approvals
        finally:
            approvals.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await approvals

    async def _named(self, session: str) -> Json:
        while True:
            try:
                return await self._engine.ask("get", session=session)
            except (Unavailable, TimedOut, NoRoute) as e:
                await self._unreached(e)

    async def _follow(self, op: str, **fields: Any) -> None:
        reached = False
        while True:
            try:
                stream = self._engine.stream(op, patient=True, follow=True, **fields)
                async with contextlib.aclosing(stream) as parts:
                    async for part in parts:
                        reached, self._away = True, False
                        if isinstance(part, Event):
                            self._event(part.body)
                return
            except (Unavailable, TimedOut, NoRoute) as e:
                await self._unreached(e)
            except NotFound:
                if not reached:
                    raise
                return  # the named sessions ended and were forgotten

    async def _unreached(self, error: HoldfastError) -> None:
        if not self._away:
            self._away = True
            self._said(f"{self._machine or 'this machine'}: {error.message}; trying again")
        await asyncio.sleep(AGAIN_S)

    def _event(self, event: Json) -> None:
        found: list[Wait] = []
        if event["event"] == "approvals":
            found = self._waits.asked(event["approvals"])
        elif event["event"] in ("attention", "over"):
            body = event["body"]
            notice = Notice(**{name: body[name] for name in Notice._fields})
            one = self._waits.noticed(notice, before=event["event"] == "over")
            found = [] if one is None else [one]
        elif event["event"] == "missed":
            self._said(f"{event['count']} sessions came and went without a notice")
        for wait in found:
            # All texts come from the machine, and a terminal would obey their control characters.
            texts: dict[str, Any] = {
                name: shown(value, escaped=True)
                for name, value in wait._asdict().items()
                if isinstance(value, str)
            }
            self._told(wait._replace(**{**texts, "machine": self._machine}))


async def follow(watched: Sequence[Watched], outboxes: Sequence[Outbox], said: Said) -> None:
    """Returns when all named sessions have ended.

    The command needs the first machine: an error of that machine ends the following. An error of a
    further machine is reported.
    """
    sending = [asyncio.create_task(one.run()) for one in outboxes]
    following = [asyncio.create_task(one.run()) for one in watched]
    try:
        for number, task in enumerate(following):
            try:
                await task
            except HoldfastError as e:
                if number == 0:
                    raise
                said(e.message)
    finally:
        for task in (*following, *sending):
            task.cancel()
        await asyncio.gather(*following, *sending, return_exceptions=True)
