"""The fence: an incarnation stops acting at a deadline on its own clock (R3)."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout
from tests.support.contained_keeper import Contained
from tests.support.keeper import RAW, Link, Nursery, boottime_ns, stop, until


def fence(
    link: Link, deadline_ns: int, freeze: int | None = None, epoch: int | None = None
) -> None:
    packet = wire.fence(link.welcome.epoch if epoch is None else epoch, deadline_ns)
    if freeze is None:
        link.sock.send(packet)
    else:
        socket.send_fds(link.sock, [packet], [freeze])


def test_r3_at_the_deadline_the_session_freezes_and_takes_no_act(
    nursery: Nursery, tmp_path: Path
) -> None:
    link = nursery.run("a", ["cat"])
    frozen = os.open(tmp_path / "cgroup.freeze", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = boottime_ns(0.15)
    fence(link, deadline, frozen)
    os.close(frozen)  # the keeper has its own
    link.type(b"before\n", origin=1, number=1)
    link.wait_for(b"before")
    assert not link.ring.flags & layout.FLAG_FENCED
    link.rung()
    link.flag(layout.FLAG_FENCED)
    assert boottime_ns() >= deadline
    until(link.rung, "the bell")
    assert (tmp_path / "cgroup.freeze").read_bytes() == b"1"
    link.type(b"after\n", origin=1, number=2)
    assert link.rejected() == (2, wire.REJECT_FENCED, 0)
    again = nursery.link("a")
    assert again.ring.flags & layout.FLAG_FENCED, "a new host finds it fenced"
    fence(again, 0)
    again.type(b"thawed\n")
    again.wait_for(b"thawed")
    assert b"after" not in again.all() and not again.ring.flags & layout.FLAG_FENCED


def test_r3_a_deadline_can_be_moved_and_one_in_the_past_holds_at_once(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    fence(link, boottime_ns(0.1))
    fence(link, boottime_ns(3600))
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 0.2, "the first deadline to be over")
    link.type(b"still\n")
    link.wait_for(b"still")
    fence(link, 1)
    link.type(b"never\n")
    assert link.rejected()[1] == wire.REJECT_FENCED
    assert link.ring.flags & layout.FLAG_FENCED


def test_r3_a_deadline_without_a_descriptor_keeps_the_last_one(
    nursery: Nursery, tmp_path: Path
) -> None:
    """A host sends none if the way to the keeper is full."""
    link = nursery.run("a", ["cat"])
    with open(tmp_path / "cgroup.freeze", "wb") as freezer:
        fence(link, boottime_ns(3600), freezer.fileno())
    fence(link, 1)
    link.flag(layout.FLAG_FENCED)
    assert (tmp_path / "cgroup.freeze").read_bytes() == b"1"


def test_r3_a_keeper_begins_with_its_deadline(nursery: Nursery, tmp_path: Path) -> None:
    """No host has to live until then."""
    link = nursery.run("a", ["cat"], deadline_ns=1)
    assert link.ring.flags & layout.FLAG_FENCED
    link.type(b"never\n")
    assert link.rejected()[1] == wire.REJECT_FENCED
    fence(link, boottime_ns(3600))
    assert link.rejected() == (0, wire.REJECT_FENCED, 0), "the host learns that it has to resume"
    later = nursery.run("b", ["cat"], deadline_ns=boottime_ns(0.3))
    later.type(b"before\n")
    later.wait_for(b"before")
    later.flag(layout.FLAG_FENCED)


def test_r3_another_incarnations_fence_is_refused(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"], epoch=7)
    fence(link, 1, epoch=6)
    assert link.rejected() == (0, wire.REJECT_EPOCH, 7)
    link.type(b"goes on\n")
    link.wait_for(b"goes on")


def test_r3_waiting_input_does_not_pass_the_fence(nursery: Nursery, tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run(
        "a", ["sh", "-c", f"{RAW} while [ ! -e {gate} ]; do sleep 0.02; done; exec cat > {out}"]
    )
    link.wait_for(b"READY")
    waiting = link.fill()
    with open(tmp_path / "freeze", "wb") as freezer:  # that stops nothing: the program reads on
        fence(link, 1, freezer.fileno())
    link.state()
    gate.touch()
    until(
        lambda: out.exists() and out.stat().st_size >= 4096,
        "the program to read its input, and to make room",
    )
    for _ in range(20):
        link.state()  # each is a turn in which the keeper could write
    assert link.ring.written == waiting[0] - 1
    total = 32768 * link.sequence
    fence(link, 0)
    link.written()
    until(lambda: out.stat().st_size == total, "the rest, once the fence is lifted")


def test_r3_the_clock_decides_not_the_order_of_events(nursery: Nursery) -> None:
    """The keeper is paused over its deadline; on waking it finds an act, the timer and a packet."""
    link = nursery.run("a", ["sh", "-c", RAW + "exec cat"])
    link.wait_for(b"READY")
    fence(link, boottime_ns(0.1))
    link.state()
    pid = nursery.keepers["a"]
    stop(pid)
    deadline = boottime_ns(0.1)
    until(lambda: boottime_ns() > deadline, "the deadline to pass")
    link.type(b"too late")
    os.kill(pid, signal.SIGCONT)
    assert link.rejected()[1] == wire.REJECT_FENCED
    assert b"too late" not in link.all()


def test_r3_a_new_deadline_that_meets_the_old_ones_timer(nursery: Nursery) -> None:
    """On waking the keeper finds both: the timer has fired, and is set anew before it is read."""
    link = nursery.run("a", ["cat"])
    pid = nursery.keepers["a"]
    for _ in range(5):
        fence(link, boottime_ns(0.05))
        link.state()
        stop(pid)
        deadline = boottime_ns(0.05)
        until(lambda deadline=deadline: boottime_ns() > deadline, "the deadline to pass")  # type: ignore[misc]
        fence(link, boottime_ns(3600))
        os.kill(pid, signal.SIGCONT)
        link.state()
    link.type(b"alive\n")
    link.wait_for(b"alive")


def test_r3_a_deadline_that_came_too_late_is_reported(nursery: Nursery) -> None:
    """The keeper has stopped the programs at the old one; only the host may let them go on."""
    link = nursery.run("a", ["cat"])
    fence(link, boottime_ns(0.05))
    link.flag(layout.FLAG_FENCED)
    fence(link, 1)
    fence(link, boottime_ns(3600))
    assert link.rejected() == (0, wire.REJECT_FENCED, 0)
    fence(link, boottime_ns(7200))
    link.type(b"x", origin=1, number=1)
    link.sock.send(wire.fence(9, 1))
    assert link.rejected() == (0, wire.REJECT_EPOCH, 1), "a deadline in time is not reported"


def test_a_deadline_at_the_end_of_time_is_none(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    fence(link, 2**64 - 1)
    link.type(b"fine\n")
    link.wait_for(b"fine")


COUNT = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done"


@pytest.mark.parametrize("contained", [False, True], ids=["plain", "contained"])
def test_r3_without_a_freezer_the_keeper_stops_the_programs_itself(
    contained: bool, nursery: Nursery
) -> None:
    """No host does anything after the deadline was set, as if it were stopped."""
    made = Contained(Path(tempfile.mkdtemp(prefix="hf"))) if contained else None
    try:
        link = made.run("sh", "-c", COUNT) if made else nursery.run("a", ["sh", "-c", COUNT])
        link.wait_for(b"20\r\n")
        fence(link, boottime_ns(0.05))
        link.flag(layout.FLAG_FENCED)

        def stands() -> bool:
            before = link.ring.head
            deadline = boottime_ns(0.2)
            until(lambda: boottime_ns() > deadline, "some time to pass")
            return link.ring.head == before

        until(stands, "the programs stand still")
    finally:
        if made is not None:
            made.close()
