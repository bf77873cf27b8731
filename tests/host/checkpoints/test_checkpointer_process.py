"""The checkpointer ends within a time limit, with all that it started (R2)."""

from __future__ import annotations

import asyncio
import sys

import pytest

from holdfast.home import programs
from holdfast.host.checkpoints import checkpointer_process as module
from holdfast.host.checkpoints.checkpointer_process import CheckpointerProcess
from holdfast.model.errors import Impossible
from tests.support.keeper import gone

# Reports, with the number of a child that ignores signals; then hangs, ends, or dies.
PROGRAM = """
import json, os, signal, socket, sys
line = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    line.close()
    signal.pause()
line.send(json.dumps({"step": "begun", "bytes": child}).encode())
if HOW == "hangs":
    signal.pause()
if HOW == "lets go":
    line.recv(100)
"""


@pytest.mark.parametrize("how", ["hangs", "lets go", "dies"])
def test_r2_a_checkpointer_ends_in_time_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    killed = list[bool]()

    def command(name: str) -> list[str]:
        return [sys.executable, "-c", f"HOW = {how!r}\n{PROGRAM}"]

    async def main() -> int:
        process = CheckpointerProcess()
        told = await process.told(60)
        assert told is not None and told["step"] == "begun"
        if how == "dies":
            with pytest.raises(Impossible, match="died"):
                await process.told(60)
        else:
            assert await process.told(0.01) is None
        await process.end(lambda: killed.append(gone(told["bytes"])))
        return int(told["bytes"])

    monkeypatch.setattr(programs, "lean", command)
    monkeypatch.setattr(module, "LET_GO_S", 0.5 if how == "hangs" else 60.0)
    assert gone(asyncio.run(main()))
    assert killed == ([False] if how == "hangs" else [])
