"""What whoever asked for the turn is answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.turn import SessionTurn


def test_p1_who_got_the_turn_is_told_so_though_somebody_seizes_it_while_its_finds_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is one moment's: who had it when it was given. Whoever reads both answers sees one order."""

    async def main() -> None:
        session: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), memory="/nonexistent", state="live"
        )
        turn = SessionTurn(session)
        monkeypatch.setattr(turn, "_publish", lambda effects: None)

        async def inherits() -> dict[str, Any]:
            turn.rules.take("ann", asyncio.get_running_loop().time())
            return {}

        monkeypatch.setattr(turn, "inherits", inherits)
        answer = await turn.request("bob", "human", 0.0)
        assert answer["turn"]["holder"] == "bob" and turn.holder == "ann"

    asyncio.run(main())
