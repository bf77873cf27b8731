"""Both stores keep the same promises (R3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.lease.records import Commit, Stored
from holdfast.host.leases.etcd import Access, EtcdStore
from holdfast.host.leases.sqlite import SQLiteStore
from holdfast.host.leases.store import LeaseStore
from holdfast.model.errors import Unavailable, Usage
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
