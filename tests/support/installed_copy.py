"""An engine in the test's process, with real keepers, sessions and gate; and a proved caller."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from holdfast import home as homes
from holdfast.home.settings import Settings
from holdfast.host.engine import Engine
from holdfast.host.storage.store import Store
from holdfast.model import signing

DEADLINE_S, POLL_S = 120.0, 0.01
T = TypeVar("T")


class Caller:
    """The part of a connection that the called functions use."""

    def __init__(self, operator: str, kind: str = "human", private: bytes | None = None) -> None:
        self.operator, self.kind = operator, kind
        self.private = private or signing.generate()
        self.key = signing.public(self.private)
        self.shown = signing.show(self.key)
        self.pid = os.getpid()


@asynccontextmanager
async def engine(path: Path) -> AsyncIterator[Engine]:
    home = homes.resolve({"HOLDFAST_HOME": str(path / "hf")})
    homes.prepare(home)
    made = Engine(home, Settings.load(home), Store(home.database))
    made.store.start()
    await made.rediscovery.begin()
    await made.adoptions.all()
    try:
        yield made
    finally:
        made.nursery.dismiss()
        await made.close()


async def eventually(check: Callable[[], T], what: str) -> T:
    """Poll until `check` returns a true value."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not (found := check()):
        assert loop.time() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(POLL_S)  # a poll with a deadline
    return found
