"""R3: real hosts and keepers with three real members of etcd that are killed and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.leases.etcd import Access, EtcdStore
from tests.support.installation import Installation, eventually
from tests.support.recovery.authority import Authority
from tests.support.recovery.etcd import Cluster, ask, cluster, needs_etcd, with_users
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


def test_r3_an_etcd_with_tls_and_passwords_that_refuses_this_machine_for_a_while(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "authority")
    pair, password = authority.pair("machine"), tmp_path / "password"
    password.write_text("fleet:first\n")
    password.chmod(0o600)
    with cluster(tmp_path / "etcd", 1, authority) as etcd:
        (member,) = etcd.members
        with_users(member, "holdfast/", {"fleet": "first"})
        made = Installation(
            tmp_path,
            f'[lease]\nstore = "etcd"\nterm_s = {TERM_S}\ndrift = {DRIFT}\n'
            f"etcd_endpoints = {json.dumps([*etcd.endpoints])}\n"
            f'etcd_ca = "{authority.ca}"\netcd_certificate = "{pair.certificate}"\n'
            f'etcd_key = "{pair.key}"\netcd_password_file = "{password}"\n',
        )
        with contextlib.closing(made) as hf:
            assert "etcd 3." in hf.cli("doctor").out
            counter = counting(hf, "work")
            root = ask(member, "/v3/auth/authenticate", {"name": "root", "password": "root"})
            other = {"name": "fleet", "password": "second"}
            ask(member, "/v3/auth/user/changepw", other, root["token"])
            eventually(lambda: state(hf, "work") == "fenced", "its password is refused")
            assert counter.stands()
            assert "refuses user 'fleet'" in hf.get("work")["lease"]["why"]
            shown = hf.cli("lease", "show", "work", "--json")
            error = shown.json["error"]
            assert shown.rc == 5 and "refuses user 'fleet'" in error["message"], shown
            assert not error["retry_safe"] and "lease.etcd_password_file" in error["recover"]
            said = hf.cli("doctor").out
            assert "refuses user 'fleet'" in said and "lease.etcd_password_file" in said
            password.write_text("fleet:second\n")
            eventually(lambda: state(hf, "work") == "detached", "the password is right again")
            eventually(counter.goes_on, "the program goes on")
