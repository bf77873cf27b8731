"""What this machine does when it hears of a takeover, or of an old one (R3, host/copies)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from holdfast.host.copies import asking, errands
from holdfast.host.copies.asking import Asking
from holdfast.host.copies.copies import Copies
from holdfast.host.runtime.progress import Progress
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.storage import store
from holdfast.model.errors import HoldfastError, Unavailable

ID: Final = "0123456789ab"


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]) -> None:
        """`said`: by machine, the epoch or the error of its answer."""
        self.said, self.asked, self.went = said, list[str](), list[tuple[str, int]]()
        self.away: dict[str, Any] = {key: {"epoch": 5, "machine": key} for key in said}
        made: Any = Copies
        self.copies = made.__new__(Copies)
        engine: Any = SimpleNamespace(
            ended={}, sessions={ID: 1}, unreachable={}, tasks=Tasks("a test")
        )
        self.copies._engine = engine
        sending: Any = SimpleNamespace(
            away=lambda session: self.away, noted=lambda session, name: None
        )
        self.copies.sending = sending
        self.copies.asking = Asking(engine, sending, self.copies)
        self.copies.moving = SimpleNamespace(refuse_under_way=lambda session, name: None)
        self.copies.trusted = lambda key: SimpleNamespace(name=key)
        self.copies.gone = self.gone
        monkeypatch.setattr(errands, "ask_each", self.answer)

    async def answer(self, machine: Any, op: str, wait_s: float, each: list[Any]) -> Any:
        self.asked.append(machine.name)
        said = self.said[machine.name]
        if isinstance(said, Exception):
            raise said
        return [{"epoch": said, "at": None} for _ in each]

    async def gone(self, session: str, name: str, key: str, epoch: int) -> None:
        self.went.append((name, epoch))

    def ask(self) -> bool:
        found: bool = asyncio.run(self.copies.ask(ID))
        return found


def test_r3_a_takeover_ends_the_incarnation_here(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {"vault": 100})
    assert world.ask() and world.went == [("vault", 100)]


@pytest.mark.parametrize("epoch", [0, 4, 5])
def test_r3_a_claim_from_before_the_copy_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    world = World(monkeypatch, {"vault": epoch})
    assert not world.ask() and not world.went


@pytest.mark.parametrize("said", [Unavailable("x"), "100", None, -1])
def test_r3_a_machine_that_gives_no_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    world = World(monkeypatch, {"vault": said, "attic": 0})
    for _ in range(2):
        asyncio.run(world.copies.may_wake(ID))
    assert world.asked == ["vault", "attic"] * 2
    world.said["vault"] = 0
    for _ in range(2):
        asyncio.run(world.copies.may_wake(ID))
    assert world.asked == ["vault", "attic"] * 3
    world.copies.asking.heard.clear()
    world.said["attic"] = 100
    with pytest.raises(HoldfastError, match="goes on"):
        asyncio.run(world.copies.may_wake(ID))


@pytest.mark.parametrize(
    ("note", "state"),
    [
        ({"machine": "vault", "epoch": 6}, "moved"),
        ({"machine": "vault", "offered": True}, "ended"),
        ({"machine": "vault"}, "ended"),
    ],
)
def test_r3_a_session_is_moved_only_when_the_other_machine_has_it(
    monkeypatch: pytest.MonkeyPatch, note: dict[str, Any], state: str
) -> None:
    """The machine lost power in a move."""
    world = World(monkeypatch, {"vault": 0})
    world.copies._engine.sessions.clear()
    world.copies._engine.store = SimpleNamespace(post=lambda job: None)
    world.copies.sending.noted = lambda session, name: note
    row: Any = SimpleNamespace(id=ID, state="detached", reason="", ended=None)
    monkeypatch.setattr(store, "save", lambda row: None)
    assert not asyncio.run(world.copies.still_here(row))
    assert row.state == state and "vault" in row.reason


def test_r3_a_restore_asks_although_the_move_had_only_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, {"vault": 100})
    notes: list[Any] = [{"machine": "vault"}]
    world.copies.sending.noted = lambda session, name: notes[0]
    world.copies.sending.note = lambda session, name, value: notes.__setitem__(0, value)
    with pytest.raises(HoldfastError, match="goes on"):
        asyncio.run(world.copies.refuse_gone(ID))
    assert world.asked == ["vault"] and world.went == [("vault", 100)]


@pytest.mark.parametrize(
    ("note", "target", "there"),
    [
        ({"machine": "vault", "key": "k", "offered": False}, None, False),
        ({"machine": "vault", "key": "k"}, None, False),
        ({"machine": "vault", "key": "k"}, "vault", True),
        ({"machine": "vault", "key": "k", "offered": False}, "vault", True),
        ({"machine": "vault", "key": "k", "offered": True}, None, True),
    ],
)
def test_r3_a_session_that_came_back_from_a_move_is_not_awaited_elsewhere(
    monkeypatch: pytest.MonkeyPatch, note: dict[str, Any], target: str | None, there: bool
) -> None:
    """The other machine has given it back, and it could not be restored here so far."""
    world = World(monkeypatch, {"vault": 0})
    engine: Any = world.copies._engine
    row: Any = SimpleNamespace(id=ID, name="work", state="checkpointed", reason="saved", ended=1.0)
    engine.ended[ID] = row
    said = list[str]()
    engine.incarnations = SimpleNamespace(coming={}, refuse_if_saved=said.append)
    world.copies.sending.noted = lambda session, name: note
    monkeypatch.setattr(world.copies.moving, "target", lambda session: target, raising=False)
    found = {"machine": "vault", "key": "k", "epoch": None} if there else None
    assert world.copies.elsewhere(row) == found
    if there:
        with pytest.raises(HoldfastError, match="is being moved to vault"):
            world.copies.refuse("work")
    else:
        world.copies.refuse("work")
    assert said == ([] if there else ["work"])


class Over(BaseException):
    """The time of the test is over."""


def test_r3_each_machine_is_asked_once_about_all_sessions_and_all_machines_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that fails, or answers about some sessions only, keeps no other from its answer."""

    async def run() -> None:
        known = [f"{number:012x}" for number in range(20)]
        world = World(monkeypatch, {"vault": 0, "attic": 0, "cellar": 0})
        world.copies._engine.sessions = dict.fromkeys(known)
        asked, full = list[str](), asyncio.Event()

        async def answer(machine: Any, op: str, wait_s: float, each: list[Any]) -> Any:
            assert [one["id"] for one in each] == known
            asked.append(machine.name)
            if len(asked) == 3:
                full.set()
            await full.wait()
            if machine.name == "vault":
                raise Unavailable("x")
            if machine.name == "attic":
                return [{"epoch": 0}, {"error": {}}, *({"epoch": 6} for _ in known[2:5])]
            return [{"epoch": 0} for _ in known]

        monkeypatch.setattr(errands, "ask_each", answer)
        async with asyncio.timeout(30):
            assert await world.copies.asking.about(known) == {*known[2:5]}
        assert sorted(asked) == ["attic", "cellar", "vault"]
        assert world.went == [("attic", 6)] * 3
        assert not world.copies.asking.heard
        del world.away["vault"]
        await world.copies.asking.about(known)
        assert world.copies.asking.heard == {known[0]}

    asyncio.run(run())


def test_r3_a_session_that_ended_long_ago_is_asked_about_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, {"vault": 0})
    asks, engine = world.copies.asking, world.copies._engine
    monkeypatch.setattr(asking, "time", SimpleNamespace(time=lambda: 10_000.0))
    pauses = list[float]()
    for ended in (None, 9_950.0, 9_000.0, 1.0):
        asks._asked = {ID: 0.0}
        if ended is not None:
            engine.ended[ID] = SimpleNamespace(state="ended", ended=ended)
        pauses.append(next(now for now in range(1000) if asks._due(ID, now)))
    assert pauses == [0, 5, 100, asking.SELDOM_S]
    assert asks._due("another", 0.0)


def test_r2_a_restore_says_which_machines_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {"vault": 0, "attic": Unavailable("x")})
    told = list[Any]()
    tell = Progress(lambda **facts: told.append(facts))
    asyncio.run(world.copies.refuse_gone(ID, tell=tell))
    [one] = told
    assert one["step"] == "asks vault, attic" and one["until"] and one["stops"]


def test_r3_notes_are_read_in_a_thread_and_only_for_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round is due at the start, when a relay is reached again, and after a while."""
    world = World(monkeypatch, {"vault": 0})
    states = iter(["", "registered", "registered", "", "registered", "registered", "registered"])
    world.copies._engine.uplinks = SimpleNamespace(state=next(states))
    world.copies.sending.sessions = lambda: [ID]
    clock, rounds = 1000.0, list[float]()

    async def in_thread(work: Any) -> Any:
        rounds.append(clock)
        return work()

    async def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds if len(rounds) < 3 else asking.ASK_AGAIN_S + 1
        try:
            world.copies._engine.uplinks.state = next(states)
        except StopIteration:
            raise Over from None

    world.copies._engine.halter = SimpleNamespace(in_thread=in_thread)
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(Over):
        asyncio.run(world.copies.asking.watch())
    later = 1004.0 + asking.ASK_AGAIN_S + 1
    assert rounds == [1000.0, 1001.0, 1004.0, later, later + asking.ASK_AGAIN_S + 1]
    assert world.asked == ["vault"] * 5


def test_r3_a_session_that_does_not_end_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(monkeypatch, {"vault": 9})
        world.copies._engine.sessions = dict.fromkeys(["hangs", ID])
        filed = list[str]()

        async def gone(session: str, *arguments: Any) -> None:
            filed.append(session)
            if session == "hangs":
                await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(world.copies, "gone", gone)
        monkeypatch.setattr(asking, "FILED_S", 0.01)
        async with asyncio.timeout(30):
            for _ in range(2):
                assert await world.copies.asking.about(["hangs", ID]) == {"hangs", ID}
        assert filed == ["hangs", ID, ID], "a filing under way is not begun again"

    asyncio.run(run())
