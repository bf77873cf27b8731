"""A dump keeps halt and fence apart, and loses no end of either (A4, R2, R3)."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.checkpoints import dumping, halts
from holdfast.host.session.session import Session

STATES = ["live", "detached", "halted", "fenced"]


class Halter:
    def __init__(self) -> None:
        self.dumping = dict[str, asyncio.Future[None]]()
        self.resumed = 0

    async def in_thread(self, work: Any, *arguments: object) -> None:
        work(*arguments)

    async def resume(self, where: object) -> None:
        assert not self.dumping
        self.resumed += 1


def session(state: str, halted: bool = False) -> Any:
    made: Any = Session.__new__(Session)
    made.id, made.keeper_pid = "s", 1
    made.record = SimpleNamespace(state=state, halted=halted, root_pid=2)
    return made


def dump(of: Any, halter: Any) -> Any:
    rest: list[Any] = [None] * 5
    return dumping._Dumping(of, halter, *rest)


@pytest.mark.parametrize("after", STATES)
@pytest.mark.parametrize("before", STATES)
def test_a4_r3_a_session_goes_on_if_its_halt_or_fence_ended_during_the_dump(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setattr(halts, "hold", lambda where, stands: None)
    one, halter = session(before), Halter()

    async def go() -> None:
        made = dump(one, halter)
        halter.dumping["s"] = asyncio.get_running_loop().create_future()
        one.record.state = after
        await made._let_go(None)

    asyncio.run(go())
    stands = ("halted", "fenced")
    assert halter.resumed == (before in stands and after not in stands)


@pytest.mark.parametrize(
    ("state", "noted", "halted"),
    [
        ("detached", False, False),
        ("detached", True, False),  # from an earlier fence
        ("halted", False, True),
        ("fenced", False, False),
        ("fenced", True, True),
    ],
)
def test_a4_r3_a_session_that_is_fenced_is_saved_as_halted_only_if_it_was_halted(
    state: str, noted: bool, halted: bool
) -> None:
    assert dump(session(state, noted), Halter()).halted == halted


def test_r2_a_checkpoint_that_is_given_up_leaves_no_checkpointer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its interpreter starts in a thread, which no cancellation stops."""
    begun, go_on, ended = asyncio.Event(), threading.Event(), list[str]()

    class Starting:
        def __init__(self) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(60)

        async def end(self) -> None:
            ended.append("ended")

    async def go() -> None:
        made = asyncio.ensure_future(dump(session("detached"), Halter()).run())
        await begun.wait()
        made.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait({made})
        assert made.cancelled()

    monkeypatch.setattr(dumping, "CheckpointerProcess", Starting)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(go())
    assert ended == ["ended"]
