"""However many ask, a session is looked at once for all of them; when nobody does, nothing is left that could wake up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.noticing import Notice
from holdfast.host import noticing
from holdfast.host.attending import Attended
from holdfast.host.noticing import Asking, Noticing, until

DEADLINE_S = 60.0


class Stage:
    """An engine with sessions that wait for whatever the test says, and count how often they are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.kind: dict[str, list[str]] = {}
        self.looks: dict[str, int] = {}
        self.followers: list[Callable[[], None]] = []
        self.engine: Any = SimpleNamespace(
            sessions={},
            ended={},
            unreachable={},
            unreached={},
            kin=SimpleNamespace(on_change=[]),
            events=SimpleNamespace(follow=self.followers.append, unfollow=self.followers.remove),
            desk=SimpleNamespace(approvals=SimpleNamespace(open={})),
        )
        for name in names:
            self.add(name)
        monkeypatch.setattr(noticing, "attended", self._attended)
        self.noticing = Noticing(cast(Any, self.engine))

    def add(self, name: str) -> None:
        loop = asyncio.get_running_loop()

        async def marks_seen() -> None:
            self.looks[name] = self.looks.get(name, 0) + 1

        async def or_end(future: asyncio.Future[Any], timeout: float | None = None) -> bool:
            await asyncio.wait({future, session.ended}, return_when=asyncio.FIRST_COMPLETED)
            return future.done()

        session: Any = SimpleNamespace(
            id=name,
            name=name,
            loop=loop,
            ended=loop.create_future(),
            ending=False,
            answers=True,
            state="detached",
            last_activity=0.0,
            ring=SimpleNamespace(head=0, written=0),
            marks_seen=marks_seen,
            or_end=or_end,
        )
        self.engine.sessions[name], self.kind[name] = session, ["idle"]

    async def _attended(self, session: Any, state: None) -> Attended:
        await asyncio.sleep(0)
        kinds = self.kind[session.id]
        return Attended(kinds.pop(0) if len(kinds) > 1 else kinds[0], "so it is", "sh", 7, None)

    def becomes(self, name: str, *kinds: str) -> None:
        self.kind[name] = list(kinds)
        self.engine.sessions[name].ring.head += 1

    def ends(self, name: str, code: int) -> None:
        self.engine.sessions.pop(name).ended.set_result(None)
        self.engine.ended[name] = SimpleNamespace(
            id=name, name=name, reason="exited", ended=5.0, exit_code=code
        )
        for follower in self.followers:
            follower()


async def told(asking: Asking) -> Notice:
    while not asking.pending:
        await asking.woken.wait()
        asking.woken.clear()
    return next(asking.pending.take())


def played(play: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_a_hundred_who_ask_cost_as_much_as_one_and_each_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        askers = [Asking(None) for _ in range(50)] + [Asking(frozenset("a")) for _ in range(50)]
        for asking in askers:
            stage.noticing.begin(asking)
        await asyncio.gather(*(stage.noticing.now(["a"]) for _ in askers))
        assert stage.looks["a"] <= 2, "that of the round, and the one that all asked for together"
        for asking in askers:
            assert (await told(asking)).kind == "idle"
        stage.becomes("a", "secret")
        assert [(await told(asking)).kind for asking in askers] == ["secret"] * 100

    played(play)


def test_nobody_asks_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        before = asyncio.all_tasks()
        stage = Stage(monkeypatch, "a", "b")
        one, other = Asking(frozenset("a")), Asking(frozenset("a"))
        stage.noticing.begin(one)
        stage.noticing.begin(other)
        await told(one)
        assert "b" not in stage.looks, "what nobody asked about is not looked at"
        stage.noticing.finish(one)
        assert stage.followers and stage.engine.kin.on_change
        stage.noticing.finish(other)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stage.followers and not stage.engine.kin.on_change
        assert asyncio.all_tasks() == before
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert len(timers) == 1, "only the test's own limit"

    played(play)


def test_sessions_that_come_end_are_lost_or_live_for_a_moment_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        stage.engine.ended["old"] = SimpleNamespace(
            id="old", name="old", reason="exited", ended=1.0, exit_code=0
        )
        asking = Asking(None)
        stage.noticing.begin(asking)
        assert (await told(asking)).session == "a"
        stage.add("b")
        assert (await told(asking)).session == "b"
        stage.ends("a", 3)
        over = await told(asking)
        assert (over.session, over.kind, over.exit_code, over.since) == ("a", "exited", 3, 5.0)
        stage.engine.ended["c"] = SimpleNamespace(
            id="c", name="c", reason="lost: its keeper died", ended=6.0, exit_code=None
        )
        assert ((brief := await told(asking)).session, brief.kind) == ("c", "lost")
        stage.engine.sessions.pop("b")
        stage.engine.unreachable["b"] = "it is being claimed again"
        assert ((away := await told(asking)).kind, away.why) == (
            "unknown",
            "it is being claimed again",
        )
        stage.noticing.finish(asking)

    played(play)


def test_what_vanishes_under_one_look_is_not_told_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        asking = Asking(None)
        stage.noticing.begin(asking)
        await told(asking)
        stage.becomes("a", "unknown", "working")
        assert (await told(asking)).kind == "working"
        stage.becomes("a", "unknown")
        assert (await told(asking)).kind == "unknown"
        stage.noticing.finish(asking)

    played(play)


def test_whoever_asks_is_answered_by_a_look_that_begins_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else follows, so an answer is known already: it is not given."""

    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        asking = Asking(None)
        stage.noticing.begin(asking)
        await told(asking)
        stage.kind["a"] = ["input"]  # without any sign
        waiting = asyncio.create_task(until(stage.noticing, stage.engine.sessions["a"], "idle"))
        assert (await stage.noticing.now(["a"]))[0].kind == "input"
        assert not waiting.done()
        stage.becomes("a", "idle")
        assert (await waiting).kind == "idle"
        stage.noticing.finish(asking)

    played(play)
