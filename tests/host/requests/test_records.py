"""`log` and `log.export` over a real connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.record import record
from holdfast.core.record.audit import verify
from holdfast.host.requests import records
from holdfast.host.runtime.connection import Connection
from holdfast.host.storage import record_table
from holdfast.host.storage.journal import Journal
from holdfast.host.storage.store import Store
from holdfast.wire import frames
from tests.support.checkers.records import Scribe


class Client:
    """The other end: reads only when told."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.splitter = frames.Splitter(frames.FROM_HOST)
        self.frames: list[tuple[int, bytes]] = []
        self.received = 0

    async def until(self, enough: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while not enough():
            data = await asyncio.wait_for(loop.sock_recv(self.sock, 1 << 16), 120)
            assert data
            self.frames.extend((kind, bytes(payload)) for kind, payload in self.splitter.feed(data))
            self.received += len(data)

    def events(self) -> list[dict[str, Any]]:
        return [frames.read_json(payload) for kind, payload in self.frames if kind == frames.EVENT]

    def data(self) -> bytes:
        return b"".join(
            bytes(frames.read_data(memoryview(p))[3])
            for kind, p in self.frames
            if kind == frames.DATA
        )


def connected(
    path: Path, work: Callable[[Journal, Scribe, Connection, Client], Coroutine[Any, Any, None]]
) -> None:
    async def go() -> None:
        store = Store(str(path))
        store.start()
        scribe = Scribe()
        journal = Journal(store, scribe.private)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        conn = Connection(ours, 1, lambda *_: None, lambda _: None)
        try:
            await asyncio.wait_for(work(journal, scribe, conn, Client(theirs)), 240)
        finally:
            conn.close()
            theirs.close()
            await journal.close()
            store.close()

    asyncio.run(go())


async def act(journal: Journal, scribe: Scribe, content: bytes) -> None:
    tip = journal.tip(scribe.session)
    intent = await journal.intent(
        scribe.draft(scribe.ann, "intent", "command", content, seen=tip.hash if tip else None)
    )
    journal.outcome(intent, record.APPLIED)
    await journal.settled()


def test_the_log_gives_the_newest_entries_those_after_a_number_and_new_ones(tmp_path: Path) -> None:
    async def work(journal: Journal, scribe: Scribe, conn: Connection, client: Client) -> None:
        for n in range(5):
            await act(journal, scribe, b"%d" % n)
        answer = await records.log(journal, conn, 1, scribe.session, None, 4, False)
        assert [e["seq"] for e in answer.entries] == [7, 8, 9, 10]
        answer = await records.log(journal, conn, 1, scribe.session, 2, 3, False)
        assert [e["seq"] for e in answer.entries] == [3, 4, 5]
        answer = await records.log(journal, conn, 1, scribe.session, 0, 2, False)
        assert [e["seq"] for e in answer.entries] == [1, 2]
        following = asyncio.ensure_future(records.log(journal, conn, 7, scribe.session, 8, 1, True))
        await act(journal, scribe, b"new")
        await client.until(lambda: len(client.events()) == 4)
        assert [(e["event"], e["request"], e["body"]["number"]) for e in client.events()] == [
            ("recorded", 7, n) for n in (9, 10, 11, 12)
        ]
        assert client.events()[2]["body"]["entry"]["content"] == "new"
        following.cancel()

    connected(tmp_path / "state.db", work)


def test_p2_a_reader_sees_every_entry_posted_before_its_request(tmp_path: Path) -> None:
    """Posted entries are written later; a reader need not know that."""

    async def work(journal: Journal, scribe: Scribe, conn: Connection, client: Client) -> None:
        for n in range(1, 6):
            journal.post(scribe.draft(scribe.ann, "fact", "line", b"%d" % n), (True, True))
            answer = await records.log(journal, conn, 1, scribe.session, None, 10, False)
            assert [e["content"] for e in answer.entries] == [str(m) for m in range(1, n + 1)]

    connected(tmp_path / "state.db", work)


def test_a4_a_full_disk_does_not_block_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(journal: Journal, scribe: Scribe, conn: Connection, client: Client) -> None:
        await act(journal, scribe, b"kept")
        append = record_table.append

        def full(*_: Any) -> Any:
            raise apsw.FullError("database or disk is full")

        monkeypatch.setattr(record_table, "append", full)
        journal.post(scribe.draft(scribe.ann, "fact", "line", b"owed"))
        for _ in range(3):
            answer = await records.log(journal, conn, 1, scribe.session, None, 10, False)
            assert [e["seq"] for e in answer.entries] == [1, 2] and journal.failing
        monkeypatch.setattr(record_table, "append", append)
        answer = await records.log(journal, conn, 1, scribe.session, None, 10, False)
        assert [e["seq"] for e in answer.entries] == [1, 2, 3] and not journal.failing

    connected(tmp_path / "state.db", work)


def test_p2_an_export_waits_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    """An export larger than the client's queue: no byte is lost, and the client stays connected."""

    async def work(journal: Journal, scribe: Scribe, conn: Connection, client: Client) -> None:
        for n in range(12):
            await act(journal, scribe, b"%d" % n * 1_000_000)
        exporting = asyncio.ensure_future(
            records.export(journal, conn, 3, scribe.session, "work", scribe.operators)
        )
        while not conn.blocked:
            await asyncio.sleep(0)
        await client.until(lambda: exporting.done())
        answer = exporting.result()
        await client.until(
            lambda: client.received >= answer.bytes and len(client.data()) == answer.bytes
        )
        whole = client.data()
        assert len(whole) == answer.bytes > 12_000_000 and answer.entries == 24
        assert verify(whole.splitlines(keepends=True)) == []

    connected(tmp_path / "state.db", work)
