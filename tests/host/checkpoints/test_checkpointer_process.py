"""The checkpointer ends within a time limit, with all that it started (R2)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.home import programs
from holdfast.host.checkpoints import checkpointer_process as module
from holdfast.host.checkpoints.checkpointer_process import CheckpointerProcess
from holdfast.model.errors import Impossible
from tests.support.keeper import gone

# Reports, with the number of a child that ignores signals; then hangs, ends with its child, dies
# without it, or works until the pipe `enough` in its directory is written.
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
if HOW in ("lets go", "dies"):
    line.recv(100)
if HOW == "works":
    open("enough").read()
if HOW != "dies":
    os.kill(child, signal.SIGKILL)
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
            await process.answer(True)
            with pytest.raises(Impossible, match="died"):
                await process.told(60)
        else:
            assert await process.told(0.01) is None
        await process.end(lambda: killed.append(gone(told["bytes"])))
        return int(told["bytes"])

    monkeypatch.setattr(programs, "lean", command)
    monkeypatch.setattr(module, "LET_GO_S", 60.0 if how == "lets go" else 0.5)
    assert gone(asyncio.run(main()))
    assert killed == ([] if how == "lets go" else [False])


def test_r2_a_checkpointer_that_still_writes_images_is_not_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C during a long dump: CRIU hears of it once the images are written."""
    looks = list[int]()
    killed = list[bool]()
    enough = tmp_path / "enough"
    os.mkfifo(enough)
    program = f"import os; os.chdir({str(tmp_path)!r}); HOW = 'works'\n{PROGRAM}"

    def written(process: CheckpointerProcess) -> int:
        looks.append(len(looks))
        if len(looks) == 4:
            enough.write_text("")
        return looks[-1]

    async def main() -> None:
        process = CheckpointerProcess()
        assert await process.told(60) is not None
        await process.end(lambda: killed.append(True))

    monkeypatch.setattr(programs, "lean", lambda name: [sys.executable, "-c", program])
    monkeypatch.setattr(CheckpointerProcess, "written", written)
    monkeypatch.setattr(module, "LET_GO_S", 0.2)
    asyncio.run(main())
    assert len(looks) >= 4 and not killed


def test_r2_a_foreign_group_with_the_number_of_a_dead_checkpointer_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)

    async def main() -> None:
        process = CheckpointerProcess()
        with pytest.raises(Impossible, match="died"):
            await process.told(60)
        process._process.pid = foreign.pid
        await process.end()

    monkeypatch.setattr(programs, "lean", lambda name: [sys.executable, "-c", ""])
    monkeypatch.setattr(module, "KILLED_S", 0.1)
    asyncio.run(main())
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()
