"""R1: passes that store the newest output of sessions, while sessions begin and end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from holdfast.home import keys, prepare, resolve
from holdfast.host.lifecycle.spooling import Spooling
from holdfast.host.session.session import Session


class Printed:
    """A ring with output that no program adds to."""

    def __init__(self, data: bytes) -> None:
        self.start, self.head, self._data = 0, len(data), data

    def copy(self, start: int, end: int) -> bytes:
        return self._data[start:end]


class Ended:
    """A session as far as the spool needs it."""

    def __init__(self, name: str) -> None:
        self.id, self.on_output = name, lambda: None
        self.record = SimpleNamespace(state="ended", reason="", epoch=1)
        self.link = SimpleNamespace(ring=Printed(name.encode()))


def test_r1_a_session_that_ends_during_a_pass_does_not_stop_the_pass(tmp_path: Path) -> None:
    home = resolve({"HOLDFAST_HOME": str(tmp_path)})
    prepare(home)

    async def run() -> None:
        machine = keys.machine(home, 0.0)
        spooling = Spooling(home, machine, 1 << 20, lambda *_: None, lambda row: False)
        first, second, third = (cast(Session, Ended(f"00000000000{number}")) for number in range(3))
        for one in (first, second, third):
            spooling.begin(one)
        passing = asyncio.create_task(spooling._pass())
        await asyncio.sleep(0)  # the pass waits for the disk of the first session
        spooling.end(second)
        await passing
        assert spooling.spool(third.id, 1).load().pieces == ((0, third.id.encode()),)
        await spooling.close()

    asyncio.run(run())
