"""A client that leaves a `checkpoint --stop` leaves the end of the session to be noticed (R2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.contract.checkpoints import Checkpoint
from holdfast.host.requests.recovery import checkpoints


def test_r2_a_client_that_leaves_after_the_save_does_not_cancel_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All waiters share the future of the session's end."""

    async def run() -> None:
        saved = asyncio.Event()

        async def enter(*args: Any, **more: Any) -> None:
            return

        async def save(*args: Any) -> Any:
            saved.set()
            return SimpleNamespace(id="cp", ended=True, bytes=1)

        monkeypatch.setattr(checkpoints, "save", save)
        ended = asyncio.get_running_loop().create_future()
        engine = SimpleNamespace(
            find=lambda word: SimpleNamespace(id="s", name="work", ended=ended),
            incarnations=SimpleNamespace(checkpoints=None),
            door=SimpleNamespace(enter=enter),
            halter=None,
            journal=None,
        )
        host: Any = SimpleNamespace(engine=engine)
        conn = SimpleNamespace(operator="ann", event=lambda *args, **facts: None)
        ctx: Any = SimpleNamespace(act=None, number=1, conn=conn)
        signed: Any = None
        asked = Checkpoint(session="work", stop=True, seq=1, signed=signed)
        request = asyncio.create_task(checkpoints.checkpoint(host, ctx, asked))
        waiting = asyncio.create_task(saved.wait())
        await asyncio.wait({request, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert saved.is_set(), request
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait({request})
        assert request.cancelled() and not ended.cancelled()

    asyncio.run(run())
