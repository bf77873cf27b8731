"""R3: a machine that is cut off from etcd, and another machine that takes its session over.

Two machines with hosts of their own, and three real members of etcd, in network namespaces. The
cut is silent: packets are lost, and no connection is closed.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import eventually
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.etcd import Cluster, Member, needs_etcd
from tests.support.recovery.leases import DRIFT, boottime
from tests.support.recovery.two_machines import ADDRESS, Machine, Two, two_machines

pytestmark = needs_etcd
TERM_S = 6.0
PORTS = (2379, 2381, 2383)  # of a network of their own
COUNT = "while :; do read -r up rest </proc/uptime; echo $up >>count; read -rt 0.02 -u 9; done"


@pytest.fixture
def etcd(tmp_path: Path) -> Cluster:
    place = tmp_path / "etcd"
    place.mkdir()
    return Cluster([Member(f"m{p}", place, ADDRESS, p, p + 1) for p in PORTS])


@pytest.fixture
def two(tmp_path: Path, etcd: Cluster) -> Iterator[Two]:
    criu()
    config = (
        f'[lease]\nstore = "etcd"\nterm_s = {TERM_S}\ndrift = {DRIFT}\n'
        f"etcd_endpoints = {json.dumps([*etcd.endpoints])}\n"
    )
    with two_machines(tmp_path, config=config) as made:
        inside = ("nsenter", "-t", str(made.net.space.pid), "-n", "--")
        for member in etcd.members:
            member.start(etcd.word, inside)
        yield made
        for member in etcd.members:
            member.kill()


def lost(two: Two, on: bool) -> None:
    """Set the far end of the first machine's link: then packets are lost without a sign there."""
    state = "down" if on else "up"
    pid = str(two.net.space.pid)
    argv = ["nsenter", "-t", pid, "-n", "ip", "link", "set", "m1", state]
    subprocess.run(argv, check=True, capture_output=True)


def attachable(machine: Machine, session: str) -> bool:
    """Whether the session's incarnation there takes input, by the machine's own word."""
    found = [one for one in machine.ls("--local") if one["id"] == session]
    return bool(found) and found[0]["state"] in ("live", "detached")


def test_r3_a_machine_without_etcd_freezes_before_another_takes_over(two: Two) -> None:
    here, there = two.here, two.there
    work = here.base / "work" / "work"
    work.mkdir()
    made: dict[str, Any] = here.ok(
        "new", "work", "--contained", "--no-attach", "--json", "--cwd", str(here.work / "work")
    ).json
    session = made["id"]
    here.says("work", "mkfifo fifo; exec 9<>fifo; X=kept")
    here.ok("checkpoint", "work", "--to", "vault")
    eventually(lambda: here.cli("rehome", "work", "on").rc == 0 or None, "etcd has a leader")
    here.ok("send", "work", COUNT, "--enter")
    count = work / "count"
    eventually(lambda: count.read_text() or None, "the program counts")

    lost(two, True)
    cut = boottime()
    taken: list[float] = []

    def take_over() -> None:
        eventually(lambda: there.cli("restore", "work", "--json").rc == 0 or None, "a takeover")
        taken.append(boottime())

    taking = threading.Thread(target=take_over)
    taking.start()
    eventually(lambda: here.get("work")["state"] == "fenced" or None, "it freezes by its own clock")
    assert not (attachable(here, session) and attachable(there, session))
    taking.join()
    last = max(map(float, count.read_text().split()))
    assert last < cut + TERM_S, "the old incarnation stands still at the end of its term"
    assert taken[0] > cut + TERM_S * (1 + DRIFT), "the new one waits longer"
    assert not attachable(here, session) and attachable(there, session)
    assert there.says("work", "echo $X") == "kept\n"
    refused = here.cli("send", "work", "x", "--enter")
    assert refused.rc == 4 and "fenced" in refused.err, refused

    lost(two, False)
    gone = eventually(
        lambda: next((s for s in here.ls("--all", "--local") if s.get("ended")), None),
        "the old incarnation is over",
    )
    # The store of leases or the other machine tells it, whichever answers first.
    how, _, where = gone["reason"].partition(": ")
    assert how in ("fenced", "moved") and "vault" in where, gone
    assert attachable(there, session)
