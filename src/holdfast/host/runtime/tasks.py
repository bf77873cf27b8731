"""One step after the other, each to its end even if nobody waits for it any more: what is durable must be in memory too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Serially:
    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """After all that was begun before."""

        async def go() -> T:
            async with self._alone:
                return await work

        return await asyncio.shield(self.beside(go()))

    def beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """To its end, in no order."""

        def done(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # whoever waits is told; if nobody does any more, it is no defect of the host

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task
