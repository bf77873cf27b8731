"""The next host finishes a restore, also if the checkpoint cannot be used any more (R2, A4)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.checkpoint.manifest import Manifest, Unreadable
from holdfast.home import Home
from holdfast.host.checkpoints import finishing, halts, past, restore, unfinished
from holdfast.host.checkpoints.past import Past
from holdfast.host.checkpoints.unfinished import Unfinished
from holdfast.host.lifecycle.prepare import host_only_directory
from holdfast.host.storage.store import SessionRow, body_of
from holdfast.model.errors import Impossible
from tests.support.recovery.manifests import MADE

ROW = SessionRow(MADE.session, "work", "restoring", 3, 1.0, ["bash"], "", "", rehomable=True)
NOTE = Unfinished(
    MADE.id,
    5.0,
    "stopped",
    ({"operator": "bob"},),
    9,
    2,
    "ann",
    "move",
    body_of(ROW),
    {"from": "x"},
)
ACTS: Any = ({"act": "hf:0123456789ab@2#1", "actor": "ann", "kind": "command"},)


class World:
    """A host that finds a note. `told`: its events; `entries`: of the record."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "home").mkdir(mode=0o700)
        self.home = Home(str(tmp_path / "home"), "", True)
        self.told, self.halted = list[tuple[str, dict[str, Any]]](), list[object]()
        self.rows, self.entries = list[SessionRow](), list[Any]()
        self.directory = host_only_directory(self.home, ROW.id)
        unfinished.write(self.directory, NOTE)
        self.made: Manifest | Exception = replace(MADE, ended=False)
        self.engine: Any = SimpleNamespace(home=self.home, keep_now=self.keep_now, halter=None)
        self.engine.journal = SimpleNamespace(
            settled=self.nothing, read=self.read, post=self.entries.append
        )
        self.checkpoints: Any = SimpleNamespace(
            read=self.manifest,
            content=lambda manifest, name: b'{"offset": 9, "notes": {}}\n',
            drop_last_output=lambda session: None,
            maker=MADE.maker,
        )
        self.link: Any = SimpleNamespace(welcome=SimpleNamespace(epoch=3), snapshot_fd=-1)
        self.session: Any = SimpleNamespace(
            id=ROW.id,
            record=SimpleNamespace(epoch=3, root_pid=77),
            host_only_directory=self.directory,
            event=lambda name, **facts: self.told.append((name, facts)),
        )
        monkeypatch.setattr(restore, "show", lambda *arguments: None)
        monkeypatch.setattr(halts, "again", self.again)
        monkeypatch.setattr(past, "look", self.look)
        monkeypatch.setattr(past, "tell", lambda *arguments: None)

    async def keep_now(self, row: SessionRow) -> None:
        self.rows.append(row)

    async def nothing(self) -> None:
        """The record is durable."""

    async def read(self, session: str, newest: bool) -> list[Any]:
        return [SimpleNamespace(fields={"kind": one.kind, "epoch": 3}) for one in self.entries]

    def manifest(self, session: str, checkpoint: str) -> Manifest:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made

    async def again(self, halter: object, session: object, moment: Any, operator: str) -> None:
        self.halted.append((moment.halted, [*moment.stops], operator))

    async def look(self, journal: object, manifest: Manifest, ours: bool) -> Past:
        return Past(ACTS, ())

    def adopt(self) -> dict[str, Any]:
        """Adopt the session; return the facts of its event."""

        async def adopt() -> None:
            checkpoints, engine = self.checkpoints, self.engine
            left = await finishing.go_on(engine, checkpoints, ROW.id, self.link)
            assert left is not None and left.row == ROW
            await finishing.finish(engine, checkpoints, self.session, left)

        asyncio.run(adopt())
        [(name, facts)] = self.told
        assert name == "session.restored"
        return facts


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


FACTS = {"operator": "ann", "checkpoint": MADE.id, "at": 5.0, "epoch": 3, "root_pid": 77}


@pytest.mark.parametrize(
    "problem", [None, Unreadable("its manifest is damaged"), Impossible("x"), TypeError("x")]
)
def test_r2_a4_a_restore_is_finished_whatever_became_of_its_checkpoint(
    world: World, problem: Exception | None
) -> None:
    if problem is not None:
        world.made = problem
    facts = world.adopt()
    assert facts.items() >= {**FACTS, "halted": True}.items()
    assert facts["in_flight"] == ([ACTS[0]["act"]] if problem is None else [])
    assert world.halted == [("stopped", [{"operator": "bob"}], "ann")]
    assert world.rows == [ROW] and world.rows[0].rehomable
    assert not os.listdir(world.directory), "the next host finds no note"


def test_r7_no_act_was_in_flight_if_the_session_ended_with_the_checkpoint(world: World) -> None:
    world.made = replace(MADE, epoch=2, ended=True)
    assert world.adopt()["in_flight"] == []


def test_r3_the_record_of_a_takeover_begins_with_it_once(world: World) -> None:
    """The last host may have recorded it, and died then."""
    world.adopt()
    [entry] = world.entries
    assert (entry.kind, entry.facts) == ("taken_over", {"from": "x"})
    unfinished.write(world.directory, NOTE)
    world.told.clear()
    world.adopt()
    assert len(world.entries) == 1
