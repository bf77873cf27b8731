"""Going first: for a while, entirely, and never handed on to what a session runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from holdfast.host import hurry
from holdfast.host.hurry import hurrying, join, other, short_slice

POLICY = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"


def may() -> bool:
    """Whether this account may go before others here."""
    with hurrying(False):
        return os.sched_getscheduler(0) == hurry.REALTIME


needs_privilege = pytest.mark.skipif(not may(), reason="this account may not run before others")


def child() -> str:
    return subprocess.run(
        [sys.executable, "-c", POLICY], capture_output=True, text=True, check=True
    ).stdout.strip()


@needs_privilege
def test_a_hurry_ends_and_is_not_handed_on() -> None:
    before, ordinary = os.sched_getscheduler(0), child()
    with hurrying(False):
        assert os.sched_getscheduler(0) == hurry.REALTIME
        assert child() == ordinary
        with hurrying(True):
            assert child() == ordinary
        assert os.sched_getscheduler(0) == hurry.REALTIME, "the inner one ended the outer one's"
    assert os.sched_getscheduler(0) == before


@needs_privilege
def test_the_whole_process_hurries_and_so_does_a_thread_that_joins() -> None:
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
    with hurrying(True):
        late = threading.Thread(target=life, args=(True,))
        late.start()
        go.set()
        assert done.wait(120)
        while len(seen) < 2:
            done.wait(0.001)
    over.set()
    early.join()
    late.join()
    assert seen[:2] == [hurry.REALTIME] * 2
    assert hurry.REALTIME not in seen[2:]


@needs_privilege
def test_another_process_hurries_for_a_while() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        with other(process.pid):
            assert os.sched_getscheduler(process.pid) == hurry.REALTIME
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
        process.kill()


def test_who_is_gone_or_not_ours_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with other(process.pid), hurrying(False, process.pid):
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
def test_what_is_preferred_is_ordinary_again_and_a_share_that_somebody_chose_stays() -> None:
    if not os.path.exists("/proc/self/autogroup"):
        pytest.skip("this kernel does not group by terminal session")
    with (
        subprocess.Popen(["sleep", "100"], start_new_session=True) as usual,
        subprocess.Popen(["sleep", "100"], start_new_session=True) as chosen,
    ):
        with open(f"/proc/{chosen.pid}/autogroup", "w") as f:
            f.write("5")
        both = (usual.pid, chosen.pid)
        hurry.prefer(both)
        assert [share(pid) for pid in both] == [hurry.PREFERRED.decode(), "5"]
        hurry.ordinary(both)
        assert [share(pid) for pid in both] == ["0", "5"]
        usual.kill()
        chosen.kill()
