"""All requests share the looks at a session; without requests no timer is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.session.notices import Notice
from holdfast.host.requests import attention
from holdfast.host.requests.attention import Asking, AttentionWatch, until
from holdfast.host.session.attention_probe import Attention

DEADLINE_S = 60.0


class Stage:
    """An engine with scripted sessions that count the looks at them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.kind: dict[str, list[str]] = {}
        self.looks: dict[str, int] = {}
        self.followers: list[Callable[[], None]] = []
        self.engine: Any = SimpleNamespace(
            sessions={},
            ended={},
            unreachable={},
            unreached={},
            lineages=SimpleNamespace(on_change=[]),
            events=SimpleNamespace(follow=self.followers.append, unfollow=self.followers.remove),
            held_acts=SimpleNamespace(approvals=SimpleNamespace(open={})),
        )
        for name in names:
            self.add(name)
        monkeypatch.setattr(attention, "read_attention", self._read_attention)
        self.attention_watch = AttentionWatch(cast(Any, self.engine))

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

    async def _read_attention(self, session: Any, state: None) -> Attention:
        await asyncio.sleep(0)
        kinds = self.kind[session.id]
        return Attention(kinds.pop(0) if len(kinds) > 1 else kinds[0], "so it is", "sh", 7, None)

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


async def next_notice(asking: Asking) -> Notice:
    while not asking.pending:
        await asking.woken.wait()
        asking.woken.clear()
    return next(asking.pending.take())


def played(play: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))


def test_a_hundred_followers_cost_as_much_as_one_and_each_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        askers = [Asking(None) for _ in range(50)] + [Asking(frozenset("a")) for _ in range(50)]
        for asking in askers:
            stage.attention_watch.begin(asking)
        await asyncio.gather(*(stage.attention_watch.now(["a"]) for _ in askers))
        assert stage.looks["a"] <= 2, "that of the round, and the one that all asked for together"
        for asking in askers:
            assert (await next_notice(asking)).kind == "idle"
        stage.becomes("a", "secret")
        assert [(await next_notice(asking)).kind for asking in askers] == ["secret"] * 100

    played(play)


def test_without_followers_no_task_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        before = asyncio.all_tasks()
        stage = Stage(monkeypatch, "a", "b")
        one, other = Asking(frozenset("a")), Asking(frozenset("a"))
        stage.attention_watch.begin(one)
        stage.attention_watch.begin(other)
        await next_notice(one)
        assert "b" not in stage.looks, "sessions without followers are not looked at"
        stage.attention_watch.finish(one)
        assert stage.followers and stage.engine.lineages.on_change
        stage.attention_watch.finish(other)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stage.followers and not stage.engine.lineages.on_change
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
        stage.attention_watch.begin(asking)
        assert (await next_notice(asking)).session == "a"
        stage.add("b")
        assert (await next_notice(asking)).session == "b"
        stage.ends("a", 3)
        over = await next_notice(asking)
        assert (over.session, over.kind, over.exit_code, over.since) == ("a", "exited", 3, 5.0)
        stage.engine.ended["c"] = SimpleNamespace(
            id="c", name="c", reason="lost: its keeper died", ended=6.0, exit_code=None
        )
        assert ((brief := await next_notice(asking)).session, brief.kind) == ("c", "lost")
        stage.engine.sessions.pop("b")
        stage.engine.unreachable["b"] = "it is being claimed again"
        assert ((away := await next_notice(asking)).kind, away.why) == (
            "unknown",
            "it is being claimed again",
        )
        stage.attention_watch.finish(asking)

    played(play)


def test_a_session_that_vanishes_during_a_look_is_not_reported_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        asking = Asking(None)
        stage.attention_watch.begin(asking)
        await next_notice(asking)
        stage.becomes("a", "unknown", "working")
        assert (await next_notice(asking)).kind == "working"
        stage.becomes("a", "unknown")
        assert (await next_notice(asking)).kind == "unknown"
        stage.attention_watch.finish(asking)

    played(play)


def test_a_request_is_answered_by_a_look_that_begins_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parallel follower has an answer already; that older answer must not be used."""

    async def play() -> None:
        stage = Stage(monkeypatch, "a")
        asking = Asking(None)
        stage.attention_watch.begin(asking)
        await next_notice(asking)
        stage.kind["a"] = ["input"]  # without any sign
        waiting = asyncio.create_task(
            until(stage.attention_watch, stage.engine.sessions["a"], "idle")
        )
        assert (await stage.attention_watch.now(["a"]))[0].kind == "input"
        assert not waiting.done()
        stage.becomes("a", "idle")
        assert (await waiting).kind == "idle"
        stage.attention_watch.finish(asking)

    played(play)


def test_s2_a_wait_is_told_of_a_change_that_came_with_the_answer_to_its_own_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two looks at a session overlap and end in the same step of the loop, in either order."""

    async def play() -> None:
        for order in ((0, 1), (1, 0)):
            stage = Stage(monkeypatch, "a")
            looks: list[asyncio.Future[str]] = []

            async def held_look(
                session: Any, state: None, looks: list[asyncio.Future[str]] = looks
            ) -> Attention:
                looks.append(asyncio.get_running_loop().create_future())
                return Attention(await looks[-1], "so it is", "sh", 7, None)

            async def begun(count: int, looks: list[asyncio.Future[str]] = looks) -> None:
                while len(looks) < count:
                    await asyncio.sleep(0)

            monkeypatch.setattr(attention, "read_attention", held_look)
            follower = Asking(None)
            stage.attention_watch.begin(follower)
            await begun(1)
            looks[0].set_result("working")
            assert (await next_notice(follower)).kind == "working"
            waiting = asyncio.create_task(
                until(stage.attention_watch, stage.engine.sessions["a"], "idle")
            )
            await begun(2)
            stage.engine.sessions["a"].ring.head += 1
            await begun(3)
            for which in order:
                looks[1 + which].set_result(("working", "idle")[which])
            done, _ = await asyncio.wait({waiting}, timeout=DEADLINE_S / 10)
            assert done and waiting.result().kind == "idle"
            stage.attention_watch.finish(follower)

    played(play)
