"""The courier's patience with a machine that says nothing (R2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.client.engine.engine import Engine
from holdfast.client.gone import HostGone
from holdfast.courier import __main__ as courier
from holdfast.courier import delivery
from holdfast.model.errors import NotFound, TimedOut

Json = dict[str, Any]


class Machine:
    """An engine whose machine may answer pings, and answers the offer only when it is told to."""

    def __init__(self, alive: bool) -> None:
        self.alive = alive
        self.pinged = self.offered = 0
        self.answers = asyncio.Event()

    async def ask(self, op: str, wait_s: float | None = None, **fields: Any) -> Json:
        if op == "ping":
            self.pinged += 1
            if not self.alive:
                raise HostGone("the connection broke")
            return {}
        if op == "copies.offer":
            await self.answers.wait()
        return {"objects": [], "bytes": 0}


def deliver(machine: Machine, directory: Path, told: list[Json]) -> delivery.Delivery:
    errand: Json = {
        "machine": {"name": "vault"},
        "objects": str(directory),
        "session": "s",
        "checkpoint": "c",
        "description": str(directory / "d"),
        "name": "work",
        "epoch": 1,
        "size": 0,
    }
    return delivery.Delivery(cast(Engine, machine), errand, told.append)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"QUIET_S": 0.4, "ASKED_S": 0.0, "TOLD_S": 0.0, "LOOK_S": 0.01}.items():
        monkeypatch.setattr(delivery, name, value)


def test_r2_a_silent_machine_is_given_up_at_the_time_that_was_told(
    impatient: None, tmp_path: Path
) -> None:
    async def run() -> list[Json]:
        told = list[Json]()
        with pytest.raises(TimedOut, match="vault did not answer"):
            await deliver(Machine(False), tmp_path, told).run()
        return told

    told = asyncio.run(run())
    assert {*map(type, (one.get("until") for one in told))} == {float}


def test_r2_a_machine_that_answers_pings_has_time(impatient: None, tmp_path: Path) -> None:
    async def run() -> None:
        machine = Machine(True)
        work = asyncio.ensure_future(deliver(machine, tmp_path, []).run())
        while machine.pinged < 100:  # far beyond QUIET_S
            await asyncio.sleep(0)
        machine.answers.set()
        assert (await work)["sent"] == 0

    asyncio.run(run())


def test_r3_one_request_without_an_answer_keeps_no_reply_from_the_others() -> None:
    class Some:
        async def ask(self, op: str, wait_s: float, *, id: str) -> Json:
            if id == "silent":
                await asyncio.Event().wait()
            if id == "unknown":
                raise NotFound("x")
            return {"epoch": id}

    each = [{"id": one} for one in ("a", "silent", "unknown", "b")]
    errand: Json = {"op": "copies.taken", "wait_s": 0.2, "each": each}
    a, silent, unknown, b = asyncio.run(courier.ask_each(cast(Engine, Some()), errand))
    assert (a, b) == ({"epoch": "a"}, {"epoch": "b"})
    assert silent["error"]["name"] == TimedOut.name and unknown["error"]["name"] == NotFound.name
