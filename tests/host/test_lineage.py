"""What the shell starts before it writes a mark is known before the mark is taken."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.lineage import Cause
from holdfast.host import lineage as lineages
from holdfast.host import observe
from holdfast.host.commands import Commands
from holdfast.host.lineage import Kin

NONCE = "n" * 16


def mark(seq: int, body: str) -> bytes:
    return f"\x1b]7717;{NONCE};{seq};{body}\a".encode()


def test_p5_a_process_that_was_started_before_a_prompt_is_not_the_prompts(tmp_path: Path) -> None:
    """The whole command came in one piece: its beginning, its end and the next prompt."""
    commands = Commands({"shell": "bash", "nonce": NONCE, "by": "ann"}, str(tmp_path), {}, root=100)
    commands.feed(0, memoryview(mark(1, "P;0")))
    commands.typed("bob", b"server &\r", 7, 0)

    def told() -> None:
        assert commands.lineage.forked(100, 101, lambda pid: False)

    commands.before_marks = told
    commands.feed(1000, memoryview(mark(2, "C") + b"output" + mark(3, "P;0")))
    assert commands.lineage.of(101) == Cause("bob", 7)
    commands.close()


# ------------------------------------------------------------ one host, and a session that is this process

def session(directory: Path, id: str = "s") -> Any:
    loop = asyncio.get_running_loop()
    commands = Commands({"shell": "bash", "nonce": NONCE, "by": "ann"}, str(directory), {}, root=os.getpid())
    return SimpleNamespace(id=id, loop=loop, keeper_pid=os.getpid(), commands=commands, directory=str(directory), ended=loop.create_future(), spawn=loop.create_task, ring=SimpleNamespace(accepted=0))


@asynccontextmanager
async def host() -> AsyncIterator[Kin]:
    kin = Kin()
    kin.open()
    try:
        yield kin
    finally:
        kin.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_p5_a_thousand_losses_are_one_look_that_the_loop_does_not_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, real = list[int](), observe.descendants

    def counted(pid: int, with_argv: bool = True) -> list[observe.Process]:
        looks.append(pid)
        return real(pid, with_argv)

    async def main() -> None:
        async with host() as kin:
            if kin._searching is None:
                pytest.skip("the kernel does not tell of new processes here")
            one = session(tmp_path)
            kin.begin(one)
            monkeypatch.setattr(observe, "descendants", counted)
            child, known = subprocess.Popen(["sleep", "1000"]), one.commands.lineage
            try:
                while child.pid not in known.members:
                    await asyncio.sleep(0)
                known.exited(child.pid)                      # as if nobody had told
                for _ in range(1000):
                    kin._lost()
                assert not looks
                while child.pid not in known.members:
                    await asyncio.sleep(0)
                assert len(looks) == 1
            finally:
                child.kill()
                child.wait()

    run(main())


def test_s4_what_lies_where_the_last_host_wrote_may_be_anything(tmp_path: Path) -> None:
    async def main() -> None:
        texts = ("[" * 100_000, "\0", '{"members": 5}', '{"members": [[1, Infinity, 1, "ann", 1, []]], "now": null, "last": null, "prompted": true}')
        for n in range(len(texts) + 3):
            directory = tmp_path / str(n)
            directory.mkdir()
            file = directory / lineages.FILE
            if n < len(texts):
                file.write_text(texts[n])
            else:
                (lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to("/dev/zero"))[n - len(texts)]()
            async with host() as kin:
                kin.begin(one := session(directory))
                assert os.getpid() in one.commands.lineage.members and 1 not in one.commands.lineage.members

    run(main())


def test_s4_it_is_written_a_moment_after_it_changed_and_when_the_host_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineages, "SAVE_S", 0.01)

    async def main() -> None:
        async with host() as kin:
            kin.begin(session(tmp_path))
            while not (tmp_path / lineages.FILE).exists():
                await asyncio.sleep(0)
        (tmp_path / lineages.FILE).unlink()
        async with host() as kin:
            kin.begin(session(tmp_path))
        assert os.getpid() in [pid for pid, *_ in json.loads((tmp_path / lineages.FILE).read_text())["members"]]

    run(main())
