"""What this machine does when it hears of a takeover, or of an old one (R3, host/copies)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from holdfast.host.copies import copies, errands
from holdfast.host.copies.copies import Copies
from holdfast.host.storage import store
from holdfast.model.errors import HoldfastError, Unavailable

ID: Final = "0123456789ab"


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]) -> None:
        """`said`: by machine, the epoch or the error of its answer."""
        self.said, self.asked, self.went = said, list[str](), list[tuple[str, int]]()
        self.away: dict[str, Any] = {key: {"epoch": 5} for key in said}
        made: Any = Copies
        self.copies = made.__new__(Copies)
        engine = SimpleNamespace(ended={}, sessions={ID: 1}, unreachable={})
        self.copies._engine = engine
        self.copies._asking, self.copies._heard = {}, set()
        self.copies.sending = SimpleNamespace(
            away=lambda session: self.away, noted=lambda session, name: None
        )
        self.copies.moving = SimpleNamespace(refuse_under_way=lambda session, name: None)
        self.copies.trusted = lambda key: SimpleNamespace(name=key)
        self.copies.gone = self.gone
        monkeypatch.setattr(errands, "ask", self.answer)

    async def answer(self, machine: Any, op: str, wait_s: float, **fields: Any) -> Any:
        self.asked.append(machine.name)
        said = self.said[machine.name]
        if isinstance(said, Exception):
            raise said
        return {"epoch": said, "at": None}

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
    world.copies._heard.clear()
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


@pytest.mark.parametrize("sessions", [1, copies.ASKED_AT_ONCE, 3 * copies.ASKED_AT_ONCE])
def test_r3_a_round_asks_about_several_sessions_at_a_time(
    monkeypatch: pytest.MonkeyPatch, sessions: int
) -> None:
    """Each question fails; all sessions are asked about."""

    async def run() -> None:
        world = World(monkeypatch, {})
        known = [f"{number:012x}" for number in range(sessions)]
        asked, now, most, full = list[str](), 0, 0, asyncio.Event()

        async def ask(session: str) -> bool:
            nonlocal now, most
            asked.append(session)
            now += 1
            most = max(most, now)
            if most == min(sessions, copies.ASKED_AT_ONCE):
                full.set()
            await full.wait()
            now -= 1
            raise Unavailable("x")

        world.copies.ask = ask
        async with asyncio.timeout(30):
            await world.copies._ask_all(known)
        assert sorted(asked) == known
        assert most == min(sessions, copies.ASKED_AT_ONCE)

    asyncio.run(run())


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
        clock += seconds if len(rounds) < 3 else copies.ASK_AGAIN_S + 1
        try:
            world.copies._engine.uplinks.state = next(states)
        except StopIteration:
            raise Over from None

    world.copies._engine.halter = SimpleNamespace(in_thread=in_thread)
    monkeypatch.setattr(copies, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(Over):
        asyncio.run(world.copies._watch())
    later = 1004.0 + copies.ASK_AGAIN_S + 1
    assert rounds == [1000.0, 1001.0, 1004.0, later, later + copies.ASK_AGAIN_S + 1]
    assert world.asked == ["vault"] * 5
