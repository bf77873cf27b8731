"""Process events of the kernel, and the behaviour of the host when events are missing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.host.processes import pid_filter, process_events
from tests.support.kernel import silent_about_processes

SILENT = silent_about_processes()
told = pytest.mark.skipif(bool(SILENT), reason=f"the kernel sends no process events: {SILENT}")


class Exits(list[tuple[int, int]]):
    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()

    def append(self, one: tuple[int, int]) -> None:
        super().append(one)
        self.more.set()


def opened(
    in_kernel: bool = True, **more: Any
) -> tuple[process_events.Events, list[tuple[int, int]], Exits, list[str]]:
    """A listener that watches this process."""
    forks, exits, lost = list[tuple[int, int]](), Exits(), list[str]()
    events = process_events.Events(
        lambda p, c: forks.append((p, c)),
        lambda p, s: exits.append((p, s)),
        lambda: lost.append("lost"),
        in_kernel=in_kernel,
        **more,
    )
    events.watch((os.getpid(),))
    return events, forks, exits, lost


both = pytest.mark.parametrize("in_kernel", [True, False], ids=["by the kernel", "by the host"])


async def until(exits: Exits, pid: int) -> None:
    while pid not in dict(exits):
        exits.more.clear()
        await exits.more.wait()


@told
@both
def test_p5_every_fork_and_exit_is_told_with_its_status(in_kernel: bool) -> None:
    async def main() -> None:
        events, forks, exits, lost = opened(in_kernel)
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
@both
def test_threads_are_not_told_as_processes(in_kernel: bool) -> None:
    async def main() -> None:
        events, forks, exits, _ = opened(in_kernel)
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "import threading; [t.start() or t.join() for t in [threading.Thread(target=int) "
                "for _ in range(20)]]",
            )
            await child.wait()
            await until(exits, child.pid)
            assert [p for p, _ in exits if p == child.pid] == [child.pid] and not [
                c for p, c in forks if p == child.pid
            ]
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


# ------------------------------------------------------------ only the watched processes

NEEDS_FILTER = pytest.mark.skipif(
    os.geteuid() != 0, reason="the kernel takes filters from root only"
)


async def storm(count: int = 100) -> None:
    """Starts child processes of this process."""
    child = await asyncio.create_subprocess_exec(
        "sh", "-c", f"for i in $(seq {count}); do /bin/true; done"
    )
    await child.wait()


@told
@both
def test_processes_that_are_not_watched_are_not_reported(in_kernel: bool) -> None:
    async def main() -> None:
        events, forks, exits, lost = opened(in_kernel)
        try:
            events.unwatch(os.getpid(), exited=False)
            await storm(10)
            events.catch_up()
            assert events.told and not forks and not exits and not lost and not events.watched
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@told
@NEEDS_FILTER
def test_the_kernel_sends_no_message_about_processes_that_are_not_watched() -> None:
    async def main() -> None:
        events, _, _, lost = opened()
        try:
            events.unwatch(os.getpid(), exited=False)
            events.catch_up()  # events from before
            before = events.heard
            await storm()
            events.catch_up()
            assert events.heard == before and not lost
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@told
def test_without_a_filter_a_quiet_listener_reads_in_batches_until_an_own_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_events, "QUIET_S", 0.0)

    async def main() -> None:
        events, forks, exits, lost = opened(in_kernel=False)
        try:
            events.unwatch(os.getpid(), exited=False)
            await storm(10)
            while events._batch is None:
                await storm(1)
            monkeypatch.setattr(process_events, "QUIET_S", 1000.0)
            events.watch((os.getpid(),))
            child = await asyncio.create_subprocess_exec("true")
            await child.wait()
            await until(exits, child.pid)
            assert (os.getpid(), child.pid) in forks and events._batch is None and not lost
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@told
@both
def test_forks_during_the_first_look_at_a_process_are_reported(in_kernel: bool) -> None:
    """The host finds the process in /proc first and watches it later; no fork between is missed."""

    async def main() -> None:
        events, forks, exits, lost = opened(in_kernel)
        try:
            events.unwatch(os.getpid(), exited=False)
            with events.everything():
                script = "sh -c 'sleep 1000 & echo below $!; wait' & echo child $!; read x"
                parent = subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1, text=True)
                assert parent.stdin is not None and parent.stdout is not None
                said = dict(parent.stdout.readline().split() for _ in range(2))
                child, below = int(said["child"]), int(said["below"])
                events.watch((parent.pid,))
            assert {(parent.pid, child), (child, below)} <= {*forks}
            os.kill(below, 9)
            parent.stdin.close()
            for pid in (below, child, parent.pid):
                await until(exits, pid)
                events.unwatch(pid)
            parent.stdout.close()
            parent.wait()
            assert not lost and not events.watched
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@told
@NEEDS_FILTER
def test_a_pid_that_was_taken_again_stays_watched_and_counts_as_a_loss() -> None:
    async def main() -> None:
        events, _, _, lost = opened()
        try:
            events.unwatch(os.getpid())  # as after a reported exit, but the process lives
            assert os.getpid() in events.watched and lost == ["lost"]
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@NEEDS_FILTER
def test_the_kernels_filter_notices_gaps_and_cuts_the_first_message_after_one() -> None:
    """The host cannot see the numbers of messages that were dropped."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    passing = pid_filter.PidFilter(ours)
    whole, cut = 76, pid_filter.CUT_BYTES

    def received(*messages: bytes) -> list[int]:
        lengths = []
        for one in messages:
            theirs.send(one.ljust(whole, b"\0"))
        with contextlib.suppress(BlockingIOError):
            while True:
                lengths.append(len(ours.recv(4096)))
        return lengths

    try:
        passing.add(5)
        assert received(message(1, 7, 5, 5, 6, 6), message(2, 8, 6, 6)) == [whole, whole]
        assert received(message(1, 9, 1, 1, 7, 7), message(2, 10, 7, 7)) == [], "of a stranger"
        assert received(message(2, 12, 7, 7)) == [cut], "11 is missing"
        assert received(message(2, 13, 7, 7), message(1, 0, 1, 1, 8, 8, cpu=1)) == []
        assert received(message(1, 15, 5, 5, 9, 9), message(0x80000000, 16, 9, 9)) == [cut, whole]
        assert received(message(1, 17, 5, 5, 10, 11), message(0x80000000, 18, 10, 6)) == []
        assert (
            received(message(0x80000000, 19, 6, 6), message(0x80000000, 20, 10, 6)) == [whole] * 2
        )
        assert sorted(passing.exited()) == [6, 9]
        assert received(message(1, 21, 1, 1, 9, 9), message(0, 22, 0)) == [whole] * 2
        passing.add(pid_filter.OPEN)
        assert received(message(1, 23, 1, 1, 7, 7), message(2, 24, 7, 7)) == [whole] * 2
    finally:
        passing.close()
        ours.close()
        theirs.close()


def message(what: int, number: int, *facts: int, cpu: int = 0) -> bytes:
    body = (
        struct.pack("=IIIIHH", 1, 1, number, 0, 40, 0)
        + struct.pack("=IIQ", what, cpu, 0)
        + struct.pack("=IIII", *facts, *[0] * (4 - len(facts)))
    )
    return struct.pack("=IHHII", 16 + len(body), 3, 0, 0, 0) + body


Deaf = tuple[process_events.Events, list[tuple[int, int]], list[str], Callable[..., None]]


@pytest.fixture
def deaf(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Deaf]:
    """Events without a kernel: the test supplies the messages."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    monkeypatch.setattr(process_events, "_subscribed", lambda in_kernel: (ours, None))
    forks, lost = list[tuple[int, int]](), list[str]()

    async def make() -> process_events.Events:
        made = process_events.Events(
            lambda p, c: forks.append((p, c)), lambda p, s: None, lambda: lost.append("lost")
        )
        made.watch((5, 6))
        return made

    def tell(*messages: bytes) -> None:
        for one in messages:
            theirs.send(one)
        events.catch_up()

    loop = asyncio.new_event_loop()
    events = loop.run_until_complete(make())
    yield events, forks, lost, tell
    events.close()
    theirs.close()
    loop.close()


def test_a_hole_in_the_numbers_of_one_processor_is_a_loss(
    deaf: Deaf,
) -> None:
    events, forks, lost, tell = deaf
    assert not events.told
    for number, cpu in ((7, 0), (100, 1), (8, 0), (101, 1)):
        tell(message(1, number, 5, 5, 6, 6, cpu=cpu))
    assert not lost and len(forks) == 4
    tell(message(1, 10, 5, 5, 6, 6))
    assert lost == ["lost"] and len(forks) == 5 and events.lost == 1
    tell(message(1, 0xFFFF_FFFF, 5, 5, 6, 6, cpu=2))
    tell(message(1, 0, 5, 5, 6, 6, cpu=2))
    assert events.lost == 1, "the number starts again"


def test_short_or_foreign_messages_are_skipped(
    deaf: Deaf,
) -> None:
    _, forks, lost, tell = deaf
    tell(b"")
    tell(message(1, 1, 5, 5, 6, 6)[:40])
    tell(message(4, 1, 5, 5, 6, 6))
    tell(message(0, 2, 13))
    assert not forks and not lost


def test_in_another_network_namespace_it_is_refused_or_silent() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a network namespace")
    code = """
import asyncio
from holdfast.host.processes import process_events
async def main():
    try:
        events = process_events.Events(lambda p, c: None, lambda p, s: None, lambda: None)
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


def test_a_failing_callback_counts_as_a_loss_and_the_next_messages_are_taken(
    deaf: Deaf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A caller that catches up, before a shell's mark is taken, must not fail."""
    events, forks, lost, tell = deaf

    def broken(pid: int, status: int) -> None:
        raise ZeroDivisionError

    events._on_exit = broken
    tell(message(0x80000000, 1, 6, 6), message(1, 2, 5, 5, 7, 7))
    assert (
        forks == [(5, 7)]
        and lost == ["lost"]
        and [one.exc_info[0] for one in caplog.records if one.exc_info] == [ZeroDivisionError]
    )


@told
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another account")
@pytest.mark.parametrize("way", ["setuid", "setgid"])
def test_p3_a_change_of_account_or_group_is_reported(way: str) -> None:
    async def main() -> None:
        others = list[int]()
        events, _, exits, _ = opened(on_account=others.append)
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
