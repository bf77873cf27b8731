"""Processes that the shell starts before it writes a mark are known before the mark is taken."""

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

from holdfast.core.originators.lineage import Cause
from holdfast.host.originators import lineage as host_lineage
from holdfast.host.originators.lineage import Lineages
from holdfast.host.processes import proc_scan
from holdfast.host.processes.process import Stat
from holdfast.host.runtime import saver
from holdfast.host.session.commands import Commands
from holdfast.host.shell import SessionDirectories
from tests.support.kernel import silent_about_processes

NONCE = "n" * 16
SILENT = silent_about_processes()


def mark(seq: int, body: str) -> bytes:
    return f"\x1b]7717;{NONCE};{seq};{body}\a".encode()


def test_p5_a_process_that_was_started_before_a_prompt_is_not_the_prompts(tmp_path: Path) -> None:
    """The whole command came in one piece: its beginning, its end and the next prompt."""
    commands = Commands(
        {"shell": "bash", "nonce": NONCE, "by": "ann"},
        SessionDirectories.as_outside(tmp_path, tmp_path),
        str(tmp_path),
        {},
        root=100,
    )
    commands.feed(0, memoryview(mark(1, "P;0")))
    commands.typed("bob", b"server &\r", 7, 0)

    def told() -> None:
        assert commands.lineage.forked(100, 101, lambda pid: False)

    commands.before_marks = told
    commands.feed(1000, memoryview(mark(2, "C") + b"output" + mark(3, "P;0")))
    assert commands.lineage.of(101) == Cause("bob", 7)
    commands.close()


def test_p3_listeners_know_the_cause_of_an_order_that_came_in_one_piece(tmp_path: Path) -> None:
    """`cd` begins and ends within one piece of output: it is not an unknown operator's order."""
    commands = Commands(
        {"shell": "bash", "nonce": NONCE, "by": "ann"},
        SessionDirectories.as_outside(tmp_path, tmp_path),
        str(tmp_path),
        {},
        root=100,
    )
    told = list[tuple[str, Cause | None]]()

    def note(effects: list[Any]) -> None:
        told.extend((type(effect).__name__, commands.lineage.now) for effect in effects)

    commands.listeners.append(note)
    commands.feed(0, memoryview(mark(1, "P;0")))
    commands.typed("bob", b"cd /\r", 7, 0)
    commands.feed(1000, memoryview(mark(2, "C") + mark(3, "P;0")))
    assert ("CommandStarted", Cause("bob", 7)) in told
    commands.close()


# ----------------------------------------------------- one host, and a session that is this process


def session(directory: Path, id: str = "s") -> Any:
    loop = asyncio.get_running_loop()
    commands = Commands(
        {"shell": "bash", "nonce": NONCE, "by": "ann"},
        SessionDirectories.as_outside(directory, directory),
        str(directory),
        {},
        root=os.getpid(),
    )
    return SimpleNamespace(
        id=id,
        loop=loop,
        keeper_pid=os.getpid(),
        commands=commands,
        writable_directory=str(directory),
        host_only_directory=str(directory),
        ended=loop.create_future(),
        spawn=loop.create_task,
        ring=SimpleNamespace(accepted=0),
    )


EXIT = {"x86_64": 60, "aarch64": 93}.get(
    platform.machine(), 1
)  # of one thread: pthread_exit unwinds frames of Python


@asynccontextmanager
async def host() -> AsyncIterator[Lineages]:
    lineages = Lineages()
    lineages.open()
    try:
        yield lineages
    finally:
        lineages.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_p5_a_thousand_losses_are_one_look_that_the_loop_does_not_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, real = list[int](), proc_scan.of_session

    def counted(pid: int) -> list[Stat]:
        looks.append(pid)
        return real(pid)

    async def main() -> None:
        async with host() as lineages:
            needs_events()
            one = session(tmp_path)
            lineages.begin(one)
            monkeypatch.setattr(proc_scan, "of_session", counted)
            child, known = subprocess.Popen(["sleep", "1000"]), one.commands.lineage
            try:
                while child.pid not in known.members:
                    await asyncio.sleep(0)
                known.exited(child.pid)  # as if no exit had been reported
                for _ in range(1000):
                    lineages._lost()
                assert not looks
                while child.pid not in known.members:
                    await asyncio.sleep(0)
                assert len(looks) == 1
            finally:
                child.kill()
                child.wait()

    run(main())


def test_s4_a_corrupt_file_of_the_last_host_is_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        texts = (
            "[" * 100_000,
            "\0",
            '{"members": 5}',
            '{"members": [[1, Infinity, 1, "ann", 1, []]], "now": null, "last": null, "prompted": '
            "true}",
        )
        for n in range(len(texts) + 3):
            directory = tmp_path / str(n)
            directory.mkdir()
            file = directory / host_lineage.FILE
            if n < len(texts):
                file.write_text(texts[n])
            else:
                (lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to("/dev/zero"))[
                    n - len(texts)
                ]()
            async with host() as lineages:
                lineages.begin(one := session(directory))
                assert (
                    os.getpid() in one.commands.lineage.members
                    and 1 not in one.commands.lineage.members
                )

    run(main())


def test_s4_the_lineage_is_stored_soon_after_a_change_and_when_the_host_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "SAVE_S", 0.01)

    async def main() -> None:
        async with host() as lineages:
            lineages.begin(session(tmp_path))
            while not (tmp_path / host_lineage.FILE).exists():
                await asyncio.sleep(0)
        (tmp_path / host_lineage.FILE).unlink()
        async with host() as lineages:
            lineages.begin(session(tmp_path))
        assert os.getpid() in [
            pid for pid, *_ in json.loads((tmp_path / host_lineage.FILE).read_text())["members"]
        ]

    run(main())


# ------------------------------------------------------------ processes that are gone or seem to be


def needs_events() -> None:
    if SILENT:
        pytest.skip(f"the kernel does not report processes here: {SILENT}")


async def known(lineages: Lineages, pid: int) -> None:
    while pid not in lineages._owner:
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["its first thread ends", "another thread becomes another program"])
def test_p5_a_process_whose_first_thread_is_gone_lives_on_with_its_act(
    tmp_path: Path, way: str
) -> None:
    """Programs in Go, for example, may exec in any of their threads."""
    first = (
        f"ctypes.CDLL(None).syscall({EXIT}, 0)"
        if way == "its first thread ends"
        else "threading.Event().wait()"
    )
    then = (
        f"subprocess.run(['sh', '-c', 'exit 5']); open({str(tmp_path / 'on')!r}, 'w').close(); "
        "sys.stdin.readline(); os._exit(3)"
    )
    if way != "its first thread ends":
        then = (
            f"os.execvp('sh', ['sh', '-c', 'sh -c \"exit 5\"; : > {tmp_path}/on; read line; "
            "exit 3'])"
        )
    code = (
        f"import ctypes, os, subprocess, sys, threading\ndef other():\n    {then}\n"
        f"threading.Thread(target=other).start()\n{first}\n"
    )

    async def main() -> None:
        told = list[tuple[str, int, int | None]]()
        async with host() as lineages:
            needs_events()
            lineages.on_change.append(
                lambda session, what, pid, status, was: told.append((what, pid, status))
            )
            lineages.begin(one := session(tmp_path))
            one.commands.lineage._shell = False
            child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
            try:
                while not (tmp_path / "on").exists():
                    assert child.poll() is None, "it goes on"
                    await asyncio.sleep(0)
                while way == "its first thread ends" and not (
                    lineages._events and child.pid in lineages._events.threads
                ):
                    await asyncio.sleep(0)
                lineages.catch_up()
                assert child.pid in lineages._owner and ("exited", child.pid) not in [
                    (what, pid) for what, pid, _ in told
                ]
                below = [
                    pid
                    for what, pid, status in told
                    if what == "exited" and pid != child.pid and status == 5 << 8
                ]
                assert below, "its later children are known"
            finally:
                child.communicate(b"\n")
            while child.pid in lineages._owner:
                await asyncio.sleep(0)
            assert [
                status for what, pid, status in told if (what, pid) == ("exited", child.pid)
            ] == [3 << 8] and not (lineages._events and lineages._events.threads)

    run(main())


def test_p5_a_reused_pid_is_another_process_even_without_an_exit_report(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        told = list[tuple[str, int]]()
        lineages = Lineages()
        lineages.begin(one := session(tmp_path))
        lineages.on_change.append(lambda session, what, pid, status, was: told.append((what, pid)))
        lineages._forked(os.getpid(), 1 << 22)
        lineages._forked(1, 1 << 22)  # a process of no session
        assert (
            1 << 22 not in lineages._owner
            and 1 << 22 not in one.commands.lineage.members
            and told == [("started", 1 << 22), ("exited", 1 << 22)]
        )
        lineages.end(one)
        one.commands.close()

    run(main())


def test_p5_a_process_that_a_look_no_longer_finds_is_reported_as_gone(tmp_path: Path) -> None:
    """The report of the exit was lost."""

    async def main() -> None:
        told = list[tuple[str, int, int | None]]()
        lineages = Lineages()
        lineages.begin(one := session(tmp_path))
        lineages.on_change.append(
            lambda session, what, pid, status, was: told.append((what, pid, status))
        )
        lineages._forked(os.getpid(), 1 << 22)
        lineages.seen(one, {os.getpid(): (1, 1)})
        assert [each for each in told if each[1] == 1 << 22] == [
            ("started", 1 << 22, None),
            ("exited", 1 << 22, None),
        ]
        lineages.end(one)
        one.commands.close()

    run(main())


def test_p5_a_look_that_returns_after_the_end_of_its_session_is_ignored(
    tmp_path: Path,
) -> None:
    """The pids may have been reused by then.

    If the keeper was claimed anew, they are of the same session, as it is now.
    """

    async def main() -> None:
        lineages = Lineages()
        lineages.begin(before := session(tmp_path))
        looked = {1 << 22: (1, os.getpid())}
        lineages.end(before)
        lineages.seen(before, looked)
        assert not lineages._owner and not lineages._savers
        lineages.begin(now := session(tmp_path))
        lineages.seen(before, looked)
        assert lineages._owner and all(one is now for one in lineages._owner.values())
        lineages.end(now)
        for one in (before, now):
            one.commands.close()

    run(main())


def test_p5_processes_started_during_the_first_look_belong_to_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children, real = list[subprocess.Popen[bytes]](), host_lineage.living

    def living(one: Any) -> dict[int, tuple[int, int]]:
        found = real(one)
        children.append(subprocess.Popen(["sleep", "1000"]))
        return found

    monkeypatch.setattr(host_lineage, "living", living)

    async def main() -> None:
        async with host() as lineages:
            needs_events()
            while not lineages.told:
                await asyncio.sleep(0)
            try:
                lineages.begin(session(tmp_path))
                lineages.catch_up()
                assert children[0].pid in lineages._owner
            finally:
                for child in children:
                    child.kill()
                    child.wait()

    run(main())


def test_p5_a_session_that_cannot_be_looked_at_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = host_lineage.living
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
        async with host() as lineages:
            needs_events()
            lineages.begin(session(tmp_path))
            other = session(tmp_path, "t")
            other.commands.lineage.root = 1
            other.commands.lineage._members = {1: other.commands.lineage._members.pop(os.getpid())}
            lineages.begin(other)
            monkeypatch.setattr(host_lineage, "living", living)
            for _ in range(2):
                again.clear()
                lineages._lost()
                await asyncio.wait_for(again.wait(), 20)
            assert errors and all(isinstance(one, ZeroDivisionError) for one in errors)

    run(main())


def test_p5_a_process_of_the_next_line_is_not_given_to_the_last_line(
    tmp_path: Path,
) -> None:
    """The shell starts a process after it was asked which marks were on their way.

    The answer does not cover that process.
    """

    async def main() -> None:
        answers = list[asyncio.Future[None]]()

        async def marks_seen() -> None:
            answers.append(asyncio.get_running_loop().create_future())
            await answers[-1]

        lineages, one = Lineages(), session(tmp_path)
        one.marks_seen = marks_seen
        root, commands = os.getpid(), one.commands
        lineages.begin(one)
        commands.feed(0, memoryview(mark(1, "P;0")))
        commands.typed("ann", b"make\r", 1, 0)
        commands.feed(1000, memoryview(mark(2, "C")))
        commands.typed("bob", b"deploy\r", 2, 0)  # ahead, while ann's runs
        lineages._forked(root, (1 << 22) + 1)
        while not answers:
            await asyncio.sleep(0)
        lineages._forked(root, (1 << 22) + 2)  # bob's process: its mark is on the way
        answers[0].set_result(None)
        while len(answers) < 2:
            await asyncio.sleep(0)
        commands.feed(2000, memoryview(mark(3, "P;0") + mark(4, "C")))
        answers[1].set_result(None)
        # bob typed while ann's command ran, so the first process may have read bob's input
        causes = [commands.lineage.of((1 << 22) + n) for n in (1, 2)]
        assert causes == [Cause("ann", 1, ("bob",)), Cause("bob", 2, ("ann",))]
        while lineages._waiting:
            await asyncio.sleep(0)
        assert not commands.lineage.doubtful and len(answers) == 2
        lineages.end(one)
        commands.close()

    run(main())


def test_without_a_session_the_host_is_subscribed_to_no_process_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_events()
    monkeypatch.setattr(host_lineage, "REST_S", 0.0)

    async def main() -> None:
        async with host() as lineages:
            assert lineages._events is None and lineages.told, "it was tried, and is not kept"
            lineages.begin(one := session(tmp_path))
            assert lineages._events is not None and lineages.told
            lineages.end(one)
            while lineages._events is not None:
                await asyncio.sleep(0)
            assert lineages.told and lineages._searching is None
            lineages.begin(again := session(tmp_path))
            assert lineages._events is not None
            for each in (one, again):
                each.commands.close()

    run(main())


def test_p5_the_process_of_a_stranger_with_the_pid_of_an_exited_one_is_noticed(
    tmp_path: Path,
) -> None:
    """Late file events of the exited process must not count for the new process."""
    needs_events()

    async def main() -> None:
        async with host() as lineages:
            lineages.keeps_exited = True
            lineages.begin(session(tmp_path))
            child = subprocess.Popen(["true"])
            while child.pid not in lineages._gone:
                await asyncio.sleep(0)
            child.wait()
            assert lineages._events is not None and child.pid in lineages._events.watched
            lineages._events._forked(1, child.pid)  # the fork of a process that is not watched
            assert child.pid in lineages._twice and not lineages.doers({child.pid})
            lineages.forget_exited()
            assert child.pid not in lineages._events.watched and not lineages._events.lost

    run(main())
