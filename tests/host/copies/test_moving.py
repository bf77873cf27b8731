"""A move that fails at any step leaves one incarnation, here or there (R3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from holdfast.core.checkpoint import copies
from holdfast.host.copies import errands, moving
from holdfast.host.copies.moving import Moving
from holdfast.host.copies.sending import MOVE
from holdfast.host.runtime.progress import Progress
from holdfast.host.runtime.tasks import Tasks
from holdfast.model.errors import (
    HoldfastError,
    Impossible,
    OutcomeUnknown,
    Refused,
    TimedOut,
    Unavailable,
)

ID: Final = "0123456789ab"
MACHINE: Any = SimpleNamespace(name="vault", key=bytes(32))
STEPS: Final = (
    *("examine", "ask", "lease", "save", "send", "stop", "ended", "send again", "note offered"),
    *("let go", "take", "taken", "withdraw", "withdrawn", "note back"),
)
ERRORS: Final = (
    *(Unavailable("x"), TimedOut("x"), OutcomeUnknown("x"), Refused("x"), Impossible("x")),
    *(OSError(28, "no space"), ValueError("x"), KeyError("x")),
)


class World:
    """This host and the other machine. `fails`: the error of a step; once."""

    def __init__(self, fails: dict[str, BaseException]) -> None:
        self.fails = fails
        self.notes: dict[str, Any] = {}
        self.here, self.there, self.copy = True, False, False
        self.most = 1
        self.pauses = dict[str, asyncio.Event]()
        self.reached = asyncio.Event()
        self.boot()

    def boot(self) -> None:
        """A host begins."""
        self.tasks = Tasks("a test")
        row = SimpleNamespace(id=ID, name="work", epoch=1, state="checkpointed", lost=False)
        self.session: Any = SimpleNamespace(
            id=ID, name="work", label={}, end_of=SimpleNamespace(saved_as=""), ended=None
        )
        self.session.ended = asyncio.get_running_loop().create_future()
        checkpoints = SimpleNamespace(chosen=lambda session, word: SimpleNamespace(id="cp", at=1))
        self.engine: Any = SimpleNamespace(
            journal=None,
            tasks=self.tasks,
            sessions={ID: self.session} if self.here else {},
            ended={} if self.here else {ID: row},
            leases=SimpleNamespace(known=self.step("lease"), let_go=self.step("let go")),
            incarnations=SimpleNamespace(checkpoints=checkpoints, restore=self.restore),
            halter=SimpleNamespace(in_thread=self.in_thread),
            events=SimpleNamespace(note=lambda *facts: None),
            adoptions=SimpleNamespace(all=self.adopted),
            unreachable={},
        )
        sending: Any = SimpleNamespace(
            ask_whether=self.step("ask"),
            send=self.send,
            note=self.note,
            noted=lambda session, name: self.notes.get(name),
            away=lambda session: {},
            sessions=lambda: [ID] if self.notes else [],
        )
        files: Any = SimpleNamespace(gone=self.gone, trusted=lambda word: MACHINE)
        self.moving = Moving(self.engine, sending, files)
        self.row, self.sends = row, 0

    async def reach(self, name: str) -> None:
        if name in self.pauses:
            self.reached.set()
            await self.pauses.pop(name).wait()
        await asyncio.sleep(0)
        if name in self.fails:
            raise self.fails.pop(name)

    def step(self, name: str) -> Any:
        async def work(*args: Any) -> None:
            await self.reach(name)

        return work

    async def adopted(self) -> None:
        return

    async def in_thread(self, work: Any, *args: Any) -> Any:
        return work(*args)

    async def examine(self, *args: Any) -> Any:
        await self.reach("examine")
        return SimpleNamespace(possible=True, bytes=1)

    async def save(self, store: Any, session: Any, by: str, stop: bool, *rest: Any) -> Any:
        await self.reach("stop" if stop else "save")
        if stop:
            self.here = False
            session.end_of.saved_as = "cp"
            self.engine.sessions.pop(ID)
            self.engine.ended[ID] = self.row
            session.ended.set_result(None)
            await self.reach("ended")
        return SimpleNamespace(id="cp" if stop else "first")

    async def send(self, *args: Any) -> Any:
        self.sends += 1
        await self.reach("send" if self.sends == 1 else "send again")
        self.copy = True
        return SimpleNamespace(checkpoint="cp", bytes=1, sent=1)

    def note(self, session: str, name: str, value: Any) -> None:
        if value is not None and value.get("offered") and "note offered" in self.fails:
            raise self.fails.pop("note offered")
        if value is not None and value.get("offered") is False and "note back" in self.fails:
            raise self.fails.pop("note back")
        self.notes[name] = value
        if value is None:
            del self.notes[name]

    async def act(self, machine: Any, op: str, wait_s: float, **fields: Any) -> Any:
        try:
            return await self.errand(op.partition(".")[2])
        except (OSError, ValueError, KeyError) as e:  # as errands.run does
            raise Unavailable(f"{e}") from e

    async def errand(self, verb: str) -> Any:
        await self.reach(verb)
        if verb == "take":
            if not self.copy:
                raise Refused("no copy")
            self.there = True
            self.count()
            await self.reach("taken")
            return {"epoch": 2}
        if not self.there:
            self.copy = False
        await self.reach("withdrawn")
        return {"epoch": 2 if self.there else 0}

    async def restore(self, row: Any, manifest: Any, operator: str) -> Any:
        self.moving._refuse(ID)
        await self.reach("restore")
        self.here = True
        self.count()
        self.engine.sessions[ID] = self.session
        self.engine.ended.pop(ID)
        record = SimpleNamespace(epoch=2, root_pid=1)
        made = SimpleNamespace(event=lambda *args, **facts: None, record=record)
        return SimpleNamespace(session=made)

    async def gone(self, session: str, name: str, key: str, epoch: int) -> None:
        self.note(session, MOVE, {"machine": name, "key": key, "epoch": epoch})

    def count(self) -> None:
        self.most = max(self.most, self.here + self.there)

    async def move(self) -> None:
        await self.moving.move(self.session, MACHINE, "ann", Progress())

    async def settled(self) -> None:
        while self.tasks._tasks:
            await asyncio.wait({*self.tasks._tasks})

    def check(self) -> None:
        assert self.here + self.there == 1 and self.most == 1
        assert (MOVE in self.notes) == self.there, self.notes
        self.moving.refuse_under_way(ID, "work")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "retry_s", lambda failures: 0.0)


def use(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(moving, "examine", world.examine)
    monkeypatch.setattr(moving, "save", world.save)
    monkeypatch.setattr(errands, "act", world.act)
    return world


def after_a_crash(monkeypatch: pytest.MonkeyPatch) -> World:
    """The next host, after one that died in a move when the session was on the disk."""
    world = use(World({}), monkeypatch)
    world.here = False
    world.notes[MOVE] = {"machine": "vault", "key": "k", "by": "ann"}
    world.boot()
    return world


@pytest.mark.parametrize("step", [one for one in STEPS if one != "ended"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_r3_an_error_at_any_step_leaves_one_incarnation(
    monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    async def run() -> None:
        fails: dict[str, BaseException] = {step: error}
        if step.startswith("withdraw") or step == "note back":
            fails["take"] = Refused("no")
        world = use(World(fails), monkeypatch)
        try:
            await world.move()
        except Exception:
            assert not fails, "the step was not reached"
        await world.settled()
        world.check()

    asyncio.run(run())


@pytest.mark.parametrize("step", [one for one in STEPS if one[:4] != "note"])
def test_r3_a_host_that_closes_at_any_step_leaves_one_incarnation(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def run() -> None:
        fails: dict[str, BaseException] = (
            {"take": Refused("no")} if step.startswith("withdraw") else {}
        )
        world = use(World(fails), monkeypatch)
        world.pauses[step] = asyncio.Event()
        move = asyncio.create_task(world.move())
        await world.reached.wait()
        world.tasks.cancel()
        await asyncio.wait({move})
        await world.settled()
        world.boot()
        for session in world.moving.unfinished():
            world.tasks.spawn(world.moving.settle(session))
        await world.settled()
        world.check()

    asyncio.run(run())


@pytest.mark.parametrize("step", STEPS[:6])
def test_r3_a_client_that_leaves_before_the_processes_end_gives_the_move_up(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def run() -> None:
        world = use(World({}), monkeypatch)
        world.pauses[step] = asyncio.Event()
        move = asyncio.create_task(world.move())
        await world.reached.wait()
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            await move
        assert world.here and not world.notes
        world.check()
        await world.move()
        assert world.there

    asyncio.run(run())


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("step", ["send again", "let go", "take", "taken"])
def test_r3_a_client_that_leaves_later_does_not_stop_the_move(
    monkeypatch: pytest.MonkeyPatch, step: str, drained: bool
) -> None:
    async def run() -> None:
        world = use(World({}), monkeypatch)
        world.pauses[step] = go_on = asyncio.Event()
        drain = world.moving.drain(world.session, "vault")
        move = asyncio.create_task(drain if drained else world.move())
        if not drained:
            drain.close()
        await world.reached.wait()
        move.cancel()
        if drained:  # a drain names the move as one on its way
            await asyncio.wait({move})
        with pytest.raises(Refused, match="being moved"):  # neither a second move nor a restore
            world.moving.refuse_under_way(ID, "work")
        go_on.set()
        await asyncio.wait({move})
        await world.settled()
        world.check()
        assert world.there and move.cancelled() == drained

    asyncio.run(run())


def test_r3_a_session_that_cannot_be_brought_back_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        world = use(World({"send again": OSError(5, "x"), "restore": Impossible("y")}), monkeypatch)
        with pytest.raises(HoldfastError, match="could not be restored"):
            await world.move()
        await world.settled()
        world.check()
        assert world.here

    asyncio.run(run())


def test_r3_a_session_that_never_comes_back_waits_for_an_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        world = use(World({"send again": OSError(5, "x")}), monkeypatch)

        async def fail(*args: Any) -> Any:
            raise Impossible("y")

        world.engine.incarnations.restore = fail
        with pytest.raises(HoldfastError, match="could not be restored"):
            await world.move()
        await world.settled()
        assert not world.notes and ID in world.engine.ended
        world.moving._refuse(ID)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("state", "lost", "back"),
    [("ended", False, False), ("ended", True, True), ("checkpointed", False, True)],
)
def test_r6_a_program_that_finished_in_a_move_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, state: str, lost: bool, back: bool
) -> None:
    """The host died while it saved the session, and CRIU let the program go on."""

    async def run() -> None:
        world = after_a_crash(monkeypatch)
        world.row.state, world.row.lost = state, lost
        world.tasks.spawn(world.moving.settle(ID))
        await world.settled()
        assert world.here == back and not world.notes

    asyncio.run(run())


def test_r6_a_session_that_was_evicted_in_a_move_stays_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        world = use(World({"stop": Refused("it has ended")}), monkeypatch)
        world.session.end_of.saved_as = "evicted"  # while the first checkpoint travelled
        with pytest.raises(Refused, match="has ended"):
            await world.move()
        assert not world.notes

    asyncio.run(run())


def test_r3_a_move_that_is_cut_off_does_not_cut_off_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        world = use(World({}), monkeypatch)
        saved = asyncio.Event()

        async def save(store: Any, session: Any, by: str, stop: bool, *rest: Any) -> Any:
            if stop:
                session.end_of.saved_as = "cp"
                saved.set()
            return SimpleNamespace(id="cp" if stop else "first")

        monkeypatch.setattr(moving, "save", save)
        move = asyncio.create_task(world.move())
        async with asyncio.timeout(30):
            await saved.wait()
        await asyncio.sleep(0)
        world.tasks.cancel()
        await asyncio.wait({move})
        assert not world.session.ended.cancelled()
        assert world.notes, "the next host brings it back"

    asyncio.run(run())


def test_r3_a_host_that_does_not_know_yet_whether_the_session_ended_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        world = after_a_crash(monkeypatch)
        row = world.engine.ended.pop(ID)
        adopted = asyncio.Event()
        world.engine.adoptions.all = adopted.wait
        world.engine.unreachable[ID] = "its keeper does not answer"
        settling = world.tasks.spawn(world.moving.settle(ID))
        adopted.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.notes and not settling.done()
        world.engine.unreachable.clear()
        world.engine.ended[ID] = row
        await world.settled()
        world.check()
        assert world.here

    asyncio.run(run())


@pytest.mark.parametrize("error", [OSError(11, "no process"), ValueError("x"), TimeoutError()])
def test_a_courier_that_fails_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(errands, "_run", fail)
    with pytest.raises((Unavailable, TimedOut), match="vault"):
        asyncio.run(errands.run(MACHINE, {}))
