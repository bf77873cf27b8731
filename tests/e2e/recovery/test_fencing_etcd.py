"""R3: real hosts and keepers with three real members of etcd that are killed and stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.leases.etcd import Access, EtcdStore
from tests.support.installation import Installation, eventually
from tests.support.recovery.etcd import Cluster, cluster, needs_etcd
from tests.support.recovery.leases import DRIFT, Rival, counting

pytestmark = needs_etcd
TERM_S = 4.0  # a new leader is elected within some two seconds


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "etcd") as made:
        yield made


@pytest.fixture
def hf(tmp_path: Path, etcd: Cluster) -> Iterator[Installation]:
    endpoints = json.dumps([*etcd.endpoints])
    made = Installation(
        tmp_path,
        f'[lease]\nstore = "etcd"\nterm_s = {TERM_S}\ndrift = {DRIFT}\n'
        f"etcd_endpoints = {endpoints}\n",
    )
    yield made
    made.close()


def state(hf: Installation, name: str) -> str:
    return str(hf.get(name)["state"])


def test_r3_a_lost_leader_is_borne_and_a_lost_majority_freezes(
    hf: Installation, etcd: Cluster
) -> None:
    counter = counting(hf, "work")
    etcd.leader().kill()
    eventually(lambda: hf.attempt("lease", "show", "work").rc == 0, "another leader answers")
    eventually(counter.goes_on, "the program goes on")
    left = [one for one in etcd.members if one.process and one.process.poll() is None]
    left[0].kill()
    eventually(lambda: state(hf, "work") == "fenced", "no majority, no lease")
    assert counter.stands()
    left[0].start(etcd.word)
    eventually(lambda: state(hf, "work") == "detached", "the majority is back")
    eventually(counter.goes_on, "the program goes on")


def test_r3_a_takeover_while_host_and_leader_are_stopped(hf: Installation, etcd: Cluster) -> None:
    counter = counting(hf, "work")
    session = hf.get("work")["id"]
    rival = Rival(lambda: EtcdStore(Access(etcd.endpoints)))
    leader = etcd.leader()
    assert leader.process is not None
    os.kill(hf.host_pid, signal.SIGSTOP)
    os.kill(leader.process.pid, signal.SIGSTOP)
    try:
        epoch, at = rival.takes(session)
        assert epoch == 2 and counter.last() < at
        assert counter.stands()
    finally:
        os.kill(leader.process.pid, signal.SIGCONT)
        os.kill(hf.host_pid, signal.SIGCONT)
    eventually(
        lambda: any(s.get("reason") == "fenced: epoch 2 lives on rival" for s in hf.ls("--all")),
        "the old incarnation is discarded",
    )
