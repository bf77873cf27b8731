"""Asks other machines whether they have taken sessions of this machine over.

This machine asks when it starts, before it brings a session back, when a relay is reached again,
and from time to time: about sessions that ended long ago, seldom. Each machine is asked by one
process about all sessions of which it has copies, and all machines are asked at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from holdfast.host.copies import errands
from holdfast.host.copies.arrive import COPIED, MOVED
from holdfast.host.copies.sending import MOVE, Sending
from holdfast.host.runtime.notify import log_errors
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.home.machines import Machine
    from holdfast.host.copies.engine import Engine
    from holdfast.host.copies.moving import Gone

ASK_S: Final = 10.0  # for another machine to say whether it has taken sessions over
ASK_AGAIN_S: Final = 10.0
AGED: Final = 0.1  # of the time since a session ended: the pause between two questions about it
SELDOM_S: Final = 300.0  # the longest pause
ASKED_AT_ONCE: Final = 8  # machines; each is a process
FILED_S: Final = 20.0  # for a session here to end: one that hangs does not hold the others up
LOOK_S: Final = 1.0  # between two looks at the lines to the relays


class Asking:
    def __init__(self, engine: Engine, sending: Sending, files: Gone) -> None:
        self._engine, self._sending, self._files = engine, sending, files
        self.heard = set[str]()  # sessions about which every machine has answered this host
        self._asked = dict[str, float]()  # when the last round asked about a session
        self._filing: dict[str, asyncio.Task[None]] = {}

    async def watch(self) -> None:
        """Ask at the start, after a loss of the relay, and later."""
        asked, before = -math.inf, ""
        while True:
            now, state = time.monotonic(), self._engine.uplinks.state
            again = state == "registered" != before
            before = state
            if again or now - asked > ASK_AGAIN_S:
                with log_errors("questions about copies"):
                    away = await self._engine.halter.in_thread(self._away)
                    due = [one for one in away if again or self._due(one, now)]
                    self._asked = {one: now if one in due else self._asked[one] for one in away}
                    await self.about(due)
                asked = time.monotonic()  # a machine that is silent makes a round long
            await asyncio.sleep(LOOK_S)

    def _away(self) -> list[str]:
        """In a thread: the sessions of which other machines have copies."""
        return [one for one in self._sending.sessions() if self._sending.away(one)]

    def _due(self, session: str, now: float) -> bool:
        if session not in self._asked:
            return True
        row = self._engine.ended.get(session)
        ended = time.time() - row.ended if row is not None and row.ended else 0.0
        return now - self._asked[session] >= min(ended * AGED, SELDOM_S)

    def machines(self, session: str) -> list[str]:
        """The names of the machines that will be asked about a session."""
        if self._went(session):
            return []
        return [str(sent["machine"]) for sent in self._sending.away(session).values()]

    async def about(self, sessions: Iterable[str]) -> set[str]:
        """Those of the sessions that went to another machine; what is left here ends."""
        went, known = set[str](), dict[str, dict[str, int]]()
        silent = dict[str, set[str]]()
        for session in sessions:
            if self._went(session):
                went.add(session)
                continue
            away = self._sending.away(session)
            silent[session] = {*away}
            for key, sent in away.items():
                known.setdefault(key, {})[session] = int(sent.get("epoch", 0))
        slots = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(key: str) -> None:
            async with slots:
                with log_errors("a question about copies"), contextlib.suppress(HoldfastError):
                    machine = self._files.trusted(key)
                    for session, epoch in (await self._answers(machine, [*known[key]])).items():
                        silent[session].discard(key)
                        if epoch > known[key][session]:  # else it came back since
                            went.add(session)
                            await self._file(session, machine, key, epoch)

        await asyncio.gather(*map(ask, known))
        self.heard |= {one for one, left in silent.items() if not left and one not in went}
        return went

    def _went(self, session: str) -> bool:
        row = self._engine.ended.get(session)
        if row is not None and row.state in (MOVED, COPIED):
            return True
        runs = session in self._engine.sessions or session in self._engine.unreachable
        return not runs and self._sending.noted(session, MOVE) is not None

    async def _answers(self, machine: Machine, sessions: list[str]) -> dict[str, int]:
        """The incarnation there, or 0, of each session about which the machine answered."""
        each = [{"id": one} for one in sessions]
        replies = await errands.ask_each(machine, "copies.taken", ASK_S, each)
        found = dict[str, int]()
        for session, reply in zip(sessions, replies, strict=False):
            with contextlib.suppress(HoldfastError):
                found[session] = errands.epoch_of(reply)
        return found

    async def _file(self, session: str, machine: Machine, key: str, epoch: int) -> None:
        """File a session that went there. Questions at the same time share the work."""
        task = self._filing.get(session)
        if (task is None or task.done()) and not self._went(session):
            filing = self._filed(session, machine, key, epoch)
            task = self._filing[session] = self._engine.tasks.spawn(filing)
        if task is not None:
            await asyncio.wait({task}, timeout=FILED_S)

    async def _filed(self, session: str, machine: Machine, key: str, epoch: int) -> None:
        with contextlib.suppress(HoldfastError, TimeoutError):
            await self._files.gone(session, machine.name, key, epoch)
