"""Deadlines for a keeper that does not read them; leases before an incarnation begins (R3)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.records import HELD, INVALIDATED, Commit, Lease, encode, session_key
from holdfast.host.leases import fences
from holdfast.host.leases.fence import Fence
from holdfast.host.leases.fences import Leases
from holdfast.host.leases.ownership import NO_STORE, Ownership, Terms, boottime
from holdfast.host.leases.sqlite import SQLiteStore
from holdfast.host.processes.halt import Halter
from holdfast.host.session.session import Session
from holdfast.model.errors import Fenced, OutcomeUnknown, Refused, Unavailable
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
        _runs_not,
    )
    leases.begin(cast(Session, session))
    return leases, keeper


class Viewers(list[Any]):
    def tell(self, *_: object) -> None:
        pass


async def _runs_not(session: str) -> bool:
    return False


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


# ---------------------------------------------------------------- an incarnation that is being made

TERMS = Terms(0.5, 0.2)
ROUNDS = 3  # of a rival that waits for the end of a term


class Fleet:
    """This machine, which is about to bring session s back, and a rival with the same store."""

    def __init__(self, place: Path) -> None:
        self.store = SQLiteStore(f"{place}/leases.db")
        lease = Lease(1, "me", HELD, rehomable=True)
        assert self.store.commit(Commit((), ((session_key("s"), encode(lease)),)), 1.0)
        self.runs = False
        self.rival = Ownership(SQLiteStore(self.store.path), "rival", "rival", 1, TERMS)
        self.leases = Leases(
            lambda: Ownership(self.store, "me", "me", 1, TERMS),
            True,
            cast(Halter, SimpleNamespace(fenced=set())),
            {},
            self._runs,
        )

    async def _runs(self, session: str) -> bool:
        return self.runs

    async def rival_waits(self, rounds: int) -> bool:
        """Whether the rival waits that often, and does not get the session meanwhile."""
        waited, enough = 0, asyncio.Event()

        def waiting(left: float, why: str) -> None:
            nonlocal waited
            waited += 1
            if waited > rounds:
                enough.set()

        taking = asyncio.create_task(self.rival.take("s", 0, True, waiting))
        over = asyncio.create_task(enough.wait())
        await asyncio.wait({taking, over}, return_when=asyncio.FIRST_COMPLETED)
        for one in (taking, over):
            one.cancel()
        return enough.is_set()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leases.close()
        self.rival.close()


def test_r3_a_lease_is_renewed_while_the_incarnation_is_made(tmp_path: Path) -> None:
    async def go() -> None:
        async with Fleet(tmp_path) as fleet:
            assert await fleet.leases.acquire("s", 1) == 2
            assert await fleet.rival_waits(ROUNDS), "longer than a term"
            assert fleet.leases.deadline_ns("s") > boottime() * 1e9
            await fleet.leases.give_up("s")
            assert (await fleet.rival.take("s", 0)).epoch == 3, "no wait after a release"

    asyncio.run(go())


def test_r3_an_incarnation_does_not_begin_after_its_lease(tmp_path: Path) -> None:
    async def go() -> None:
        async with Fleet(tmp_path) as fleet:
            assert await fleet.leases.acquire("s", 1) == 2
            await fleet.rival.invalidate("s", "rival")
            assert (await fleet.rival.take("s", 0, True)).epoch == 3
            with pytest.raises(Fenced, match="ended before"):
                fleet.leases.deadline_ns("s")

    asyncio.run(go())


def test_r3_a_lease_is_not_released_while_the_session_may_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fences, "KEEPER_S", 0.1)

    async def go() -> None:
        async with Fleet(tmp_path) as fleet:
            await fleet.leases.acquire("s", 1)
            fleet.runs = True
            with pytest.raises(Refused, match="runs here"):
                await fleet.leases.let_go("s")
            await fleet.leases.give_up("s")
            assert await fleet.rival_waits(ROUNDS), "a keeper may be left"
            fleet.runs = False
            await fleet.leases.let_go("s")
            assert (await fleet.rival.take("s", 0)).epoch == 3

    asyncio.run(go())


def test_r3_a_cancelled_taker_can_release_what_the_store_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation arrives while a thread commits."""

    async def go() -> None:
        async with Fleet(tmp_path) as fleet:
            loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
            commit = fleet.store.commit

            def slow(asked: Commit, within_s: float) -> bool:
                loop.call_soon_threadsafe(begun.set)
                assert go_on.wait(30)
                return bool(commit(asked, within_s))

            monkeypatch.setattr(fleet.store, "commit", slow)
            taking = asyncio.create_task(fleet.leases.acquire("s", 1))
            await begun.wait()
            taking.cancel()
            loop.call_soon(go_on.set)
            await asyncio.wait({taking})
            assert taking.cancelled()
            await fleet.leases.let_go("s")
            assert (await fleet.rival.take("s", 0)).epoch == 3, "no wait after a release"

    asyncio.run(go())


@pytest.mark.parametrize("on", ["renewed", "taken back"])
def test_r3_a_later_fence_says_nothing_of_a_lease_that_an_operator_had_ended(on: str) -> None:
    async def go() -> None:
        leases, _ = world()
        session: Any = leases._sessions["s"]
        session.keeper_pid, session.name, session.viewers = 0, "work", Viewers()
        session.change = session.event = lambda *_, **__: None
        leases._halter.fenced, leases._halter.resume = set(), _nothing  # type: ignore[method-assign,assignment]
        leases.ownership.set_rehomable = _nothing  # type: ignore[method-assign,assignment]
        fence = leases._fences["s"]
        fence.saw(Lease(1, "me", INVALIDATED, rehomable=True), 5.0)
        assert leases.refusal(session).facts["until"]
        if on == "renewed":
            await leases._go_on(session, fence)
        else:
            await leases.set_rehomable(session, True, "ann")
        fence.why = NO_STORE
        said = leases.refusal(session)
        assert "until" not in said.facts and "when its lease is back" in said.recover
        leases.close()

    asyncio.run(go())


async def _nothing(*_: object) -> None:
    pass


def _silent(*_: object) -> Any:
    raise Unavailable("the store of leases does not answer")


def test_r3_a_lease_is_ended_although_the_store_falls_silent_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The act took effect, and says so; the incarnation here is fenced."""

    async def go() -> None:
        async with Fleet(tmp_path) as fleet:
            commit, frozen = fleet.store.commit, list[str]()

            def last(asked: Commit, within_s: float) -> int:
                done = commit(asked, within_s)
                monkeypatch.setattr(fleet.store, "read", _silent)
                return done

            async def freeze(session: object, fence: Fence, why: str) -> None:
                frozen.append(why)

            session, fence = SimpleNamespace(), Fence()
            monkeypatch.setattr(fleet.store, "commit", last)
            monkeypatch.setattr(fleet.leases, "_of", lambda *_: (session, fence))
            monkeypatch.setattr(fleet.leases, "lost", lambda *_: None)
            monkeypatch.setattr(fleet.leases, "_freeze", freeze)
            said = await fleet.leases.invalidate("s", "ann")
            assert said.lease is not None and said.lease.state == INVALIDATED
            assert (said.left, frozen) == (said.lease.wait_s, ["ann invalidated its lease"])

    asyncio.run(go())


def test_a9_whether_a_lease_ended_is_unknown_if_the_store_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with Fleet(tmp_path) as fleet:
            monkeypatch.setattr(fleet.store, "commit", _silent)
            with pytest.raises(OutcomeUnknown, match="did not say"):
                await fleet.leases.invalidate("s", "ann")
            monkeypatch.setattr(fleet.store, "read", _silent)
            with pytest.raises(Unavailable, match="does not answer"):
                await fleet.leases.invalidate("s", "ann")

    asyncio.run(go())
