"""A fork that fails removes all its branches, and only then (R5)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.branches import fork
from holdfast.model.errors import Impossible, Unavailable

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


class Still(Forking):
    """A thread works until `goes_on`; `step`: which of the two steps. The store may refuse."""

    def __init__(self, refused: bool = False) -> None:
        super().__init__()
        self.refused = refused
        self.begun, self.goes_on, self.over = threading.Event(), threading.Event(), False
        self.session: Any = SimpleNamespace(id="s")
        self.engine.journal.once.of = self._keys

    async def _keys(self, session: str) -> Any:
        await asyncio.to_thread(self.begun.wait)
        if self.refused:
            raise Unavailable("the disk is full")
        return (1, "hash"), []

    def _copy_changed(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(30)
        self.over = True

    def _request(self, *_: object) -> Any:
        self._copy_changed()


@pytest.mark.parametrize("how", ["cancelled", "refused", "restored"])
def test_r5_a_fork_is_not_undone_while_a_thread_still_works_for_it(how: str) -> None:
    async def go() -> bool:
        one = Still(how == "refused")
        work = one._restored(None, None) if how == "restored" else one._still()  # type: ignore[arg-type]
        task = asyncio.ensure_future(work)
        await asyncio.to_thread(one.begun.wait)
        if how != "refused":
            task.cancel()
        early, _ = await asyncio.wait({task}, timeout=0.05)
        one.goes_on.set()
        await asyncio.wait({task})
        assert not early
        assert task.cancelled() if how != "refused" else isinstance(task.exception(), Unavailable)
        return one.over

    assert asyncio.run(go())
