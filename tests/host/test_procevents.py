"""The kernel's word on forks and exits, and what is made of its silence."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host import procevents
from holdfast.testing.kernel import silent_about_processes

SILENT = silent_about_processes()
told = pytest.mark.skipif(bool(SILENT), reason=f"nobody is told of processes here: {SILENT}")


class Exits(list[tuple[int, int]]):
    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()

    def append(self, one: tuple[int, int]) -> None:
        super().append(one)
        self.more.set()


def opened() -> tuple[procevents.Events, list[tuple[int, int]], Exits, list[str]]:
    forks, exits, lost = list[tuple[int, int]](), Exits(), list[str]()
    return (
        procevents.Events(
            lambda p, c: forks.append((p, c)),
            lambda p, s: exits.append((p, s)),
            lambda: lost.append("lost"),
        ),
        forks,
        exits,
        lost,
    )


async def until(exits: Exits, pid: int) -> None:
    while pid not in dict(exits):
        exits.more.clear()
        await exits.more.wait()


@told
def test_p5_every_fork_and_exit_is_told_with_its_status() -> None:
    async def main() -> None:
        events, forks, exits, lost = opened()
        try:
            child = await asyncio.create_subprocess_exec(
                "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sh -c 'exit 7' & wait; done; kill -9 $$"
            )
            await child.wait()
            await until(exits, child.pid)
            below = [c for p, c in forks if p == child.pid]
            assert (os.getpid(), child.pid) in forks and len(below) == 9 and events.told
            assert [os.waitstatus_to_exitcode(dict(exits)[pid]) for pid in below] == [7] * 9
            assert os.waitstatus_to_exitcode(dict(exits)[child.pid]) == -9 and not lost
        finally:
            events.close()
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@told
def test_threads_are_not_told_as_processes() -> None:
    async def main() -> None:
        events, forks, exits, _ = opened()
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "import threading; [t.start() or t.join() for t in [threading.Thread(target=int) for _ in range(20)]]",
            )
            await child.wait()
            await until(exits, child.pid)
            assert [p for p, _ in exits if p == child.pid] == [child.pid] and not [
                c for p, c in forks if p == child.pid
            ]
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def message(what: int, number: int, *facts: int, cpu: int = 0) -> bytes:
    body = (
        struct.pack("=IIIIHH", 1, 1, number, 0, 40, 0)
        + struct.pack("=IIQ", what, cpu, 0)
        + struct.pack("=IIII", *facts, *[0] * (4 - len(facts)))
    )
    return struct.pack("=IHHII", 16 + len(body), 3, 0, 0, 0) + body


@pytest.fixture
def deaf(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[procevents.Events, list[tuple[int, int]], list[str]]]:
    """Told nothing by the kernel: what it says is made here."""
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    monkeypatch.setattr(procevents, "_subscribed", lambda: ours)
    forks, lost = list[tuple[int, int]](), list[str]()

    async def make() -> procevents.Events:
        return procevents.Events(
            lambda p, c: forks.append((p, c)), lambda p, s: None, lambda: lost.append("lost")
        )

    loop = asyncio.new_event_loop()
    events = loop.run_until_complete(make())
    yield events, forks, lost
    events.close()
    theirs.close()
    loop.close()


def test_a_hole_in_the_numbers_of_one_processor_is_a_loss(
    deaf: tuple[procevents.Events, list[tuple[int, int]], list[str]],
) -> None:
    events, forks, lost = deaf
    assert not events.told
    for number, cpu in ((7, 0), (100, 1), (8, 0), (101, 1)):
        events._message(message(1, number, 5, 5, 6, 6, cpu=cpu))
    assert events.told and not lost and len(forks) == 4
    events._message(message(1, 10, 5, 5, 6, 6))
    assert lost == ["lost"] and len(forks) == 5 and events.lost == 1
    events._message(message(1, 0xFFFF_FFFF, 5, 5, 6, 6, cpu=2))
    events._message(message(1, 0, 5, 5, 6, 6, cpu=2))
    assert events.lost == 1, "the number starts again"


def test_what_is_short_or_of_another_kind_is_passed_over(
    deaf: tuple[procevents.Events, list[tuple[int, int]], list[str]],
) -> None:
    events, forks, lost = deaf
    events._message(b"")
    events._message(message(1, 1, 5, 5, 6, 6)[:40])
    events._message(message(4, 1, 5, 5, 6, 6))
    events._message(message(0, 1, 13))
    assert not forks and not lost


def test_in_another_network_namespace_it_is_refused_or_silent() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a network namespace")
    code = """
import asyncio
from holdfast.host import procevents
from holdfast.testing.kernel import silent_about_processes
async def main():
    try:
        events = procevents.Events(lambda p, c: None, lambda p, s: None, lambda: None)
    except OSError as e:
        return print("refused")
    await (await asyncio.create_subprocess_exec("true")).wait()
    print("told" if events.told else "silent")
asyncio.run(main())
"""
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() in ("refused", "silent"), done


def test_what_one_message_breaks_counts_as_lost_and_the_next_are_taken(
    deaf: tuple[procevents.Events, list[tuple[int, int]], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever catches up, before a shell's mark is taken, is not to fail for it."""
    events, forks, lost = deaf

    def broken(pid: int, status: int) -> None:
        raise ZeroDivisionError

    events._on_exit = broken
    waiting = iter([message(0x80000000, 1, 6, 6), message(1, 2, 5, 5, 7, 7)])

    def receive(_: int) -> bytes:
        try:
            return next(waiting)
        except StopIteration:
            raise BlockingIOError from None

    sock = events._sock
    try:
        kernel: Any = SimpleNamespace(recv=receive, fileno=sock.fileno)
        events._sock = kernel
        events.catch_up()
    finally:
        events._sock = sock
    assert (
        forks == [(5, 7)]
        and lost == ["lost"]
        and [one.exc_info[0] for one in caplog.records if one.exc_info] == [ZeroDivisionError]
    )


@told
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another account")
@pytest.mark.parametrize("way", ["setuid", "setgid"])
def test_p3_who_goes_on_as_another_account_or_group_is_told(way: str) -> None:
    async def main() -> None:
        events, _, exits, _ = opened()
        others = list[int]()
        events.on_account = others.append
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", f"import os; os.{way}(54321)"
            )
            await child.wait()
            await until(exits, child.pid)
            assert child.pid in others
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))
