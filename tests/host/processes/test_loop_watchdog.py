"""A thread hangs if it has not run, although it was not stopped and a processor was free."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.host.processes import loop_watchdog
from holdfast.host.processes.loop_watchdog import HeldUp, ran, slow


def test_a_thread_that_waits_has_not_run_and_one_that_works_has() -> None:
    begun, over, ids = threading.Event(), threading.Event(), list[int]()

    def wait() -> None:
        ids.append(threading.get_native_id())
        begun.set()
        over.wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    try:
        while (
            Path(f"/proc/self/task/{ids[0]}/stat").read_text().rpartition(")")[2].split()[0] != "S"
        ):
            pass
        assert ran(ids[0]) == ran(ids[0])
        assert ran(threading.get_native_id()) != ran(threading.get_native_id()), "this one runs"
    finally:
        over.set()
        waiting.join()
    assert ran(ids[0]) != ran(ids[0]), "of one that is gone nothing is known"


def test_a4_a_loop_that_does_not_come_back_from_reading_is_replaced_and_the_session_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(loop_watchdog, "HELD_S", 0.05)
    session = cast(Any, SimpleNamespace(id="s1", host_only_directory=str(tmp_path)))
    replaced, wait = threading.Event(), os.pipe()
    watch = HeldUp(replaced.set)

    def loop() -> None:
        watch.begin(session)
        watch.reading, watch.turn = session, 1
        os.read(wait[0], 1)  # a read that does not return

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert not slow(session) and replaced.wait(60) and slow(session)
    finally:
        os.write(wait[1], b".")
        thread.join()
        for end in wait:
            os.close(end)


def test_nested_reads_are_told_apart(tmp_path: Path) -> None:
    watch, one, other = (
        HeldUp(),
        cast(Any, SimpleNamespace(id="s1", host_only_directory=str(tmp_path))),
        cast(Any, SimpleNamespace(id="s2", host_only_directory=str(tmp_path))),
    )
    with watch.reads(one):
        turn = watch.turn
        with watch.reads(other):
            assert watch.reading is other and watch.turn != turn
        assert watch.reading is one and watch.turn not in (turn, turn + 1)
    assert watch.reading is None


def test_a_session_that_held_up_a_host_is_known_to_the_next(tmp_path: Path) -> None:
    session, watch = (
        cast(Any, SimpleNamespace(id="s1", host_only_directory=str(tmp_path))),
        HeldUp(),
    )
    (tmp_path / "slow").touch()
    watch.begin(session)
    assert watch.slow(session)
    watch.end(session)
    assert not watch.slow(session)
