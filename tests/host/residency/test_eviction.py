"""An evicted session does not come back here if it was taken over elsewhere (R3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

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
