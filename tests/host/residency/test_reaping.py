"""A session that is used again after its warning is not evicted (R8)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.reaper.reaper import Evict, Policy, Resident
from holdfast.host.residency import eviction
from holdfast.host.residency.eviction import Evictions
from holdfast.host.residency.reaping import Reaping
from holdfast.model.errors import Refused, Unavailable


def made(held: list[Any]) -> tuple[Reaping, Any, list[str]]:
    session: Any = SimpleNamespace(id="s", name="s", viewers=[], streams=[])
    engine: Any = SimpleNamespace(
        held_acts=SimpleNamespace(waiting=lambda: held), sessions={"s": session}
    )
    steps = list[str]()

    async def evict(session: Any, why: str, used: Any) -> None:
        steps.append(used())

    evictions: Any = SimpleNamespace(evict=evict)
    reaping = Reaping(engine, Policy(idle_s=1.0), SimpleNamespace(), evictions, lambda: False)  # type: ignore[arg-type]
    return reaping, session, steps


@pytest.mark.parametrize("use", ["attached", "stream", "forward", "asked"])
@pytest.mark.parametrize("moment", ["look", "save"])
def test_r8_a_session_that_is_used_after_the_last_look_stays(use: str, moment: str) -> None:
    held = list[Any]()
    reaping, session, steps = made(held)

    def begin() -> None:
        if use == "attached":
            session.viewers.append(1)
        elif use == "stream":
            session.streams.append(1)
        elif use == "forward":
            reaping._in_use = lambda session: True
        else:
            held.append(SimpleNamespace(binding=SimpleNamespace(session="s")))

    async def look(*args: Any) -> Resident:
        if moment == "look":
            begin()
        return Resident("s", 100.0)

    reaping._look_at = look  # type: ignore[method-assign,assignment]
    if moment == "save":

        async def evict(session: Any, why: str, used: Any) -> None:
            assert not used()
            begin()
            steps.append(used())

        reaping._evictions.evict = evict  # type: ignore[method-assign,assignment]
    asyncio.run(reaping._act(Evict("s", "idle"), session))
    assert (moment == "save") == bool(steps) and all(steps)


def test_r8_an_eviction_stops_at_the_step_at_which_the_session_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def examine(*args: Any) -> Any:
        return SimpleNamespace(possible=True)

    async def save(
        store: Any, session: Any, by: str, stop: bool, tell: Any, halter: Any, journal: Any
    ) -> None:
        for step in ("begun", "stored", "ended"):
            tell(step, 0)

    monkeypatch.setattr(eviction, "examine", examine)
    monkeypatch.setattr(eviction, "save", save)
    engine: Any = SimpleNamespace(
        incarnations=SimpleNamespace(checkpoints=None), halter=None, journal=None, sessions={}
    )
    asked = iter(["", "a client has attached"])
    with pytest.raises(Refused, match="attached"):
        asyncio.run(Evictions(engine).evict(SimpleNamespace(), "idle", used=lambda: next(asked)))  # type: ignore[arg-type]


def test_r8_the_reaper_goes_on_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A disk that cannot be read ends one try, and the session stays."""
    reaping, _, _ = made([])
    done = list[Any]()

    async def act(one: Evict, session: Any) -> None:
        if not done:
            raise OSError(5, "Input/output error")

    def note(effects: Any) -> None:
        done.append(effects)

    reaping._act, reaping._do = act, note  # type: ignore[method-assign,assignment]

    async def both() -> None:
        acting = asyncio.create_task(reaping._acting())
        for _ in range(2):
            reaping._queue.put_nowait(Evict("s", "idle"))
        while not reaping._queue.empty():
            await asyncio.sleep(0)
        assert not acting.done()
        acting.cancel()

    asyncio.run(both())
    assert len(done) == 1 and "Input/output error" in caplog.text


@pytest.mark.parametrize("error", [Unavailable("s cannot be looked at"), OSError(5, "I/O error")])
def test_r8_a_session_that_cannot_be_looked_at_does_not_keep_others_from_being_reaped(
    error: Exception,
) -> None:
    """Programs of the session block its threads, perhaps: it stays, and the look goes on."""
    reaping, _, _ = made([])
    ring = SimpleNamespace(head=0)
    shown = {"state": "detached", "ending": False, "last_activity": 0.0, "label": {}, "ring": ring}

    async def looked(*args: Any) -> Any:
        raise error

    async def other(*args: Any) -> Any:
        raise Unavailable("other cannot be looked at")

    sessions = {
        id: SimpleNamespace(
            **shown,
            id=id,
            keeper_pid=1,
            layout={"layout": "plain"},
            viewers=SimpleNamespace(left_at=0.0),
            streams=[],
            ended=SimpleNamespace(done=lambda: False),
            looked=looked if id == "s" else other,
        )
        for id in ("s", "other")
    }
    reaping._engine = SimpleNamespace(
        sessions=sessions,
        halter=SimpleNamespace(groups=None),
        held_acts=SimpleNamespace(waiting=list),
    )
    reaping._attached = lambda session: False  # type: ignore[method-assign]
    asyncio.run(reaping.look())
    assert "other cannot be looked at" in reaping.seen["other"].safe
    found = reaping.seen.get("s")
    assert found is None if isinstance(error, OSError) else found and "s cannot" in found.safe
