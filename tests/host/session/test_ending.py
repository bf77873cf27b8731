"""The end of a session does not block the host's loop."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.processes import proc_scan
from holdfast.host.session.ending import Ending


def test_the_processes_of_an_ending_session_are_scanned_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[int]()

    def descendants(pid: int) -> list[Any]:
        threads.append(threading.get_ident())
        return [SimpleNamespace(pid=1 << 22, ppid=0, session=1 << 22)] if len(threads) < 3 else []

    monkeypatch.setattr(proc_scan, "descendants", descendants)

    async def main() -> None:
        session: Any = SimpleNamespace(keeper_pid=1, answers=True, loop=asyncio.get_running_loop())
        assert await Ending(session)._gone(60.0, final=False)
        assert len(threads) == 3 and threading.get_ident() not in threads

    asyncio.run(asyncio.wait_for(main(), 60))
