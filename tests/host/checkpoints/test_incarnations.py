"""The steps of a restore, and what a failure of each leaves (R2, S5)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.home import Home
from holdfast.host.checkpoints import finishing, halts, past, restore, unfinished
from holdfast.host.checkpoints import incarnations as modules
from holdfast.host.checkpoints.incarnations import Incarnations, Restored
from holdfast.host.checkpoints.past import Past
from holdfast.host.checkpoints.restore import Prepared, Screen
from holdfast.host.lifecycle.beginning import Beginning
from holdfast.host.lifecycle.nursery import TreeChanged
from holdfast.host.lifecycle.prepare import host_only_directory
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import Impossible, NotFound, Refused, Unavailable
from tests.support.recovery.manifests import MADE

ROW = SessionRow(MADE.session, "work", "checkpointed", 1, 1.0, [], "", "")


def incarnations(home: Home, monkeypatch: pytest.MonkeyPatch, *tries: object) -> Incarnations:
    """A host whose tries to begin end in this way."""

    async def take(row: SessionRow) -> None:
        row.epoch += 1

    async def give_up(session: str) -> None:
        assert session == ROW.id

    left = [*tries]

    async def begun(*arguments: object) -> object:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def look(*arguments: object) -> Past:
        return Past()

    engine: Any = SimpleNamespace(
        home=home,
        journal=None,
        events=SimpleNamespace(note=lambda session, name, facts: None),
        environment={},
        settings=SimpleNamespace(checkpoint_keep=3, checkpoint_bytes=1),
        sessions={},
        unreachable={},
        ended={ROW.id: SessionRow(**vars(ROW))},
        leases=SimpleNamespace(take_next=take, give_up=give_up),
    )
    made = Incarnations(engine)
    monkeypatch.setattr(past, "look", look)
    monkeypatch.setattr(made, "_begun", begun)
    monkeypatch.setattr(made.checkpoints, "ids", lambda session: [MADE.id])
    return made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "run").mkdir()
    return Home(str(tmp_path / "home"), "", True)


def test_r2_a_restore_whose_tree_changed_is_tried_again_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Began(Exception):
        """The second try."""

    changed = TreeChanged("/etc/passwd: No such file or directory")
    for last, raised in ((Began("began"), Began), (changed, Impossible)):
        made = incarnations(home, monkeypatch, changed, last)
        row = made._engine.ended[ROW.id]
        with pytest.raises(raised, match=r"began|could not be restored: /etc/passwd: No such"):
            asyncio.run(made.restore(row, MADE, "ann"))
        assert row.epoch == 1 and not made.checkpoints.busy


def test_r2_a_restore_was_decided_on_facts_that_still_hold(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approval may take an hour."""
    made = incarnations(home, monkeypatch)
    row = made._engine.ended[ROW.id]
    monkeypatch.setattr(made.checkpoints, "ids", lambda session: [])
    with pytest.raises(NotFound, match="was removed meanwhile"):
        asyncio.run(made.restore(row, MADE, "ann"))
    row.epoch = 2
    with pytest.raises(Refused, match="was restored meanwhile"):
        asyncio.run(made.restore(SessionRow(**vars(ROW)), MADE, "ann"))
    del made._engine.ended[ROW.id]  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="was forgotten meanwhile"):
        asyncio.run(made.restore(row, MADE, "ann"))


def test_r2_the_last_usable_checkpoint_is_not_removed_after_an_approval(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the question waited, the session ended, or its other checkpoint was removed."""
    made, removed = incarnations(home, monkeypatch), list[str]()

    async def in_thread(work: Any, *args: Any) -> Any:
        return work(*args)

    def remove_one(session: str, checkpoint: str) -> int:
        removed.append(checkpoint)
        return 7

    engine: Any = made._engine
    engine.halter = SimpleNamespace(in_thread=in_thread)
    monkeypatch.setattr(made.checkpoints, "remove_one", remove_one)
    usable = [SimpleNamespace(id="cp-1")]
    monkeypatch.setattr(made.checkpoints, "of", lambda session: usable)
    with pytest.raises(Refused, match="no other checkpoint of work"):
        asyncio.run(made.remove(ROW.id, "cp-1"))
    assert not removed
    usable.append(SimpleNamespace(id="cp-2"))
    assert asyncio.run(made.remove(ROW.id, "cp-1")) == 7 and removed == ["cp-1"]


def test_r2_an_unusable_checkpoint_of_a_lost_session_can_be_removed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that did not end by itself comes back without its memory; others need the last."""
    made = incarnations(home, monkeypatch)

    async def in_thread(work: Any, *args: Any) -> Any:
        return work(*args)

    engine: Any = made._engine
    engine.halter = SimpleNamespace(in_thread=in_thread)
    monkeypatch.setattr(made.checkpoints, "of", lambda session: [])
    row = engine.ended[ROW.id]
    with pytest.raises(Refused, match="no other checkpoint of work"):
        asyncio.run(made.may_remove(ROW.id, "cp-1"))
    row.state, row.reason = "ended", "lost: its keeper died"
    asyncio.run(made.may_remove(ROW.id, "cp-1"))
    monkeypatch.setattr(made.checkpoints, "of", lambda session: [SimpleNamespace(id="cp-1")])
    with pytest.raises(Refused, match="no other checkpoint of work"):
        asyncio.run(made.may_remove(ROW.id, "cp-1"))


class World:
    """A host that restores with images that are laid out. `told`: what happens, in order."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told, self.home = list[str](), home
        self.row = SessionRow(**{**vars(ROW), "epoch": 2, "output_start": 9, "output_end": 9})
        self.lane: Any = SimpleNamespace(restore_number=lambda entry: 0)
        self.session: Any = SimpleNamespace(id=ROW.id, record=self.row, lane=self.lane)
        begun = Incarnations._begun
        self.made = incarnations(home, monkeypatch)
        engine: Any = self.made._engine
        self.sessions, engine.revive, engine.keep_now = engine.sessions, self.revive, self.keep_now
        engine.rediscovery = SimpleNamespace(adopt_begun=self.adopt_begun)
        self.unreachable, self.listens = engine.unreachable, True
        self.fails: dict[str, Exception] = {}
        engine.journal = SimpleNamespace(catch_up=self.catch_up)
        groups = SimpleNamespace(remove=lambda session: self.told.append("groups removed"))
        engine.halter = SimpleNamespace(in_thread=asyncio.to_thread, groups=groups)
        request: Any = SimpleNamespace(epoch=2)
        limits: Any = None
        screen = Screen(9, {}, b"")
        kept = Path(home.state, "kept")
        prepared = Prepared(MADE, self.row, {}, request, limits, kept, kept, screen, 9, 1.0)

        async def ready(*arguments: object) -> Prepared:
            return prepared

        async def again(*arguments: object) -> None:
            self.told.append("halted again")

        def show(*arguments: object) -> None:
            self.told.append("screen")
            if "screen" in self.fails:
                raise self.fails["screen"]

        monkeypatch.setattr(self.made, "_begun", begun.__get__(self.made))
        monkeypatch.setattr(self.made, "_prepared", ready)
        monkeypatch.setattr(self.made, "_gone", again)
        monkeypatch.setattr(restore, "show", show)
        monkeypatch.setattr(halts, "again", again)
        monkeypatch.setattr(finishing, "tell", lambda *arguments: ())
        monkeypatch.setattr(self.made.checkpoints, "settle_replaced", lambda path: ())
        monkeypatch.setattr(self.made.checkpoints.scratch, "clear", self.clear)
        self.note = Path(host_only_directory(home, ROW.id), unfinished.FILE)

    async def revive(self, asked: Beginning) -> Any:
        link: Any = SimpleNamespace(snapshot_fd=-1)
        if "spawn" in self.fails:
            raise self.fails["spawn"]
        self.told.append("processes")
        if "claim" in self.fails:
            raise self.fails["claim"]
        await asked.claimed(link)
        return self.found()

    async def adopt_begun(self, row: SessionRow) -> Any:
        assert row.id in self.made.finishes, "the restore under way does what is left"
        self.told.append("adopted")
        if self.unreachable or not self.listens:
            return None
        return self.found()

    def found(self) -> Any:
        self.told.append("found")
        self.sessions[ROW.id] = self.session
        return self.session

    async def catch_up(self, session: str, epoch: int, applied: object) -> int:
        assert (session, epoch, applied) == (ROW.id, 2, self.lane.restore_number)
        self.told.append("numbers")
        return 0

    def clear(self, place: Path) -> None:
        self.told.append("images removed")

    async def keep_now(self, row: SessionRow) -> None:
        assert (row.epoch, row.output_start, row.output_end) == (2, 9, 9)
        self.told.append("row")

    def restore(self) -> Restored:
        row = self.made._engine.ended[ROW.id]
        return asyncio.run(self.made.restore(row, MADE, "ann"))


@pytest.fixture
def world(home: Home, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(home, monkeypatch)


def test_s5_no_client_sees_output_before_its_offsets_are_durably_used(world: World) -> None:
    """The host may die at once: no later incarnation may begin at the same offset."""
    assert world.restore().session is world.session
    assert world.told.index("row") < world.told.index("found")


LATE = Unavailable("no keeper came up in time")


@pytest.mark.parametrize("step", ["spawn", "claim", "screen"])
def test_s2_r2_processes_that_run_are_a_session_whatever_failed_at_first(
    world: World, step: str
) -> None:
    """Otherwise no client reaches them, and no second restore replaces them."""
    world.fails[step] = ValueError("a screen of 99 bytes") if step == "screen" else LATE
    assert world.restore().session is world.session
    assert world.told[-4:] == ["found", "numbers", "halted again", "images removed"]
    assert not world.note.exists() and not world.made.finishes


def test_s2_r2_a_keeper_that_does_not_answer_yet_is_finished_later(world: World) -> None:
    """It may still read the images; a host that adopts it needs the note."""
    world.fails["claim"], world.unreachable[ROW.id] = LATE, "it does not answer"
    made = world.made
    made.still_ended = lambda row: None  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="work may be back, but it does not answer"):
        world.restore()
    assert world.note.exists() and world.told[-1] == "adopted"


def test_r2_a_restore_without_a_keeper_leaves_nothing(world: World) -> None:
    world.fails["spawn"], world.listens = LATE, False
    with pytest.raises(Unavailable):
        world.restore()
    assert not world.note.exists() and world.told[-2:] == ["images removed", "groups removed"]


def test_s2_r2_a_restore_adopts_the_keeper_that_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a restore that seemed to fail, before the host asked for it."""
    monkeypatch.undo()
    monkeypatch.setattr(modules, "GONE_S", 0.0)
    world.made.finishes.add(ROW.id)  # not looked at here
    with pytest.raises(Refused, match="session work is running"):
        asyncio.run(world.made._gone(world.made._engine.ended[ROW.id]))
    world.unreachable[ROW.id] = "it hangs"
    with pytest.raises(Refused, match="a keeper of work is still there: it hangs"):
        asyncio.run(world.made._gone(world.made._engine.ended.get(ROW.id, world.row)))


def test_s9_a_restore_that_was_given_up_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = incarnations(home, monkeypatch), list[Any]()
    engine: Any = made._engine
    engine.events = SimpleNamespace(note=lambda session, name, facts: told.append((name, facts)))
    with (
        pytest.raises(asyncio.CancelledError),
        made.restoring(engine.ended[ROW.id], MADE.id, "ann"),
    ):
        raise asyncio.CancelledError
    assert told[-1][0] == "session.restore_failed" and told[-1][1]["reason"] == "given up"
