"""The end of a session, while others work."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host import ending, observe


def test_a_session_of_very_many_processes_is_looked_at_beside_the_loop_while_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[int]()

    def descendants(pid: int, with_argv: bool = True) -> list[Any]:
        threads.append(threading.get_ident())
        return [SimpleNamespace(pid=1 << 22)] if len(threads) < 3 else []

    monkeypatch.setattr(observe, "descendants", descendants)

    async def main() -> None:
        session: Any = SimpleNamespace(keeper_pid=1, answers=True, loop=asyncio.get_running_loop())
        assert await ending._gone(session, 60.0, final=False)
        assert len(threads) == 3 and threading.get_ident() not in threads

    asyncio.run(asyncio.wait_for(main(), 60))
