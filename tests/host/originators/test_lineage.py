"""What the shell starts before it writes a mark is known before the mark is taken."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
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
    commands = Commands(
        {"shell": "bash", "nonce": NONCE, "by": "ann"}, str(directory), {}, root=os.getpid()
    )
    return SimpleNamespace(
        id=id,
        loop=loop,
        keeper_pid=os.getpid(),
        commands=commands,
        directory=str(directory),
        memory=str(directory),
        ended=loop.create_future(),
        spawn=loop.create_task,
        ring=SimpleNamespace(accepted=0),
    )


EXIT = {"x86_64": 60, "aarch64": 93}.get(
    platform.machine(), 1
)  # of one thread: pthread_exit unwinds frames that are Python's


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


def test_p5_a_thousand_losses_are_one_look_that_the_loop_does_not_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
                known.exited(child.pid)  # as if nobody had told
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
        texts = (
            "[" * 100_000,
            "\0",
            '{"members": 5}',
            '{"members": [[1, Infinity, 1, "ann", 1, []]], "now": null, "last": null, "prompted": true}',
        )
        for n in range(len(texts) + 3):
            directory = tmp_path / str(n)
            directory.mkdir()
            file = directory / lineages.FILE
            if n < len(texts):
                file.write_text(texts[n])
            else:
                (lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to("/dev/zero"))[
                    n - len(texts)
                ]()
            async with host() as kin:
                kin.begin(one := session(directory))
                assert (
                    os.getpid() in one.commands.lineage.members
                    and 1 not in one.commands.lineage.members
                )

    run(main())


def test_s4_it_is_written_a_moment_after_it_changed_and_when_the_host_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineages, "SAVE_S", 0.01)

    async def main() -> None:
        async with host() as kin:
            kin.begin(session(tmp_path))
            while not (tmp_path / lineages.FILE).exists():
                await asyncio.sleep(0)
        (tmp_path / lineages.FILE).unlink()
        async with host() as kin:
            kin.begin(session(tmp_path))
        assert os.getpid() in [
            pid for pid, *_ in json.loads((tmp_path / lineages.FILE).read_text())["members"]
        ]

    run(main())


# ------------------------------------------------------------ who is gone, and who only seems to be


def needs_events(kin: Kin) -> None:
    if kin._searching is None:
        pytest.skip("the kernel does not tell of new processes here")


async def known(kin: Kin, pid: int) -> None:
    while pid not in kin._owner:
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["its first thread ends", "another thread becomes another program"])
def test_p5_a_process_whose_first_thread_is_gone_lives_on_with_its_act(
    tmp_path: Path, way: str
) -> None:
    """Programs in Go, for example, become another program in whichever thread they are."""
    first = (
        f"ctypes.CDLL(None).syscall({EXIT}, 0)"
        if way == "its first thread ends"
        else "threading.Event().wait()"
    )
    then = f"subprocess.run(['sh', '-c', 'exit 5']); open({str(tmp_path / 'on')!r}, 'w').close(); sys.stdin.readline(); os._exit(3)"
    if way != "its first thread ends":
        then = f"os.execvp('sh', ['sh', '-c', 'sh -c \"exit 5\"; : > {tmp_path}/on; read line; exit 3'])"
    code = f"import ctypes, os, subprocess, sys, threading\ndef other():\n    {then}\nthreading.Thread(target=other).start()\n{first}\n"

    async def main() -> None:
        told = list[tuple[str, int, int | None]]()
        async with host() as kin:
            needs_events(kin)
            kin.on_change.append(
                lambda session, what, pid, status, was: told.append((what, pid, status))
            )
            kin.begin(one := session(tmp_path))
            one.commands.lineage._shell = False
            child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
            try:
                while not (tmp_path / "on").exists():
                    assert child.poll() is None, "it goes on"
                    await asyncio.sleep(0)
                while way == "its first thread ends" and not (
                    kin._events and child.pid in kin._events.threads
                ):
                    await asyncio.sleep(0)
                kin.catch_up()
                assert child.pid in kin._owner and ("exited", child.pid) not in [
                    (what, pid) for what, pid, _ in told
                ]
                below = [
                    pid
                    for what, pid, status in told
                    if what == "exited" and pid != child.pid and status == 5 << 8
                ]
                assert below, "what it started since is known"
            finally:
                child.communicate(b"\n")
            while child.pid in kin._owner:
                await asyncio.sleep(0)
            assert [
                status for what, pid, status in told if (what, pid) == ("exited", child.pid)
            ] == [3 << 8] and not (kin._events and kin._events.threads)

    run(main())


def test_p5_a_pid_that_is_used_again_is_another_process_though_nobody_told_that_the_first_was_gone(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        told = list[tuple[str, int]]()
        kin = Kin()
        kin.begin(one := session(tmp_path))
        kin.on_change.append(lambda session, what, pid, status, was: told.append((what, pid)))
        kin._forked(os.getpid(), 1 << 22)
        kin._forked(1, 1 << 22)  # somebody else's
        assert (
            1 << 22 not in kin._owner
            and 1 << 22 not in one.commands.lineage.members
            and told == [("started", 1 << 22), ("exited", 1 << 22)]
        )
        kin.end(one)
        one.commands.close()

    run(main())


def test_p5_what_a_look_does_not_find_any_more_is_told_as_gone(tmp_path: Path) -> None:
    """Its exit was lost."""

    async def main() -> None:
        told = list[tuple[str, int, int | None]]()
        kin = Kin()
        kin.begin(one := session(tmp_path))
        kin.on_change.append(
            lambda session, what, pid, status, was: told.append((what, pid, status))
        )
        kin._forked(os.getpid(), 1 << 22)
        kin.seen(one, {os.getpid(): (1, 1)})
        assert [each for each in told if each[1] == 1 << 22] == [
            ("started", 1 << 22, None),
            ("exited", 1 << 22, None),
        ]
        kin.end(one)
        one.commands.close()

    run(main())


def test_p5_a_look_that_comes_back_after_the_end_of_its_session_says_nothing(
    tmp_path: Path,
) -> None:
    """The pids may be anybody's by then; and if its keeper was claimed anew, they are of the same session, as it is now."""

    async def main() -> None:
        kin = Kin()
        kin.begin(before := session(tmp_path))
        looked = {1 << 22: (1, os.getpid())}
        kin.end(before)
        kin.seen(before, looked)
        assert not kin._owner and not kin._saving
        kin.begin(now := session(tmp_path))
        kin.seen(before, looked)
        assert kin._owner and all(one is now for one in kin._owner.values())
        kin.end(now)
        for one in (before, now):
            one.commands.close()

    run(main())


def test_p5_what_starts_while_a_session_is_looked_at_for_the_first_time_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children, real = list[subprocess.Popen[bytes]](), lineages._living

    def living(one: Any) -> dict[int, tuple[int, int]]:
        found = real(one)
        children.append(subprocess.Popen(["sleep", "1000"]))
        return found

    monkeypatch.setattr(lineages, "_living", living)

    async def main() -> None:
        async with host() as kin:
            needs_events(kin)
            while not kin.told:
                await asyncio.sleep(0)
            try:
                kin.begin(session(tmp_path))
                kin.catch_up()
                assert children[0].pid in kin._owner
            finally:
                for child in children:
                    child.kill()
                    child.wait()

    run(main())


def test_p5_a_session_that_cannot_be_looked_at_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lineages._living
    again = asyncio.Event()

    def living(one: Any) -> dict[int, tuple[int, int]]:
        if one.id == "s":
            raise ZeroDivisionError
        one.loop.call_soon_threadsafe(again.set)
        return real(one)

    async def main() -> None:
        errors = list[object]()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(context.get("exception"))
        )
        async with host() as kin:
            needs_events(kin)
            kin.begin(session(tmp_path))
            other = session(tmp_path, "t")
            other.commands.lineage.root = 1
            other.commands.lineage._members = {1: other.commands.lineage._members.pop(os.getpid())}
            kin.begin(other)
            monkeypatch.setattr(lineages, "_living", living)
            for _ in range(2):
                again.clear()
                kin._lost()
                await asyncio.wait_for(again.wait(), 20)
            assert errors and all(isinstance(one, ZeroDivisionError) for one in errors)

    run(main())


def test_p5_a_process_of_the_next_line_is_not_the_last_ones_because_earlier_marks_have_come(
    tmp_path: Path,
) -> None:
    """The shell starts something after it was asked which marks were on their way: the answer says nothing of that."""

    async def main() -> None:
        answers = list[asyncio.Future[None]]()

        async def marks_seen() -> None:
            answers.append(asyncio.get_running_loop().create_future())
            await answers[-1]

        kin, one = Kin(), session(tmp_path)
        one.marks_seen = marks_seen
        root, commands = os.getpid(), one.commands
        kin.begin(one)
        commands.feed(0, memoryview(mark(1, "P;0")))
        commands.typed("ann", b"make\r", 1, 0)
        commands.feed(1000, memoryview(mark(2, "C")))
        commands.typed("bob", b"deploy\r", 2, 0)  # ahead, while ann's runs
        kin._forked(root, (1 << 22) + 1)
        while not answers:
            await asyncio.sleep(0)
        kin._forked(root, (1 << 22) + 2)  # bob's: its mark is on the way
        answers[0].set_result(None)
        while len(answers) < 2:
            await asyncio.sleep(0)
        commands.feed(2000, memoryview(mark(3, "P;0") + mark(4, "C")))
        answers[1].set_result(None)
        assert commands.lineage.of((1 << 22) + 1) == Cause("ann", 1) and commands.lineage.of(
            (1 << 22) + 2
        ) == Cause("bob", 2, ("ann",))
        while kin._waiting:
            await asyncio.sleep(0)
        assert not commands.lineage.doubtful and len(answers) == 2
        kin.end(one)
        commands.close()

    run(main())
