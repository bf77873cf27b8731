"""One drain at a time, also after a cancel (R9)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.residency.draining import Draining
from holdfast.model.errors import Refused


def test_r9_a_drain_waits_for_the_end_of_one_that_was_cancelled() -> None:
    """Else both would take the events of the second, and the first would never end."""

    async def drained() -> None:
        go_on = asyncio.Event()

        async def free() -> int:
            return 1 << 40

        engine: Any = SimpleNamespace(
            sessions={},
            unreachable={},
            adoptions=SimpleNamespace(all=go_on.wait),
            events=SimpleNamespace(note=lambda *facts: None),
            incarnations=SimpleNamespace(checkpoints=None),
        )
        draining = Draining(engine, SimpleNamespace())  # type: ignore[arg-type]
        draining._free = free  # type: ignore[method-assign]
        draining._tell = lambda *args, **facts: None  # type: ignore[method-assign]
        first = asyncio.create_task(draining.run("ann", 5.0, "", lambda facts: None))
        await asyncio.sleep(0)
        assert draining.cancel("ann")
        second = asyncio.create_task(draining.run("ann", 5.0, "", lambda facts: None))
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(8):
            with pytest.raises(Refused, match="drain"):
                await second
            await first
            assert await draining.run("ann", 5.0, "", lambda facts: None) == ()

    asyncio.run(drained())
