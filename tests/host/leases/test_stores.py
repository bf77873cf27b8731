"""Both stores keep the same promises (R3)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.lease.records import Commit, Stored
from holdfast.host.leases.etcd import Access, EtcdStore
from holdfast.host.leases.sqlite import SQLiteStore
from holdfast.host.leases.store import LeaseStore
from holdfast.model.errors import Unavailable, Usage
from tests.support.installation import SOON_S
from tests.support.recovery.etcd import Cluster, cluster, needs_etcd

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@pytest.fixture(params=["sqlite", pytest.param("etcd", marks=needs_etcd)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[LeaseStore]]:
    """Two processes' views of one empty store."""
    made: list[LeaseStore]
    if request.param == "sqlite":
        made = [SQLiteStore(f"{tmp_path}/leases.db") for _ in "ab"]
    else:
        endpoints = request.getfixturevalue("etcd").endpoints
        made = [EtcdStore(Access(endpoints, f"{tmp_path.name}/")) for _ in "ab"]
    yield made
    for one in made:
        one.close()


def test_r3_a_commit_needs_the_revisions_that_were_read(stores: list[LeaseStore]) -> None:
    one, other = stores
    assert one.read(["machine/a", "session/s"], WITHIN_S) == {
        "machine/a": Stored(b"", 0),
        "session/s": Stored(b"", 0),
    }
    first = one.commit(Commit((("machine/a", 0),), (("machine/a", b"1"),)), WITHIN_S)
    assert first > 0
    assert other.read(["machine/a"], WITHIN_S) == {"machine/a": Stored(b"1", first)}
    assert other.commit(Commit((("machine/a", 0),), (("machine/a", b"2"),)), WITHIN_S) == 0
    both = (("machine/a", first), ("session/s", 0))
    puts = (("machine/a", b"1"), ("session/s", b"3"))
    second = other.commit(Commit(both, puts), WITHIN_S)
    assert second > first, "the same value is a new revision"
    assert one.commit(Commit(both, puts), WITHIN_S) == 0, "a repeat finds its own effect"
    assert one.read(["session/s", "machine/a"], WITHIN_S) == {
        "session/s": Stored(b"3", second),
        "machine/a": Stored(b"1", second),
    }


def test_r3_one_of_many_wins_each_round(stores: list[LeaseStore]) -> None:
    won: list[int] = []

    def race(store: LeaseStore) -> None:
        for _ in range(10):
            now = store.read(["session/s"], WITHIN_S)["session/s"]
            made = store.commit(
                Commit((("session/s", now.revision),), (("session/s", b"x"),)), WITHIN_S
            )
            if made:
                won.append(made)

    threads = [threading.Thread(target=race, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(won)) == len(won) >= 10
    assert stores[0].read(["session/s"], WITHIN_S)["session/s"].revision == max(won)


@needs_etcd
def test_r3_many_keys_are_read_in_parts(etcd: Cluster) -> None:
    store = EtcdStore(Access(etcd.endpoints, "many/"))
    for start in (0, 100, 200):
        names = [f"session/{n}" for n in range(start, start + 100)]
        puts = tuple((name, name.encode()) for name in names)
        assert store.commit(Commit((), puts), WITHIN_S)
    found = store.read([f"session/{n}" for n in range(300)], WITHIN_S)
    assert all(one.value == key.encode() for key, one in found.items())
    assert store.version(WITHIN_S) >= "3.5.16"


@needs_etcd
def test_r3_a_member_that_is_gone_is_left_out(etcd: Cluster) -> None:
    access = Access(("http://127.0.0.1:1", *etcd.endpoints), "gone/")
    store = EtcdStore(access)
    assert store.commit(Commit((), (("machine/a", b"1"),)), WITHIN_S)
    nobody = EtcdStore(Access(("http://127.0.0.1:1",)))
    with pytest.raises(Unavailable, match="etcd does not answer"):
        nobody.read(["machine/a"], 1.0)


class Member:
    """A member that takes requests, and answers with one byte after the other, without an end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self) -> None:
        while not self.over.is_set():
            sock, _ = self.listener.accept()
            self.asked += 1
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not self.over.wait(0.02):
                sock.sendall(b"x")

    def close(self) -> None:
        self.over.set()
        self.listener.close()


@pytest.fixture
def slow() -> Iterator[Member]:
    made = Member()
    yield made
    made.close()


def test_r3_a_member_that_never_ends_its_answer_has_a_time_limit(slow: Member) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match="etcd does not answer"):
        EtcdStore(Access((slow.url,))).read(["machine/a"], 0.5)
    assert time.monotonic() - began < SOON_S


@needs_etcd
def test_r3_a_slow_member_takes_only_its_part_of_the_time(slow: Member, etcd: Cluster) -> None:
    store = EtcdStore(Access((slow.url, *etcd.endpoints), "slow/"))
    assert store.commit(Commit((), (("machine/a", b"1"),)), WITHIN_S)
    asked = slow.asked
    assert store.read(["machine/a"], WITHIN_S)["machine/a"].value == b"1"
    assert asked == slow.asked == 1, "the next request goes to the member that answered"


@needs_etcd
def test_r3_a_name_that_is_not_resolved_holds_up_no_other_request(
    etcd: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, asked, real = threading.Event(), threading.Event(), socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        if host == "silent.invalid":
            asked.set()
            over.wait()
            raise OSError("no such name")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    store = EtcdStore(Access(("http://silent.invalid:1", *etcd.endpoints), "name/"))
    first: list[int] = []
    commit = Commit((), (("machine/a", b"1"),))
    thread = threading.Thread(target=lambda: first.append(store.commit(commit, WITHIN_S)))
    thread.start()
    try:
        assert asked.wait(SOON_S)
        second = store.commit(commit, WITHIN_S)
        thread.join()
        assert second and first[0]
    finally:
        over.set()


def test_an_endpoint_must_be_an_address() -> None:
    with pytest.raises(Usage, match="no endpoint"):
        EtcdStore(Access(("10.0.0.1:2379",)))
    with pytest.raises(Usage, match="empty"):
        EtcdStore(Access(()))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(Unavailable, match=r"leases\.db cannot be used"):
        SQLiteStore(str(path)).read(["machine/a"], 1.0)
