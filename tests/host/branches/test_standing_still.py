"""A branch stands still while its files are read, and no halt is undone by that (A4, R3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.branches import branches
from holdfast.host.branches.branches import Branches
from holdfast.model.errors import Refused


class Halter:
    """Notes the orders. `during`: the state that the session gets while it is resumed."""

    def __init__(self, session: SimpleNamespace, during: str = "") -> None:
        self.session, self.during = session, during
        self.orders = list[str]()

    async def halt(self, where: object) -> None:
        self.orders.append("halt")

    async def resume(self, where: object) -> None:
        self.orders.append("resume")
        self.session.state = self.during or self.session.state


def made(monkeypatch: pytest.MonkeyPatch, during: str = "") -> tuple[Any, SimpleNamespace, Halter]:
    monkeypatch.setattr(branches, "execution", lambda session: session)
    session = SimpleNamespace(state="live")
    halter = Halter(session, during)
    one: Any = Branches.__new__(Branches)
    one._engine = SimpleNamespace(sessions={"a": session}, halter=halter)
    return one, session, halter


def kept(one: Any, meanwhile: Callable[[], object]) -> None:
    async def keep() -> None:
        async with one._standing_still("a"):
            meanwhile()

    asyncio.run(keep())


def test_r5_a_branch_goes_on_after_its_files_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, _, halter = made(monkeypatch)
    seen = list[str]()
    kept(one, lambda: seen.extend(halter.orders))
    assert seen == ["halt"]
    assert halter.orders == ["halt", "resume"]


@pytest.mark.parametrize("state", ["halted", "fenced"])
def test_a4_a_halt_while_files_are_read_stays(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    one, session, halter = made(monkeypatch)
    kept(one, lambda: setattr(session, "state", state))
    assert halter.orders == ["halt"]


@pytest.mark.parametrize("state", ["halted", "fenced"])
def test_a4_a_halt_while_the_branch_goes_on_stays(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    one, _, halter = made(monkeypatch, state)
    kept(one, lambda: None)
    assert halter.orders == ["halt", "resume", "halt"]


def test_r5_a_branch_is_not_discarded_while_a_keep_of_its_fork_is_under_way() -> None:
    """The list of steps, and the contents to write, are beside the branches."""
    one: Any = Branches.__new__(Branches)
    checkpoints = SimpleNamespace(busy=set())
    one._engine = SimpleNamespace(incarnations=SimpleNamespace(checkpoints=checkpoints))
    one.forks = SimpleNamespace(found=lambda session, name: SimpleNamespace(id="fk-1"))
    one._keeping = {"fk-1"}
    with pytest.raises(Refused, match="keep"):
        asyncio.run(one.discard("a", "work-1", "ann"))
