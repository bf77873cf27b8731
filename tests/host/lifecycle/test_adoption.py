"""Sessions are adopted while clients are served: each request waits for the sessions it needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.host.lifecycle import adoption
from holdfast.host.lifecycle.adoption import Adoptions
from holdfast.host.runtime.tasks import Tasks

FOUND = {f"s{n:03}": f"name{n}" for n in range(20)}


class Keepers:
    """Each session is adopted when `answer` says so."""

    def __init__(self, keeper_pids: dict[str, int] | None = None) -> None:
        self.asked: list[str] = []
        self.adopted: set[str] = set()
        self.names = {name: session for session, name in FOUND.items()}
        self._answers: dict[str, asyncio.Event] = {}
        self.tasks = Tasks(None)
        self.adoptions = Adoptions(
            self._adopt,
            self.tasks.spawn,
            lambda word: word in self.adopted or self.names.get(word) in self.adopted,
            lambda session: (keeper_pids or {}).get(session, 0),
        )

    async def _adopt(self, session: str) -> None:
        self.asked.append(session)
        await self._answers.setdefault(session, asyncio.Event()).wait()
        self.adopted.add(session)

    def answer(self, *sessions: str) -> None:
        for session in sessions:
            self._answers.setdefault(session, asyncio.Event()).set()

    def request(self, op: str, client: int = 0, **fields: Any) -> asyncio.Task[None]:
        return self.tasks.spawn(self.adoptions.needed_by({"op": op, **fields}, client))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


@pytest.mark.parametrize("word", ["s019", "name19"])
def test_a_request_waits_for_its_session_which_is_adopted_next(word: str) -> None:
    async def main() -> None:
        keepers = Keepers()
        keepers.adoptions.begin(FOUND)
        asking = keepers.request("view", session=word)
        await settled()
        assert "s019" in keepers.asked and len(keepers.asked) < len(FOUND), "not the last in turn"
        assert not asking.done()
        keepers.answer("s019")
        await asking
        assert keepers.adoptions.waiting
        keepers.tasks.cancel()

    run(main())


@pytest.mark.parametrize(
    ("op", "fields"), [("ls", {}), ("new", {}), ("view", {"session": "unknown"})]
)
def test_a_request_about_all_sessions_or_an_unknown_one_waits_for_all(
    op: str, fields: dict[str, Any]
) -> None:
    async def main() -> None:
        keepers = Keepers()
        keepers.adoptions.begin(FOUND)
        asking = keepers.request(op, **fields)
        keepers.answer(*list(FOUND)[1:])
        await settled()
        assert not asking.done()
        keepers.answer("s000")
        await asking
        assert keepers.adopted == {*FOUND} and not keepers.adoptions.waiting

    run(main())


def test_whether_the_host_is_there_is_answered_at_once() -> None:
    async def main() -> None:
        keepers = Keepers()
        keepers.adoptions.begin(FOUND)
        await keepers.request("ping")
        assert not keepers.adopted
        keepers.tasks.cancel()

    run(main())


def test_a_request_waits_for_sessions_without_a_stored_name() -> None:
    async def main() -> None:
        keepers = Keepers()
        keepers.adoptions.begin({"s001": "name1", "s002": None})
        asking = keepers.request("view", session="name2")
        await settled()
        assert not asking.done() and "s002" in keepers.asked
        keepers.answer("s002")
        await asking
        assert keepers.adopted == {"s002"}
        keepers.tasks.cancel()

    run(main())


def test_a_client_inside_a_session_waits_for_that_one_before_it_attaches_to_another() -> None:
    """Otherwise the host would not notice that the client shows the session inside itself."""

    async def main() -> None:
        keepers = Keepers({"s007": os.getppid()})
        keepers.adoptions.begin(FOUND)
        asking = keepers.request("attach", client=os.getpid(), session="s001")
        keepers.answer("s001")
        await settled()
        assert not asking.done() and "s007" in keepers.asked
        keepers.answer("s007")
        await asking
        keepers.tasks.cancel()

    run(main())


def test_keepers_that_do_not_answer_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "SLOT_S", 0.001)

    async def main() -> None:
        keepers = Keepers()
        keepers.adoptions.begin(FOUND)
        keepers.answer(*list(FOUND)[10:])
        while len(keepers.adopted) < 10:
            await asyncio.sleep(0)
        keepers.answer(*FOUND)
        await keepers.adoptions.all()

    run(main())


def test_a_failed_adoption_leaves_no_request_waiting() -> None:
    async def main() -> None:
        keepers = Keepers()

        async def broken(session: str) -> None:
            raise ZeroDivisionError

        keepers.adoptions._adopt = broken
        keepers.adoptions.begin(FOUND)
        await keepers.request("ls")
        assert not keepers.adoptions.waiting

    run(main())
