"""Evictions: what does not come back here (R3), and an eviction that is cut off (R8)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.residency import eviction
from holdfast.host.residency.eviction import Evictions
from holdfast.model.errors import Refused


def test_r3_an_evicted_session_that_was_taken_over_does_not_come_back() -> None:
    restored = list[str]()

    async def restore(row: Any, *args: Any) -> Any:
        restored.append(row.id)
        return SimpleNamespace(session=None)

    async def gone(session: str) -> None:
        raise Refused("the session goes on at vault as incarnation 100")

    async def found(row: Any) -> Any:
        return SimpleNamespace(id="cp", bytes=1, at=1.0)

    async def run() -> None:
        incarnations = SimpleNamespace(
            restore=restore, checkpoints=SimpleNamespace(busy=frozenset[str]())
        )
        engine: Any = SimpleNamespace(incarnations=incarnations, sessions={})
        evictions = Evictions(engine)
        evictions.manifest = found  # type: ignore[method-assign]
        evictions.may_wake = gone
        row: Any = SimpleNamespace(id="s", name="work")
        with pytest.raises(Refused, match="goes on at vault"):
            await evictions.restore(row, "ann", lambda facts: None)

    asyncio.run(run())
    assert restored == []


def test_r8_an_eviction_that_is_cut_off_leaves_the_end_to_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that closes cancels the eviction; all other waiters share the future of the end."""

    async def run() -> None:
        saved = asyncio.Event()

        async def examine(*args: Any) -> Any:
            return SimpleNamespace(possible=True)

        async def save(*args: Any) -> Any:
            saved.set()
            return SimpleNamespace(id="cp", epoch=1, bytes=1)

        monkeypatch.setattr(eviction, "examine", examine)
        monkeypatch.setattr(eviction, "save", save)
        ended = asyncio.get_running_loop().create_future()
        session: Any = SimpleNamespace(id="s", ended=ended)
        engine: Any = SimpleNamespace(
            incarnations=SimpleNamespace(checkpoints=None), halter=None, journal=None, sessions={}
        )
        evicting = asyncio.create_task(Evictions(engine).evict(session, "idle"))
        waiting = asyncio.create_task(saved.wait())
        await asyncio.wait({evicting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert saved.is_set(), evicting
        await asyncio.sleep(0)
        evicting.cancel()
        await asyncio.wait({evicting})
        assert evicting.cancelled() and not ended.cancelled()

    asyncio.run(run())
