"""The durable state: acknowledged changes survive any crash; failed writes are reported or owed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow, Store
from holdfast.model.errors import Unavailable
from tests.support.examples import examples


def record(number: int, **changes: Any) -> SessionRow:
    one = SessionRow(f"{number:012d}", f"s{number}", "detached", 1, 1.5, ["sh"], "/", "b")
    return dataclasses.replace(one, **changes)


def with_store(path: Path, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
    async def go() -> Any:
        opened = Store(str(path))
        opened.start()
        try:
            return await work(opened)
        finally:
            opened.close()

    return asyncio.run(go())


def test_written_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    ended = record(
        2,
        state="ended",
        ended=3.5,
        exit_code=7,
        reason="exited",
        screen=["é", ""],
        ansi="\x1b[0m",
        survivors=1,
        argv=["\udcff", "x"],
    )

    async def work(s: Store) -> None:
        s.post(store.save(record(1)))
        await s.run(store.save(ended))
        await s.run(store.save(record(1, name="renamed")))
        await s.run(store.save(record(3)))
        await s.run(store.forget(record(3).id))

    with_store(path, work)
    assert {r.id: r for r in Store(str(path)).records()} == {
        r.id: r for r in (record(1, name="renamed"), ended)
    }
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=examples(25), deadline=None)
@given(
    st.builds(
        SessionRow,
        id=st.text(min_size=1),
        name=st.text(),
        state=st.text(),
        epoch=st.integers(0, 2**60),
        created=st.floats(0, 1e12),
        argv=st.lists(st.text(), max_size=4),
        cwd=st.text(),
        boot=st.text(),
        screen=st.lists(st.text(), max_size=3),
        ansi=st.text(),
        exit_code=st.none() | st.integers(0, 255),
        ended=st.none() | st.floats(0, 1e12),
    )
)
def test_any_record_round_trips(tmp_path_factory: pytest.TempPathFactory, one: SessionRow) -> None:
    path = tmp_path_factory.mktemp("db") / "state.db"
    with_store(path, lambda s: s.run(store.save(one)))
    assert Store(str(path)).records() == [one]


def test_terms_only_grow(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    terms = []
    for _ in range(3):
        opened = Store(path)
        terms.append(opened.next_term())
        opened._db.close()
    assert terms == [1, 2, 3]
    with_store(Path(path), lambda s: s.run(store.raise_term(50)))
    with_store(Path(path), lambda s: s.run(store.raise_term(7)))
    assert Store(path).next_term() == 51


def test_events_are_numbered_and_read_from_both_ends(tmp_path: Path) -> None:
    async def work(s: Store) -> None:
        for n in range(10):
            s.post(store.event(float(n), "a" if n % 2 else "b", "happened", {"n": n}))
        newest = await s.run(store.events_of(None, 0, 3))
        assert [e["n"] for e in newest] == [7, 8, 9] and [e["number"] for e in newest] == [8, 9, 10]
        assert [e["n"] for e in await s.run(store.events_of("a", 0, 100))] == [1, 3, 5, 7, 9]
        assert [e["n"] for e in await s.run(store.events_after(None, 4, 3))] == [4, 5, 6]
        assert [e["n"] for e in await s.run(store.events_after("b", 4, 2))] == [4, 6]
        assert (
            newest[0]["session"] == "a"
            and newest[0]["event"] == "happened"
            and newest[0]["time"] == 7.0
        )

    with_store(tmp_path / "state.db", work)


def test_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "EVENTS_KEPT", 100)

    async def work(s: Store) -> None:
        for _ in range(2000):
            s.post(store.event(0.0, "a", "e", {}))
        assert len(await s.run(store.events_of(None, 0, 10_000))) <= 100

    with_store(tmp_path / "state.db", work)


def full(s: Store) -> Callable[[], None]:
    """Makes the disk full (by SQLite's page limit); returns a function that undoes it."""

    def limit(pages: int) -> None:
        done = threading.Event()

        def job(db: apsw.Connection) -> None:
            db.execute(f"PRAGMA max_page_count={pages}")
            done.set()

        s.post(job)
        assert done.wait(120)

    limit(1)
    return lambda: limit(1_000_000)


BIG = {"ansi": "x" * 200_000}


def test_a_full_disk_is_a_typed_error_and_reading_goes_on(tmp_path: Path) -> None:
    async def work(s: Store) -> None:
        await s.run(store.save(record(1)))
        full(s)
        both = await asyncio.gather(
            s.run(store.save(record(2, **BIG))),
            s.run(store.events_of(None, 0, 5)),
            return_exceptions=True,
        )
        assert isinstance(both[0], Unavailable) and "free disk space" in both[0].recover
        assert both[1] == [], "a reader in the same group failed with the writer"
        assert s.failures >= 1 and "full" in s.last_failure

    with_store(tmp_path / "state.db", work)


def test_posted_jobs_are_owed_and_written_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.05)
    path = tmp_path / "state.db"

    async def work(s: Store) -> None:
        await s.run(store.save(record(1)))
        space = full(s)
        s.post(store.save(record(1, name="renamed", **BIG)))
        patient = asyncio.ensure_future(s.run(store.save(record(2, **BIG)), patient=True))
        with pytest.raises(Unavailable):
            await s.run(store.save(record(3, **BIG)))
        assert not patient.done()
        space()
        await asyncio.wait_for(patient, 120)

    with_store(path, work)
    assert {(r.id, r.name) for r in Store(str(path)).records()} == {
        (record(1).id, "renamed"),
        (record(2).id, "s2"),
    }


def test_a_job_that_fails_for_another_reason_does_not_stop_the_writer(tmp_path: Path) -> None:
    def broken(db: apsw.Connection) -> None:
        raise TypeError("a defect")

    async def work(s: Store) -> None:
        s.post(broken)
        with pytest.raises(Unavailable, match="a defect"):
            await s.run(broken)
        await s.run(store.save(record(1)))

    with_store(tmp_path / "state.db", work)
    assert len(Store(str(tmp_path / "state.db")).records()) == 1


@pytest.mark.parametrize("damage", ["garbage", "page", "short"])
def test_an_unreadable_file_is_put_aside_whole(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.db"

    async def work(s: Store) -> None:
        for n in range(200):
            s.post(store.save(record(n)))
        await s.run(store.save(record(999)))

    with_store(path, work)
    data = path.read_bytes()
    broken = {
        "garbage": os.urandom(8192),
        "page": data[:8192] + b"\xff" * 4096 + data[12288:],
        "short": data[:5000],
    }[damage]
    path.write_bytes(broken)
    opened = Store(str(path))
    assert opened.put_aside is not None and Path(opened.put_aside).read_bytes() == broken
    assert opened.records() == [] and opened.next_term() == 1


def test_an_unreadable_row_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with_store(path, lambda s: s.run(store.save(record(1))))
    db = apsw.Connection(str(path))
    for number, body in enumerate(("{", "[]", "{}", '{"id": "x", "surprise": 1}', "null")):
        db.execute("INSERT INTO sessions VALUES (?, 'n', 'live', NULL, ?)", (f"bad{number}", body))
    db.close()
    assert [r.id for r in Store(str(path)).records()] == [record(1).id]


def test_a_file_that_cannot_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises(Unavailable, match=r"state\.db"):
        Store(str(tmp_path / "state.db"))
    with pytest.raises(Unavailable):
        Store(str(tmp_path / "nowhere" / "state.db"))


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with_store(path, lambda s: s.run(store.save(record(1))))
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version=99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="newer release"):
        Store(str(path))
    assert path.read_bytes() == before and list(tmp_path.glob("*.unreadable-*")) == []


def test_two_stores_on_one_file_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    first = Store(path)
    first.next_term()
    with pytest.raises(Unavailable):
        Store(path)
    first._db.close()
