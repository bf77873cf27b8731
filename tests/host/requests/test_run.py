"""A run that is followed again (A9)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.requests import run
from holdfast.host.session.commands import Run
from holdfast.model.errors import OutcomeUnknown

RUN = "a-1"


class Stream:
    """All output has been sent."""

    def __init__(self, *_: object, **__: object) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.done.set_result(None)
        self.lost = 0

    def pump(self) -> None: ...

    def until(self, end: int) -> None: ...

    def close(self) -> None: ...


async def followed(monkeypatch: pytest.MonkeyPatch, known: Run) -> Any:
    """The answer to a repeat of a run, when the session stops for its checkpoint meanwhile."""
    monkeypatch.setattr(run, "Stream", Stream)
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    ended.set_result(None)

    async def or_end(future: asyncio.Future[Any], timeout: float | None = None) -> bool:
        return future.done()

    async def terminal() -> None: ...

    session: Any = SimpleNamespace(
        id="s",
        ref="hf:s@1",
        name="work",
        loop=loop,
        ended=ended,
        end_of=SimpleNamespace(saved_as="cp-1", gone="", bound_for="", saved_by="bob"),
        record=SimpleNamespace(output_end=0, exit_code=None),
        commands=SimpleNamespace(runs={RUN: known}, kernel_exits={}, contradicted={}),
        or_end=or_end,
        terminal=terminal,
    )
    watch: Any = SimpleNamespace(runid=RUN, done=loop.create_future(), stream=None)
    act = SimpleNamespace(outcome={}, taken=3)
    ctx: Any = SimpleNamespace(conn=None, number=1, act=act)
    asked: Any = SimpleNamespace(resume=None, for_terminal=False, timeout=0.0)
    return await run._follow(ctx, asked, session, watch, None)


def test_a9_a_repeat_of_a_finished_run_has_its_answer_while_the_session_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = asyncio.run(followed(monkeypatch, Run(0, 5, 7)))
    assert (found.exit_code, found.output.end, found.act) == (7, 5, 3)


def test_a9_a_run_that_goes_on_with_a_saved_session_has_no_answer_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(OutcomeUnknown, match="had not ended"):
        asyncio.run(followed(monkeypatch, Run(0, None, None)))
