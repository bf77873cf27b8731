"""Sessions that a starting host has found, and adopts while it already serves clients.

Adopting a session takes some milliseconds: the host claims the keeper and reads the terminal,
lineage and layout. A host with 1,000 sessions would be silent for seconds if clients had to wait
for all sessions. So the host answers first. A request that names a session waits for that session
only, and the host adopts that session next. Requests about all sessions (`ls`, `new`) wait for all.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from holdfast.host.processes import process
from holdfast.transport import unix

AT_ONCE: Final = 4  # keepers that answer in parallel; requests are answered in between
SLOT_S: Final = 0.1  # a keeper that takes longer does not hold up the next
ANSWERED_AT_ONCE: Final = frozenset(("ping", "detach", "refresh"))  # no session, or an adopted one

Adopt = Callable[[str], Coroutine[Any, Any, None]]


class Adoptions:
    """The adoptions of a host. `adopt` recovers a session, or finds out why that is impossible."""

    def __init__(
        self,
        adopt: Adopt,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        known: Callable[[str], bool],
        keeper_pid: Callable[[str], int],
    ) -> None:
        """`known`: whether a word is the id or name of a session that was adopted, or cannot be.
        `keeper_pid`: of a session that was not adopted yet; 0: none."""
        self._adopt, self._spawn, self._known = adopt, spawn, known
        self._keeper_pid = functools.cache(keeper_pid)
        self.waiting: dict[str, str | None] = {}  # id -> name, if the store has a name
        self._begun: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._over = asyncio.Event()

    def begin(self, found: Mapping[str, str | None]) -> None:
        """In the background. `found`: ids, and the known names."""
        self.waiting.update(found)
        for session in found:
            self._spawn(self._in_turn(session))

    async def all(self) -> None:
        """Waits until every session is adopted, or cannot be."""
        while self.waiting:
            self._over.clear()
            await self._over.wait()

    async def needed_by(self, request: Mapping[str, Any], client: int) -> None:
        """Waits until a request can be answered. `client`: pid of the sender; 0: remote."""
        if not self.waiting or request.get("op") in ANSWERED_AT_ONCE:
            return
        word = request.get("session")
        if isinstance(word, str):
            around = {*process.ancestors(client)}
            needed = [one for one in self.waiting if self._may_be(one, word)]
            if around:  # the session that the client is inside of, if any
                needed += [one for one in self.waiting if self._keeper_pid(one) in around]
            await _done([self._next(one) for one in needed])
            if self._known(word):
                return
        await self.all()

    def _may_be(self, session: str, word: str) -> bool:
        name = self.waiting[session]
        return name is None or name == word or session.startswith(word)

    async def _in_turn(self, session: str) -> None:
        async with self._slots:
            if session in self.waiting:
                await asyncio.wait({self._next(session)}, timeout=SLOT_S)

    def _next(self, session: str) -> asyncio.Task[None]:
        """Adopts this session now, before all other waiting sessions."""
        if session not in self._begun:
            self._begun[session] = self._spawn(self._one(session))
        return self._begun[session]

    async def _one(self, session: str) -> None:
        try:
            await self._adopt(session)
        finally:
            self.waiting.pop(session, None)
            self._begun.pop(session, None)
            if not self.waiting:
                self._over.set()


async def _done(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


def keeper_pid(path: str) -> int:
    """The process that listens there; 0: none."""
    try:
        sock = unix.connect(path, socket.SOCK_SEQPACKET, blocking=False)
    except OSError:
        return 0
    with sock:
        return unix.peer(sock)[0]
