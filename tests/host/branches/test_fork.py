"""A fork that fails removes all its branches, and only then (R5)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.branches import fork
from holdfast.model.errors import Impossible

TURNS = 20  # of the loop; any number


class Forking(fork._Forking):
    """Without processes: notes the steps. The branch "bad" fails; the others take longer."""

    def __init__(self, *names: str) -> None:
        done = SimpleNamespace(write=lambda made: None, commit=lambda made: None)
        self.forks: Any = done
        self.fork: Any = SimpleNamespace(branches=[SimpleNamespace(id=one) for one in names])
        self.engine: Any = SimpleNamespace(
            journal=SimpleNamespace(once=SimpleNamespace(inherit=self._step))
        )
        self.found: Any = SimpleNamespace(bytes=0)
        self.tell = lambda step, done: None
        self.copies, self.made, self.keys, self.images = {}, [], [], Path()
        self.steps, self.undoing = list[str](), asyncio.Event()

    async def _step(self, *_: object) -> Any:
        await asyncio.sleep(0)

    _dumped = _describe = _step

    def _first_copies(self) -> None: ...

    _finish_copies = _first_copies

    async def _begin(self, branch: Any, dumped: object) -> None:
        if branch.id == "bad":
            raise Impossible("bad")
        await self._turns()
        self.steps.append(branch.id)

    async def _undo(self) -> None:
        self.undoing.set()
        self.steps.append("undo")
        await self._turns()
        self.steps.append("undone")

    async def _turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


def test_r5_a_failed_fork_is_undone_when_no_branch_is_being_restored() -> None:
    async def go() -> list[str]:
        forking = Forking("a", "bad", "b")
        with pytest.raises(Impossible, match="bad"):
            await forking.run()
        return forking.steps

    assert asyncio.run(go()) == ["a", "b", "undo", "undone"]


def test_r5_a_failed_fork_is_undone_although_the_client_leaves() -> None:
    async def go() -> list[str]:
        forking = Forking("bad")
        running = asyncio.ensure_future(forking.run())
        await forking.undoing.wait()
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(Impossible, match="bad"):
            await running
        return forking.steps

    assert asyncio.run(go()) == ["undo", "undone"]
