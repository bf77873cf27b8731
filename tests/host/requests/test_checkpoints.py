"""A `checkpoint --stop` that is stored goes on to the end of the session (R2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.contract.checkpoints import Checkpoint
from holdfast.host.requests.recovery import checkpoints
from holdfast.host.runtime.connection import GAVE_UP
from tests.support.recovery.manifests import MADE


def test_r2_a_client_that_gives_up_after_the_save_hears_what_was_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told that it is too late. All waiters share the future of the session's end."""

    async def run() -> None:
        waits = asyncio.Event()
        told = list[tuple[str, bool]]()

        async def enter(*args: Any, **more: Any) -> None:
            return

        async def save(store: Any, session: Any, by: str, stop: bool, tell: Any, *more: Any) -> Any:
            tell("examined", 1)
            tell("stored", 1)
            return MADE

        def event(name: str, *, step: str, stops: bool, **facts: Any) -> None:
            told.append((step, stops))
            if step == "stopped":
                waits.set()

        monkeypatch.setattr(checkpoints, "save", save)
        ended = asyncio.get_running_loop().create_future()
        store = SimpleNamespace(place=lambda session, checkpoint: Path("place"))
        engine = SimpleNamespace(
            find=lambda word: SimpleNamespace(id="s", name="work", ended=ended),
            incarnations=SimpleNamespace(checkpoints=store),
            door=SimpleNamespace(enter=enter),
            halter=None,
            journal=None,
        )
        host: Any = SimpleNamespace(engine=engine)
        conn = SimpleNamespace(operator="ann", event=event, channel=None)
        ctx: Any = SimpleNamespace(act=SimpleNamespace(outcome=None), number=1, conn=conn)
        signed: Any = None
        asked = Checkpoint(session="work", stop=True, seq=1, signed=signed)
        request = asyncio.create_task(checkpoints.checkpoint(host, ctx, asked))
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait({request, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert waits.is_set(), request
        for _ in range(2):
            request.cancel(GAVE_UP)
            await asyncio.sleep(0)
        assert not ended.cancelled() and not request.done()
        ended.set_result(None)
        said = (await request).saved
        assert said is not None and said.checkpoint == ctx.act.outcome["checkpoint"] == MADE.id
        assert told == [("examined", True), ("stored", False), ("stopped", False)]

    asyncio.run(run())
