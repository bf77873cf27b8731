"""A raised priority ends with its block, and programs of a session never inherit it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from holdfast.host.runtime import priority
from holdfast.host.runtime.priority import join, raised, raised_process, short_slice

POLICY = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"


def may() -> bool:
    """Whether this account may use a real-time policy here."""
    with raised(False):
        return os.sched_getscheduler(0) == priority.REALTIME


needs_privilege = pytest.mark.skipif(not may(), reason="this account may not run before others")


def child() -> str:
    return subprocess.run(
        [sys.executable, "-c", POLICY], capture_output=True, text=True, check=True
    ).stdout.strip()


@needs_privilege
def test_a_raised_priority_ends_and_is_not_inherited() -> None:
    before, ordinary = os.sched_getscheduler(0), child()
    with raised(False):
        assert os.sched_getscheduler(0) == priority.REALTIME
        assert child() == ordinary
        with raised(True):
            assert child() == ordinary
        assert os.sched_getscheduler(0) == priority.REALTIME, "the inner one ended the outer one's"
    assert os.sched_getscheduler(0) == before


@needs_privilege
def test_the_whole_process_is_raised_and_a_thread_that_joins_too() -> None:
    go, done, over = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def life(joins: bool) -> None:
        if joins:
            join()
        go.wait(120)
        seen.append(os.sched_getscheduler(threading.get_native_id()))
        done.set()
        over.wait(120)
        seen.append(os.sched_getscheduler(threading.get_native_id()))

    early = threading.Thread(target=life, args=(False,))
    early.start()
    with raised(True):
        late = threading.Thread(target=life, args=(True,))
        late.start()
        go.set()
        assert done.wait(120)
        while len(seen) < 2:
            done.wait(0.001)
    over.set()
    early.join()
    late.join()
    assert seen[:2] == [priority.REALTIME] * 2
    assert priority.REALTIME not in seen[2:]


@needs_privilege
def test_another_process_is_raised_for_a_while() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        with raised_process(process.pid):
            assert os.sched_getscheduler(process.pid) == priority.REALTIME
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
        process.kill()


def test_a_process_that_is_gone_or_not_ours_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with raised_process(process.pid), raised(False, process.pid):
        pass


def test_a_short_slice_needs_no_privilege_and_stays_with_its_thread() -> None:
    def inside() -> None:
        if not short_slice():
            return found.append("no such kernel")
        found.append(child())

    ordinary = child()
    found: list[str] = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found in ([ordinary], ["no such kernel"])


def share(pid: int) -> str:
    with open(f"/proc/{pid}/autogroup") as f:
        return f.read().split()[-1]


@needs_privilege
def test_a_preferred_share_is_undone_and_a_share_that_a_person_chose_stays() -> None:
    if not os.path.exists("/proc/self/autogroup"):
        pytest.skip("this kernel does not group by terminal session")
    with (
        subprocess.Popen(["sleep", "100"], start_new_session=True) as usual,
        subprocess.Popen(["sleep", "100"], start_new_session=True) as chosen,
    ):
        with open(f"/proc/{chosen.pid}/autogroup", "w") as f:
            f.write("5")
        both = (usual.pid, chosen.pid)
        priority.prefer(both)
        assert [share(pid) for pid in both] == [priority.PREFERRED.decode(), "5"]
        priority.ordinary(both)
        assert [share(pid) for pid in both] == ["0", "5"]
        usual.kill()
        chosen.kill()
