"""One drain at a time, also after a cancel (R9)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.checkpoint.preflight import Preflight
from holdfast.host.residency import draining as module
from holdfast.host.residency.draining import BEGAN, Draining
from holdfast.model.errors import OutcomeUnknown, Refused


def test_r9_a_drain_waits_for_the_end_of_one_that_was_cancelled() -> None:
    """Else both would take the events of the second, and the first would never end."""

    async def drained() -> None:
        go_on = asyncio.Event()

        async def free() -> int:
            return 1 << 40

        engine: Any = SimpleNamespace(
            sessions={},
            ended={},
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


class Machine:
    """A machine with sessions that are saved by `evict`, or moved by `mover`."""

    def __init__(self, *names: str) -> None:
        self.sessions = {name: self.session(name) for name in names}
        self.busy, self.ended = set[str](), dict[str, Any]()
        engine: Any = SimpleNamespace(
            ended=self.ended,
            sessions=self.sessions,
            unreachable={},
            adoptions=SimpleNamespace(all=self.adopted),
            events=SimpleNamespace(note=lambda *facts: None),
            incarnations=SimpleNamespace(
                checkpoints=SimpleNamespace(free=lambda: 1 << 40, busy=self.busy)
            ),
        )
        self.draining = Draining(engine, SimpleNamespace(evict=self.evict))  # type: ignore[arg-type]

    def session(self, name: str) -> Any:
        viewers = SimpleNamespace(tell=lambda *args, **facts: None)
        end_of = SimpleNamespace(saved_as="")
        return SimpleNamespace(id=name, name=name, ending=False, viewers=viewers, end_of=end_of)

    async def adopted(self) -> None:
        return

    async def evict(self, session: Any, why: str, tell: Any) -> Any:
        assert session.id not in self.busy
        del self.sessions[session.id]
        return SimpleNamespace(id="cp", bytes=1, losses=())

    def drain(
        self, monkeypatch: pytest.MonkeyPatch, to: str = "", notice_s: float = 5.0
    ) -> dict[str, Any]:
        async def examine(*args: Any) -> Preflight:
            return Preflight((), (), 1, 0.1)

        async def run() -> dict[str, Any]:
            found = await self.draining.run("ann", notice_s, to, lambda facts: None)
            return {one.name: one for one in found}

        monkeypatch.setattr(module, "examine", examine)
        return asyncio.run(run())


@pytest.mark.parametrize("error", [OutcomeUnknown("it did not answer"), RuntimeError("x")])
def test_r9_a_session_that_is_at_neither_place_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine("good", "lost")

    async def mover(session: Any, to: str) -> str:
        del machine.sessions[session.id]
        if session.name == "lost":
            raise error
        return to

    machine.draining.mover = mover
    found = machine.drain(monkeypatch, "vault")
    assert found["good"].saved and found["good"].machine == "vault"
    assert not found["lost"].saved and str(error) in found["lost"].why


def test_r9_a_drain_to_a_machine_names_sessions_that_stay_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def mover(session: Any, to: str) -> str:
        del machine.sessions[session.id]
        return to

    machine = Machine("good")
    machine.draining.mover = mover
    for name, state in (("before", "checkpointed"), ("over", "ended")):
        machine.ended[name] = SimpleNamespace(id=name, name=name, state=state)
    found = machine.drain(monkeypatch, "vault")
    assert {*found} == {"good", "before"} and not found["before"].saved
    assert "holdfast move before vault" in str(found["before"].then)
    machine = Machine()
    machine.ended["before"] = SimpleNamespace(id="before", name="before", state="checkpointed")
    assert machine.drain(monkeypatch, "") == {}, "they are saved on this machine"


def test_r9_a_session_that_began_while_others_were_saved_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine("good")
    evict = machine.evict

    async def slow(session: Any, why: str, tell: Any) -> Any:
        machine.sessions["late"] = machine.session("late")
        return await evict(session, why, tell)

    machine.draining._evictions.evict = slow  # type: ignore[method-assign,assignment]
    found = machine.drain(monkeypatch)
    assert found["good"].saved and found["late"].why == BEGAN


def test_r9_a_drain_waits_for_a_save_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("busy")
    machine.busy.add("busy")
    pause = asyncio.sleep

    async def slept(seconds: float) -> None:
        machine.busy.clear()
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", slept)
    assert machine.drain(monkeypatch)["busy"].saved


@pytest.mark.parametrize("late", [False, True])
def test_r9_a_move_that_is_not_over_at_the_end_of_the_notice_is_named_so(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    machine = Machine("slow")

    async def mover(session: Any, to: str) -> str:
        session.end_of.saved_as = "cp-0123456789ab" if late else ""
        await asyncio.get_running_loop().create_future()
        return to

    machine.draining.mover = mover
    found = machine.drain(monkeypatch, "vault", notice_s=0.5)
    if late:
        assert found["slow"].why == "on its way to vault" and found["slow"].then == module.MOVING
    else:  # the move was given up
        assert "no time was left" in found["slow"].why and found["slow"].then == module.LEFT
