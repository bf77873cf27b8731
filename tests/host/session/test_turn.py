"""The answer to a request for the turn."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.session.turn import SessionTurn


def test_p1_a_granted_request_is_answered_though_the_turn_is_seized_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer describes one moment: the holder when it was given.

    A reader of both answers sees one order.
    """

    async def main() -> None:
        session: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), host_only_directory="/nonexistent", state="live"
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
