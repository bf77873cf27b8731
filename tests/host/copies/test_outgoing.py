"""Schedules of copies, and copies that are sent again (host/copies/outgoing.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import home as homes
from holdfast.core.checkpoint import copies
from holdfast.home import machines
from holdfast.home.machines import Way
from holdfast.host.copies import outgoing, trusted
from holdfast.host.copies.outgoing import Outgoing
from holdfast.host.copies.sending import AGAIN, EVERY
from holdfast.host.runtime.progress import Progress
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused, Unavailable

ID: Final = "0123456789ab"
MACHINE: Any = SimpleNamespace(name="vault", key=bytes(32))
EVERY_S: Final = 60.0


class Over(BaseException):
    """The time of the test is over."""


class World:
    """A host with one session. `happens`: changes at a time; sleeping moves the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, until: float) -> None:
        self.now, self.until = 1000.0, 1000.0 + until
        self.happens: dict[float, Any] = {}
        self.notes: dict[str, Any] = {}
        self.sent: list[float] = []
        self.told: list[str] = []
        self.error: Exception | None = None
        self.answer: HoldfastError | None = None
        self.session: Any = SimpleNamespace(
            id=ID, ending=False, answers=True, label={}, event=lambda *args, **facts: None
        )
        self.engine: Any = SimpleNamespace(
            journal=None,
            home=None,
            sessions={ID: self.session},
            ended={},
            halter=SimpleNamespace(in_thread=self.in_thread),
            incarnations=SimpleNamespace(checkpoints=SimpleNamespace(chosen=self.chosen)),
            events=SimpleNamespace(note=lambda session, name, facts: self.told.append(name)),
            tasks=SimpleNamespace(spawn=self.spawn),
        )
        sending: Any = SimpleNamespace(
            ask_whether=self.ask_whether,
            send=self.send,
            note=self.note,
            noted=lambda session, name: self.notes.get(name),
            away=lambda session: self.notes.get("away", {}),
            sessions=lambda: [ID],
        )
        self.sending = sending
        monkeypatch.setattr(outgoing, "save", self.save)
        monkeypatch.setattr(outgoing, "time", SimpleNamespace(time=lambda: self.now))
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(trusted, "find", lambda home, word: MACHINE)
        self.work: list[Any] = []
        self.outgoing = Outgoing(self.engine, sending, self.asked)

    def spawn(self, work: Any) -> Any:
        self.work.append(work)
        return SimpleNamespace(cancel=lambda: None)

    async def asked(self, session: str) -> bool:
        return False

    async def in_thread(self, work: Any, *args: Any) -> Any:
        return work(*args)

    def chosen(self, session: str, word: str) -> Any:
        return SimpleNamespace(id=word, at=self.now)

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 0.001)
        for at in sorted(self.happens):
            if at <= self.now:
                self.happens.pop(at)()
        if self.now > self.until:
            raise Over

    async def ask_whether(self, session: Any, machine: Any) -> Any:
        if self.answer is not None:
            raise self.answer

    async def save(self, *args: Any) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(id="cp-0", at=self.now)

    async def send(self, *args: Any) -> Any:
        self.sent.append(self.now)
        return SimpleNamespace(checkpoint="cp-0", bytes=1, sent=1, took_ms=1.0)

    def note(self, session: str, name: str, value: Any) -> None:
        self.notes[name] = value
        if value is None:
            del self.notes[name]

    def run(self) -> None:
        async def all() -> None:
            for work in self.work:
                await work

        try:
            asyncio.run(all())
        except Over:
            pass


def scheduled(world: World) -> World:
    world.outgoing.set_schedule(ID, EVERY_S, MACHINE, "ann")
    return world


def end(world: World) -> None:
    world.engine.ended[ID] = world.engine.sessions.pop(ID)


def restore(world: World) -> None:
    world.engine.sessions[ID] = world.engine.ended.pop(ID)


def test_a_schedule_sends_one_copy_in_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    world = scheduled(World(monkeypatch, 300))
    world.run()
    assert len(world.sent) == 6 or len(world.sent) == 5
    gaps = [b - a for a, b in zip(world.sent, world.sent[1:], strict=False)]
    assert all(EVERY_S <= gap < EVERY_S + 1 for gap in gaps)


@pytest.mark.parametrize("error", [Refused("it is being saved"), OSError(28, "no space")])
def test_a_failure_does_not_end_a_schedule_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world = scheduled(World(monkeypatch, 300))
    monkeypatch.setattr(outgoing, "log_error", lambda *args: None)
    world.error = error
    world.happens[1100.0] = lambda: setattr(world, "error", None)
    world.run()
    assert world.sent and world.told == ["session.copy_failed"]


def test_a_schedule_waits_for_a_session_that_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    world = scheduled(World(monkeypatch, 600))
    world.happens[1090.0] = lambda: end(world)
    world.happens[1400.0] = lambda: restore(world)
    world.run()
    assert not [one for one in world.sent if 1091 < one < 1400]
    assert 1400 <= next(one for one in world.sent if one > 1091) < 1415


def test_a_schedule_waits_for_a_keeper_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = scheduled(World(monkeypatch, 300))
    world.happens[1010.0] = lambda: setattr(world.session, "answers", False)
    world.happens[1200.0] = lambda: setattr(world.session, "answers", True)
    world.run()
    assert [one for one in world.sent if 1200 <= one < 1203] and not world.told


def test_a_schedule_that_is_deleted_sends_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = scheduled(World(monkeypatch, 600))
    world.happens[1100.0] = lambda: world.outgoing.end_schedule(ID)
    world.run()
    assert world.sent and max(world.sent) < 1100 and EVERY not in world.notes


def test_the_next_host_waits_for_the_rest_of_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 100)
    key = "ed25519:" + "A" * 43
    world.notes[EVERY] = {"every_s": EVERY_S, "to": key, "machine": "vault", "by": "ann"}
    world.notes["away"] = {key: {"at": 980.0}}
    world.outgoing.begin()
    world.run()
    assert 1040 <= world.sent[0] < 1041


def test_r2_the_next_host_sends_a_copy_that_could_not_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 2000)
    world.outgoing.try_again(world.session, MACHINE, SimpleNamespace(id="cp-1", at=990.0))  # type: ignore[arg-type]
    for work in world.work:
        work.close()  # the host dies
    world.work.clear()
    world.outgoing = Outgoing(world.engine, world.sending, world.asked)
    world.engine.sessions.clear()  # adopted later
    world.happens[1020.0] = lambda: world.engine.sessions.update({ID: world.session})
    world.answer = Unavailable("no answer")
    world.happens[1100.0] = lambda: setattr(world, "answer", None)
    world.outgoing.begin()
    world.run()
    assert len(world.sent) == 1 and AGAIN not in world.notes and not world.told


@pytest.mark.parametrize("why", ["ended", "not trusted"])
def test_a_copy_that_cannot_be_sent_any_more_is_told(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    world = World(monkeypatch, 2000)
    world.outgoing.try_again(world.session, MACHINE, SimpleNamespace(id="cp-1", at=990.0))  # type: ignore[arg-type]
    if why == "ended":
        end(world)
    else:
        world.answer = NotAllowed("not trusted")
    world.run()
    assert world.told == ["session.copy_failed"] and AGAIN not in world.notes


@given(st.floats(0, 1e10), st.floats(10, 1e6), st.floats(0, 1e10))
def test_the_next_copy_is_at_most_one_period_away(last: float, every: float, now: float) -> None:
    assert 0 <= copies.due_s(last, every, now) <= every


@pytest.mark.parametrize("asked", [False, True])
def test_r2_a_caller_gives_the_sending_up_and_keeps_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """A schedule that ends has no such caller: it ends."""
    world = World(monkeypatch, 60.0)

    async def given_up(*args: Any) -> Any:
        raise asyncio.CancelledError

    world.sending.send = given_up

    async def ask(session: str) -> bool:
        return False

    sending = Outgoing(world.engine, world.sending, ask)
    work = sending.save_and_send(
        world.session, MACHINE, "ann", False, Progress() if asked else None
    )
    if not asked:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work)
        return
    _, sent = asyncio.run(work)
    assert isinstance(sent, Refused) and world.told == ["session.copy_failed"]


def test_a5_a_machine_is_unknown_known_or_trusted(tmp_path: Path) -> None:
    home = homes.resolve({"HOLDFAST_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)})
    homes.prepare(home)
    way = Way("ws://relay.example", bytes(16), b"p" * 32)
    box = machines.Machine("box", b"k" * 32, b"s" * 32, "ann", 1, (way,))
    with pytest.raises(NotFound, match="no machine 'box' is known here"):
        trusted.find(home, "box")
    machines.keep(home, box)
    with pytest.raises(NotAllowed, match="may not keep sessions") as refused:
        trusted.find(home, "box")
    assert "machines trust box" in refused.value.recover
    trusted.keep(home, box, "ann", 1.0)
    assert trusted.find(home, "box") == box
