"""A branch stands still while its files are read, and no halt is undone by that (A4, R3)."""

from __future__ import annotations

import asyncio
import threading
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
        self.orders, self.fails = list[str](), False

    async def halt(self, where: object) -> None:
        self.orders.append("halt")
        if self.fails:
            raise OSError("no")

    async def resume(self, where: object) -> None:
        self.orders.append("resume")
        self.session.state = self.during or self.session.state


class Mark:
    """The file that says that a keep reads the branch."""

    there = False

    def touch(self) -> None:
        self.there = True

    def exists(self) -> bool:
        return self.there

    def unlink(self, missing_ok: bool) -> None:
        self.there = False


FORK = SimpleNamespace(id="fk-1")


def made(monkeypatch: pytest.MonkeyPatch, during: str = "") -> tuple[Any, SimpleNamespace, Halter]:
    monkeypatch.setattr(branches, "execution", lambda session: session)
    session = SimpleNamespace(state="live", ended=SimpleNamespace(done=lambda: False))
    halter = Halter(session, during)
    one: Any = Branches.__new__(Branches)
    one._engine = SimpleNamespace(sessions={"a": session}, halter=halter)
    mark = Mark()
    one.forks = SimpleNamespace(reading=lambda fork, branch: mark, of_branch=lambda session: FORK)
    return one, session, halter


def kept(one: Any, meanwhile: Callable[[], object]) -> None:
    async def keep() -> None:
        async with one._standing_still(FORK, "a"):
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


def test_r5_files_that_were_read_while_an_operator_resumed_the_branch_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, session, halter = made(monkeypatch)
    session.name, session.state = "work-1", "halted"
    with pytest.raises(Refused, match="work-1 was resumed meanwhile"):
        kept(one, lambda: setattr(session, "state", "live"))
    assert halter.orders == []


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


@pytest.mark.parametrize(
    ("marked", "was", "stands"),
    [
        (True, "detached", False),
        (True, "halted", True),
        (True, "fenced", True),
        (False, "detached", True),
    ],
)
def test_r5_the_next_host_lets_a_branch_go_on_that_a_keep_had_stopped(
    monkeypatch: pytest.MonkeyPatch, marked: bool, was: str, stands: bool
) -> None:
    """The last host died while the keep read the files; a halt of an operator stays."""
    one, session, halter = made(monkeypatch)
    session.id = "a"
    mark = one.forks.reading("fk-1", "a")
    mark.there = marked
    assert asyncio.run(one.stands(session, was)) == stands
    assert halter.orders == ([] if stands else ["resume"])
    assert mark.there == (marked and stands)


def test_r5_a_branch_goes_on_if_it_could_not_be_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, halter = made(monkeypatch)
    halter.fails = True
    with pytest.raises(OSError, match="no"):
        kept(one, lambda: None)
    assert halter.orders == ["halt", "resume"]


class Slow(Halter):
    """A thread halts, which no cancellation stops: `halting` ends when it is over."""

    def __init__(self, session: SimpleNamespace) -> None:
        super().__init__(session)
        self.begun, self.halting = asyncio.Event(), asyncio.Event()

    async def halt(self, where: object) -> None:
        async def thread() -> None:
            self.begun.set()
            await self.halting.wait()
            self.orders.append("halt")

        await asyncio.shield(thread())


def test_r5_a_branch_goes_on_if_a_keep_is_given_up_while_a_thread_halts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def given_up() -> None:
        one, session, _ = made(monkeypatch)
        halter = one._engine.halter = Slow(session)

        async def keep() -> None:
            async with one._standing_still(FORK, "a"):
                raise AssertionError("it was given up")

        task = asyncio.ensure_future(keep())
        await halter.begun.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=0.01)
        halter.halting.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert halter.orders == ["halt", "resume"]
        assert not one.forks.reading("fk-1", "a").exists()

    asyncio.run(given_up())


def test_r5_a_mark_that_a_thread_still_makes_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the next host would take a halt of the operator for one of the keep."""

    one, _, _ = made(monkeypatch)
    mark = one.forks.reading("fk-1", "a")

    async def given_up() -> None:
        begun, goes_on = threading.Event(), threading.Event()

        def touch() -> None:
            begun.set()
            goes_on.wait(10)
            mark.there = True

        mark.touch = touch

        async def keep() -> None:
            async with one._standing_still(FORK, "a"):
                raise AssertionError("it was given up")

        task = asyncio.ensure_future(keep())
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.wait({task}, timeout=0.01)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(given_up())  # returns when all threads are done
    assert not mark.exists()


def test_r5_a_branch_is_not_discarded_while_a_keep_of_its_fork_is_under_way() -> None:
    """The list of steps, and the contents to write, are beside the branches."""
    one: Any = Branches.__new__(Branches)
    one._engine = SimpleNamespace()
    one.forks = SimpleNamespace(found=lambda session, name: SimpleNamespace(id="fk-1"))
    one._keeping = {"fk-1"}

    async def nothing() -> None:
        raise AssertionError("nothing is observed")

    with pytest.raises(Refused, match="keep"):
        asyncio.run(one.discard("a", "work-1", "ann", nothing))
