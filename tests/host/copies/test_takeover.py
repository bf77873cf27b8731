"""A takeover that fails or is cancelled at any step claims nothing (R3, host/copies)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from holdfast.host.checkpoints.incarnations import Restored
from holdfast.host.copies import arrive
from holdfast.host.copies.copies import Copies
from holdfast.host.copies.received import Received
from holdfast.host.copies.sending import MOVE
from holdfast.model import signing

ID: Final = "0123456789ab"
COPY: Any = SimpleNamespace(
    session=ID,
    name="work",
    sender=signing.show(bytes(32)),
    checkpoint="cp-0123456789ab",
    epoch=5,
    sender_name="desk",
    at=0.0,
    record=(0, ""),
    roots=(),
)
STEPS: Final = ("take the lease", "lease taken", "note", "claim", "claimed", "restore")
NOTE: Final = {"machine": "vault", "key": "22" * 32, "epoch": 3}


class World:
    """This machine with a copy. `pauses`: a step waits; `fails`: a step raises its error."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: dict[str, BaseException] = {}
        self.pauses, self.reached = dict[str, threading.Event](), asyncio.Event()
        self.held = self.renewed = self.runs = False
        self.notes: dict[str, Any] = {MOVE: NOTE}
        self.loop = asyncio.get_running_loop()
        self.received = received = Received(str(place), 1 << 30)
        monkeypatch.setattr(received, "sender", lambda session, checkpoint: "ann")
        monkeypatch.setattr(received, "drop", lambda session: self.reach("drop"))
        claim = received._claim

        def take(session: str, taken: Any) -> None:
            if taken["of"]:
                self.reach("claim")
            claim(session, taken)
            if taken["of"]:
                self.reach("claimed")

        monkeypatch.setattr(received, "_claim", take)
        monkeypatch.setattr(arrive, "lay_out", self.lay_out)
        monkeypatch.setattr(arrive, "row_of", lambda copy, by: SimpleNamespace(id=ID, epoch=0))
        made: Any = Copies
        self.copies = made.__new__(Copies)
        self.copies._engine = SimpleNamespace(
            sessions={},
            unreachable={},
            ended={},
            home=SimpleNamespace(state=str(place)),
            leases=SimpleNamespace(
                take_over=self.take_over, give_up=self.give_up, let_go=self.let_go
            ),
            halter=SimpleNamespace(in_thread=asyncio.to_thread),
            journal=SimpleNamespace(once=SimpleNamespace(arrive=self.arrive)),
            incarnations=SimpleNamespace(
                checkpoints=SimpleNamespace(remove=lambda session: None),
                restore=self.restore,
                restoring=lambda row, checkpoint, by: contextlib.nullcontext(),
            ),
        )
        self.copies._taking, self.copies._makers = {}, set()
        self.copies.received = received
        self.copies.list_copy = self.copies._record = lambda *args, **facts: None
        self.copies._arrived = lambda session, changed: ()
        self.copies.sending = SimpleNamespace(
            noted=lambda session, name: self.notes.get(name), note=self.note, forget=lambda s: None
        )

    def reach(self, step: str) -> None:
        """In a thread."""
        if step in self.pauses:
            self.loop.call_soon_threadsafe(self.reached.set)
            assert self.pauses[step].wait(30)
        if step in self.fails:
            raise self.fails[step]

    async def lay_out(self, *args: Any) -> Any:
        return SimpleNamespace(head=0, once=(), label={})

    async def arrive(self, session: str, keys: object) -> None:
        """No key came with the session."""

    async def take_over(self, row: Any, *args: Any) -> None:
        await asyncio.to_thread(self.reach, "take the lease")
        self.held = self.renewed = True
        await asyncio.to_thread(self.reach, "lease taken")

    async def give_up(self, session: str) -> None:
        self.renewed = False

    async def let_go(self, session: str) -> None:
        self.held = False

    def note(self, session: str, name: str, value: Any) -> None:
        if value is None and "note" in self.fails:
            raise self.fails["note"]
        self.notes[name] = value

    async def restore(self, *args: Any, **facts: Any) -> Any:
        await asyncio.to_thread(self.reach, "restore")
        self.runs = True
        record = SimpleNamespace(epoch=0)
        session: Any = SimpleNamespace(record=record, event=lambda name, **facts: None)
        return Restored(session, (), "")

    async def run(self) -> None:
        await self.copies.take_over(COPY, "ann", True)

    def check(self) -> None:
        """Another machine that asks hears of no takeover, and can have the session at once."""
        assert self.received.taken(ID) is None
        assert not self.held and not self.renewed and not self.runs
        assert self.notes[MOVE] == NOTE


@pytest.mark.parametrize("step", STEPS)
def test_r3_a_takeover_that_fails_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def run() -> None:
        world = World(tmp_path, monkeypatch)
        world.fails[step] = OSError(errno.ENOSPC, "no space")
        with pytest.raises(OSError, match="no space"):
            await world.run()
        world.check()

    asyncio.run(run())


@pytest.mark.parametrize("step", [one for one in STEPS if one != "note"])
@pytest.mark.parametrize("times", [1, 3])
def test_r3_a_takeover_that_is_cancelled_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    async def run() -> None:
        world = World(tmp_path, monkeypatch)
        world.pauses[step] = go_on = threading.Event()
        taking = asyncio.create_task(world.run())
        async with asyncio.timeout(30):
            await world.reached.wait()
        for _ in range(times):
            taking.cancel()
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait({taking})
        assert taking.cancelled()
        world.check()

    asyncio.run(run())


def test_r3_a_takeover_claims_the_epoch_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        world = World(tmp_path, monkeypatch)
        await world.run()
        taken = world.received.taken(ID)
        assert taken is not None and taken["epoch"] > COPY.epoch
        assert world.held and world.runs and world.notes[MOVE] is None

    asyncio.run(run())


@pytest.mark.parametrize("times", [1, 3])
def test_r3_a_takeover_is_told_although_its_client_leaves_while_the_copies_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The session runs here: nothing may say that nothing was taken over."""

    async def run() -> None:
        world = World(tmp_path, monkeypatch)
        world.pauses["drop"] = go_on = threading.Event()
        taking = asyncio.create_task(world.run())
        async with asyncio.timeout(30):
            await world.reached.wait()
        for _ in range(times):
            taking.cancel()
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait({taking})
        assert not taking.cancelled() and taking.exception() is None
        assert world.held and world.runs and world.received.taken(ID) is not None

    asyncio.run(run())
