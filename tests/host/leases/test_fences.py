"""Deadlines on their way to a keeper that does not read them (R3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from holdfast.host.leases.fences import Leases
from holdfast.host.leases.ownership import Ownership, Terms, boottime
from holdfast.host.processes.halt import Halter
from holdfast.host.session.session import Session
from holdfast.wire import keeper as wire


class Keeper:
    """Reads packets when it is told to; `answers` are questions that it has not read yet."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.answers: list[asyncio.Future[None]] = []

    def send(self, packet: bytes) -> None:
        self.sent.append(wire.read_two(packet)[1])

    async def terminal(self, within_s: float | None = 5.0) -> None:
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]

    def reads(self) -> None:
        for one in self.answers:
            one.set_result(None)
        self.answers.clear()


def world() -> tuple[Leases, Keeper]:
    keeper = Keeper()
    record = SimpleNamespace(epoch=1, root_pid=0, rehomable=True, halted=False)
    session = SimpleNamespace(
        id="s", record=record, link=keeper, terminal=keeper.terminal, state="detached"
    )
    owner = SimpleNamespace(terms=Terms(10.0, 0.05), close=lambda: None)
    halter = SimpleNamespace(groups=SimpleNamespace(find=lambda *_: ""))
    leases = Leases(
        lambda: cast(Ownership, owner),
        True,
        cast(Halter, halter),
        {"s": cast(Session, session)},
    )
    leases.begin(cast(Session, session))
    return leases, keeper


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@given(st.lists(st.booleans(), max_size=40))
def test_r3_a_keeper_gets_the_newest_deadline_and_never_two_unread(reads: list[bool]) -> None:
    """True: the keeper reads. False: the lease is renewed."""

    async def go() -> None:
        leases, keeper = world()
        renewed: list[int] = []
        for read in reads:
            if read:
                keeper.reads()
            else:
                until = boottime() + 10 + len(renewed)
                renewed.append(int(until * 1e9))
                leases.extend("s", 1, until)
            await _settle()
            assert len(keeper.answers) <= 1, "at most one deadline is unread"
            assert keeper.sent == sorted(keeper.sent)
        for _ in range(2):
            keeper.reads()
            await _settle()
        assert keeper.sent[-1:] == renewed[-1:]
        leases.close()

    asyncio.run(go())


def test_r3_the_wait_for_a_keeper_ends_with_the_session() -> None:
    async def go() -> None:
        leases, keeper = world()
        session: Any = leases._sessions["s"]
        leases.ownership.drop = lambda session: None  # type: ignore[method-assign]
        leases._halter.fenced = set()
        leases.extend("s", 1, boottime() + 10)
        await _settle()
        leases.end(session)
        await _settle()
        assert keeper.answers[0].cancelled()

    asyncio.run(go())
