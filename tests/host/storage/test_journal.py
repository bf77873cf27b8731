"""P1, P2: acknowledged acts are in the record after any crash.

An act that could not be recorded was not done, or the record says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.record import record
from holdfast.core.record.audit import broken, verify
from holdfast.core.record.examine import Finding
from holdfast.core.record.record import Draft, Written
from holdfast.host.storage import record_table, record_writer
from holdfast.host.storage.journal import Journal, Typist
from holdfast.host.storage.store import Store
from holdfast.model import canonical
from holdfast.model.errors import Unavailable, Usage
from tests.support.checkers.records import Scribe

SOURCE = Path(__file__).resolve().parents[3] / "src"
WRITER = Path(__file__).parents[2] / "support" / "journal_writer.py"
PLENTY = 1_000_000


class Desk:
    """A journal on a separate store, and a scribe that writes drafts."""

    def __init__(self, path: Path) -> None:
        self.store = Store(str(path))
        self.store.start()
        self.scribe = Scribe(b"writer")
        self.journal = Journal(self.store, self.scribe.private)
        ann = self.scribe.ann
        self.typist = Typist(self.scribe.session, 1, ann.name, ann.key, ann.modality, ann.client)

    def draft(
        self, content: bytes = b"make", phase: Any = "intent", kind: str = "command", **more: Any
    ) -> Draft:
        tip = self.journal.tip(self.scribe.session)
        return self.scribe.draft(
            self.scribe.ann, phase, kind, content, seen=tip.hash if tip else None, **more
        )

    async def act(self, content: bytes = b"make") -> Written:
        intent = await self.journal.intent(self.draft(content))
        self.journal.outcome(intent, record.APPLIED, exit_code=0)
        return intent

    async def export(self) -> list[bytes]:
        return [
            line
            async for line in self.journal.export(
                self.scribe.session, "work", self.scribe.operators
            )
        ]

    async def findings(self, kept: list[bytes] | None = None) -> list[Finding]:
        return verify(await self.export(), kept or (), self.scribe.machine)

    async def entries(self) -> list[dict[str, Any]]:
        await self.journal.settled()
        return [w.fields for w in await self.journal.read(self.scribe.session)]


def at_desk(path: Path, work: Callable[[Desk], Coroutine[Any, Any, Any]]) -> Any:
    async def go() -> Any:
        desk = Desk(path)
        try:
            return await asyncio.wait_for(work(desk), 240)
        finally:
            await desk.journal.close()
            desk.store.close()

    return asyncio.run(go())


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def void(intent: dict[str, Any]) -> str:
    return record.VOID


# ---------------------------------------------------------------- recording


def test_p2_acts_keys_and_outcomes_make_a_record_that_verifies(database: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.act(b"one")
        keys = [(desk.scribe.ann.next(), data) for data in (b"l", b"s", b"\r")]
        for number, _ in keys:
            desk.journal.keys(desk.typist, number)
        said = await desk.journal.cover(desk.typist, *covering(desk, keys))
        second = await desk.act(b"two")
        entries = await desk.entries()
        assert [(e["phase"], e["kind"]) for e in entries] == [
            ("intent", "command"),
            ("outcome", "command"),
            ("fact", "keys"),
            ("fact", "cover"),
            ("intent", "command"),
            ("outcome", "command"),
        ]
        assert (entries[2]["first"], entries[2]["number"]) == (keys[0][0], keys[-1][0])
        assert (said.seq, second.seq) == (4, 5)
        assert await desk.findings() == []

    at_desk(database, work)


def covering(desk: Desk, keys: list[tuple[int, bytes]]) -> tuple[bytes, bytes]:
    """A statement over these keys, signed."""
    ann = desk.scribe.ann
    commit = record.commit(bytes(16), record.keys_content(keys))
    said = record.statement(
        desk.scribe.machine,
        desk.scribe.session,
        1,
        ann.client,
        keys[-1][0],
        record.KEYS,
        "",
        None,
        commit,
        keys[0][0],
    )
    return said, record.sign_statement(ann.private, said)


def test_p1_concurrent_acts_get_one_order_and_few_commits(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(desk: Desk) -> None:
        groups = 0
        real = desk.store.run

        async def counted(job: Any, patient: bool = False) -> Any:
            nonlocal groups
            groups += 1
            return await real(job, patient)

        monkeypatch.setattr(desk.store, "run", counted)
        drafts = [desk.draft(b"%d" % n) for n in range(300)]
        written = await asyncio.gather(*(desk.journal.intent(d) for d in drafts))
        assert [w.seq for w in written] == list(range(1, 301)), (
            "the order is that in which they were asked"
        )
        assert groups <= 5
        assert codes(await desk.findings()) == set()

    at_desk(database, work)


def codes(findings: list[Finding]) -> set[str]:
    return {f.code for f in findings if f.level == "broken"}


def test_p2_secrets_are_nowhere_in_the_database(database: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.journal.intent(desk.draft(b"hunter2-raw", kind="line"), (False, False))
        await desk.journal.intent(desk.draft(b"hunter2-noecho", kind="line"), (False, True))
        await desk.journal.intent(desk.draft(b"hunter2-unseen", kind="line"))
        await desk.journal.intent(desk.draft(b"shown-on-the-screen", kind="line"), (True, True))
        assert [w.content for w in await desk.journal.read(desk.scribe.session)] == [
            None,
            None,
            None,
            b"shown-on-the-screen",
        ]
        assert codes(await desk.findings()) == set()

    at_desk(database, work)
    stored = b"".join(p.read_bytes() for p in database.parent.iterdir())
    assert b"shown-on-the-screen" in stored and b"hunter2" not in stored


def test_p1_an_ack_shows_later_that_the_act_was_recorded(database: Path, tmp_path: Path) -> None:
    async def work(desk: Desk) -> bytes:
        await desk.act()
        last = await desk.act()
        return record.signed_line(
            "ack", desk.journal.ack(last, desk.scribe.ann.client, last.fields["number"])
        )

    ack = at_desk(database, work)
    before = tmp_path / "earlier.db"

    async def shorter(desk: Desk) -> None:
        await desk.act()
        assert "truncated" in codes(await desk.findings([ack]))

    at_desk(before, shorter)
    at_desk(database, lambda desk: _no_findings(desk, [ack]))


async def _no_findings(desk: Desk, kept: list[bytes]) -> None:
    assert await desk.findings(kept) == []


def test_p1_the_hash_an_actor_has_seen_must_be_known(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.host.storage.journal.RECENT_ENTRIES", 4)

    async def first(desk: Desk) -> list[str]:
        return [(await desk.act()).hash for _ in range(4)]

    hashes = at_desk(database, first)

    async def second(desk: Desk) -> None:
        session = desk.scribe.session
        known = [await desk.journal.knows(session, hash) for hash in hashes]
        assert known == [False, False, True, True], (
            "each act is two entries; after a restart they are read again"
        )
        desk.scribe.ann.number = 100
        assert await desk.journal.knows(session, (await desk.act()).hash)
        assert not await desk.journal.knows(session, "0" * 64) and not await desk.journal.knows(
            "another", hashes[-1]
        )

    at_desk(database, second)


def test_p2_a_recent_hash_is_in_memory_though_more_was_written_since(
    database: Path,
) -> None:
    """Otherwise an urgent refusal would be recorded without the refused statement."""

    async def scenario(desk: Desk) -> None:
        first, second = await desk.act(), await desk.act()
        assert desk.journal.knows_now(first.session, first.hash) and desk.journal.knows_now(
            first.session, second.hash
        )
        assert not desk.journal.knows_now(first.session, "0" * 64)

    at_desk(database, scenario)


def test_p1_a_cover_for_another_session_or_client_is_refused(database: Path) -> None:
    async def work(desk: Desk) -> None:
        number = desk.scribe.ann.next()
        desk.journal.keys(desk.typist, number)
        said = covering(desk, [(number, b"k")])
        for wrong in (
            desk.typist._replace(session="zzzzzzzzzzzz"),
            desk.typist._replace(epoch=2),
            desk.typist._replace(client="0" * 16),
            desk.typist._replace(key=desk.scribe.bot.key),
            desk.typist._replace(key=None),
        ):
            with pytest.raises(ValueError):
                await desk.journal.cover(wrong, *said)
        for first, last in (
            (None, number),
            (number + 1, number),
            (number, number + 64),
            ("1", number),
        ):
            body = canonical.encode({**canonical.decode(said[0]), "first": first, "number": last})
            with pytest.raises(ValueError):
                await desk.journal.cover(
                    desk.typist, body, record.sign_statement(desk.scribe.ann.private, body)
                )
        await desk.journal.cover(desk.typist, *said)
        assert await desk.findings() == []

    at_desk(database, work)


def test_a_cancelled_caller_leaves_no_open_intent(database: Path) -> None:
    async def work(desk: Desk) -> None:
        task = asyncio.ensure_future(desk.journal.intent(desk.draft()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(entries := await desk.entries()) < 2:
            await asyncio.sleep(0)
        assert [(e["phase"], e.get("outcome")) for e in entries] == [
            ("intent", None),
            ("outcome", "void"),
        ]

    at_desk(database, work)


def test_settled_does_not_wait_for_later_entries(database: Path) -> None:
    """Each written entry triggers the next: a caller that waits for the first must return."""

    async def work(desk: Desk) -> None:
        def another(session: str) -> None:
            if not leaving:
                writer.admit(
                    desk.draft(b"another", "fact", "line"), record.UNSEEN, owed=True, wanted=False
                )

        leaving: list[bool] = []
        writer = record_writer.RecordWriter(desk.store, desk.scribe.private, time.time_ns, another)
        another(desk.scribe.session)
        for n in range(1, 4):
            await writer.settled()
            assert len(await desk.journal.read(desk.scribe.session)) == n
        leaving.append(True)
        await writer.close()
        assert len(await desk.journal.read(desk.scribe.session)) == 4, (
            "a save requested during the close is kept"
        )

    at_desk(database, work)


def test_a_draft_that_cannot_be_recorded_fails_alone(database: Path) -> None:
    async def work(desk: Desk) -> None:
        bad = replace(desk.draft(), facts={"big": "x" * record.ENTRY_BYTES})
        results = await asyncio.gather(
            desk.journal.intent(bad), desk.journal.intent(desk.draft()), return_exceptions=True
        )
        assert isinstance(results[0], Usage) and isinstance(results[1], Written)
        assert codes(await desk.findings()) == set()

    at_desk(database, work)


def test_p2_an_owed_entry_is_recorded_without_facts_that_have_no_canonical_form(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the act would have no outcome, and no entry would say so."""
    fraction: Any = {"at": 1.5}

    async def work(desk: Desk) -> None:
        intent = await desk.journal.intent(desk.draft())
        desk.journal.outcome(intent, record.APPLIED, **fraction)
        outcome = (await desk.entries())[-1]
        assert outcome["outcome"] == record.APPLIED
        assert outcome["facts"] == {"left_out": "float has no canonical spelling"}
        assert desk.journal.writer.refused == 1 and not await desk.journal.unfinished()
        assert codes(await desk.findings()) == set()

    at_desk(database, work)
    assert "the record refused facts of command" in caplog.text


def test_entries_are_never_changed(database: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.act()
        with pytest.raises(Unavailable, match="append-only"):
            await desk.store.run(lambda db: db.execute("UPDATE record SET hash = 'x'"))

    at_desk(database, work)


def test_sessions_have_chains_of_their_own(database: Path) -> None:
    async def work(desk: Desk) -> None:
        for n in range(4):
            await desk.journal.fact(
                Draft(f"session{n % 2}", 1, "fact", "note", "host", "host", record.HOST)
            )
        for session in ("session0", "session1"):
            assert [w.seq for w in await desk.journal.read(session)] == [1, 2]
        assert await desk.journal.read("session2") == []

    at_desk(database, work)


# ---------------------------------------------------------------- heads


def test_p2_heads_are_signed_at_most_once_a_second_and_when_it_gets_quiet(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "HEAD_EVERY_S", 0.2)

    async def work(desk: Desk) -> None:
        signed = 0
        real = record_table.put_head

        def counted(*args: Any) -> None:
            nonlocal signed
            signed += 1
            real(*args)

        monkeypatch.setattr(record_table, "put_head", counted)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 0.5:
            await desk.act()
        assert 1 <= signed <= 8
        await desk.journal.settled()
        [last] = await desk.journal.read(desk.scribe.session, limit=1, newest=True)

        async def head() -> int:
            heads = await desk.store.run(record_table.heads)
            return int(canonical.decode(heads[desk.scribe.session].body)["seq"])

        while await head() != last.seq:
            await asyncio.sleep(0)

    at_desk(database, work)


def test_a_record_that_was_changed_while_the_host_was_away_is_seen(database: Path) -> None:
    at_desk(database, lambda desk: desk.act())
    db = apsw.Connection(str(database))
    db.execute("DROP TRIGGER record_is_never_changed; UPDATE record SET hash = 'x' WHERE seq = 2")
    db.close()

    async def work(desk: Desk) -> None:
        recovered = await desk.journal.recover(void)
        assert recovered.damaged == [desk.scribe.session]

    at_desk(database, work)


# ---------------------------------------------------------------- reading


def test_reading_from_both_ends_and_in_pages(database: Path) -> None:
    async def work(desk: Desk) -> None:
        for n in range(10):
            await desk.act(b"%d" % n)
        await desk.journal.settled()
        session = desk.scribe.session
        assert [w.seq for w in await desk.journal.read(session, after=5, limit=3)] == [6, 7, 8]
        assert [w.seq for w in await desk.journal.read(session, limit=3, newest=True)] == [
            18,
            19,
            20,
        ]
        contents = [w.content for w in await desk.journal.read(session) if w.content]
        assert contents == [b"%d" % n for n in range(10)]

    at_desk(database, work)


def test_long_entries_come_in_short_pages(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_table, "PAGE_BYTES", 5_000)

    async def work(desk: Desk) -> None:
        for _ in range(4):
            await desk.act(b"x" * 4_000)
        assert len(await desk.journal.read(desk.scribe.session)) < 4
        assert await desk.findings() == []

    at_desk(database, work)


def test_following_shows_each_entry_once(database: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.act()
        seen: list[int] = []

        async def follow() -> None:
            async for written in desk.journal.follow(desk.scribe.session):
                seen.append(written.seq)
                if len(seen) == 8:
                    return

        following = asyncio.ensure_future(follow())
        for _ in range(3):
            await desk.act()
        await asyncio.wait_for(following, 120)
        assert seen == list(range(1, 9))
        assert desk.journal._followers == {}

    at_desk(database, work)


# ---------------------------------------------------------------- forgetting


def test_p2_redacted_contents_are_gone_and_the_record_still_verifies(database: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.act(b"export TOKEN=abcdefgh")
        await desk.act(b"make")
        assert await desk.journal.redact(
            desk.scribe.session, [1, 2, 99], "ann", "cli", "a token"
        ) == [1]
        entries = await desk.journal.read(desk.scribe.session)
        assert [w.content for w in entries if w.fields["phase"] == "intent"] == [None, b"make"]
        assert entries[-1].fields["facts"] == {"seqs": [1]} and entries[-1].fields["actor"] == "ann"
        assert await desk.findings() == []
        assert await desk.journal.redact(desk.scribe.session, [1], "ann", "cli") == []

    at_desk(database, work)
    assert b"TOKEN=abcdefgh" not in database.read_bytes()


def test_p2_a_pruned_record_verifies_from_its_checkpoint(database: Path) -> None:
    async def work(desk: Desk) -> None:
        for _ in range(10):
            await desk.act()
        await desk.journal.settled()
        cut = (await desk.entries())[9]["time"]
        assert await desk.journal.prune(desk.scribe.session, before_time=cut) == 9
        entries = await desk.entries()
        assert (entries[0]["seq"], entries[-1]["kind"]) == (10, "checkpoint")
        assert codes(await desk.findings()) == set()
        assert await desk.journal.prune(desk.scribe.session, keep=3) == 9
        assert codes(await desk.findings()) == set()
        await desk.journal.intent(desk.draft())
        assert await desk.journal.prune(desk.scribe.session, keep=0) == 4
        entries = await desk.entries()
        assert entries[0]["phase"] == "intent", "an intent that is still open stays"
        assert codes(await desk.findings()) == set()
        assert await desk.journal.prune(desk.scribe.session, keep=5) == 0
        await desk.journal.fact(Draft("another", 1, "fact", "note", "host", "host", record.HOST))
        assert await desk.journal.retain(before_time=1 << 62) == 1 + 0, (
            "one of the other session; here an intent is open"
        )

    at_desk(database, work)


# ---------------------------------------------------------------- a full disk


def full(store: Store, pages: int) -> None:
    """SQLite's page limit stands in for a full disk."""
    done = threading.Event()

    def job(db: apsw.Connection) -> None:
        db.execute(f"PRAGMA max_page_count={pages}")
        done.set()

    store.post(job)
    assert done.wait(120)


def test_a4_a_full_disk_refuses_intents_but_neither_seize_nor_halt(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "RETRY_S", 0.02)
    monkeypatch.setattr(record_writer, "LATE_NS", 1)

    async def work(desk: Desk) -> None:
        before = await desk.act()
        await desk.journal.settled()
        full(desk.store, 1)
        with pytest.raises(Unavailable, match="full"):
            for n in range(100):  # until the existing pages are full
                await desk.journal.intent(desk.draft(b"%d" % n * 3000))
        desk.journal.post(desk.draft(b"", phase="fact", kind="seize"))
        desk.journal.keys(desk.typist, desk.scribe.ann.next())
        desk.journal.post(desk.draft(b"", phase="fact", kind="halt"))
        with pytest.raises(Unavailable):
            await desk.journal.intent(desk.draft(b"x" * 30_000))
        assert desk.journal.failing
        read = await desk.journal.read(desk.scribe.session)
        assert read[0].seq == before.seq, "reading goes on"
        full(desk.store, PLENTY)
        while desk.journal.failing:
            await desk.journal.settled()
        late = [e for e in await desk.entries() if e.get("late")]
        assert [e["kind"] for e in late if e["kind"] in ("seize", "keys", "halt")] == [
            "seize",
            "keys",
            "halt",
        ]
        assert broken(await desk.findings()) is False

    at_desk(database, work)


def test_entries_without_room_are_counted(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer, "QUEUE_ENTRIES", 10)

    async def work(desk: Desk) -> None:
        await desk.act()
        await desk.journal.settled()
        full(desk.store, 1)
        while not desk.journal.failing:
            try:
                await desk.journal.intent(desk.draft(b"x" * 30_000))
            except Unavailable:
                pass
        for _ in range(40):
            desk.journal.keys(desk.typist, desk.scribe.ann.next(2))  # no two belong together
        with pytest.raises(Unavailable, match="keep up"):
            await desk.journal.intent(desk.draft())
        full(desk.store, PLENTY)
        while desk.journal.failing:
            await desk.journal.settled()
        await desk.act()
        entries = await desk.entries()
        lost = [e["facts"]["lost"] for e in entries if e["kind"] == record.GAP]
        kept = len([e for e in entries if e["kind"] == record.KEYS])
        assert lost and sum(lost) + kept == 40
        found = await desk.findings()
        assert "gap" in {f.code for f in found} and not broken(found)

    at_desk(database, work)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
def test_a4_a_disk_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer, "RETRY_S", 0.02)
    monkeypatch.setattr(record_writer, "LATE_NS", 1)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False
        ).returncode
    ):
        pytest.skip("no small file system can be mounted here")

    async def work(desk: Desk) -> None:
        await desk.act()
        await desk.journal.settled()
        ballast = disk / "ballast"
        with pytest.raises(Unavailable), ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1024)):
                    pass
            except OSError:
                pass
            while True:  # pieces as large as the write that must fail below
                await desk.journal.fact(desk.draft(b"", phase="fact", kind="seize"))
        with pytest.raises(Unavailable):
            await desk.journal.intent(desk.draft())
        desk.journal.post(desk.draft(b"", phase="fact", kind="halt"))
        await desk.journal.settled()
        assert desk.journal.failing
        ballast.unlink()
        while desk.journal.failing:
            await desk.journal.settled()
        assert [e["kind"] for e in await desk.entries() if e.get("late")][-1] == "halt"
        assert not broken(await desk.findings())

    try:
        at_desk(disk / "state.db", work)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ---------------------------------------------------------------- crashes


def writer(database: Path, effects: Path, count: int, probe: str = "", start: int = 0) -> int:
    done = subprocess.run(
        [sys.executable, str(WRITER), str(database), str(effects), str(count), str(start)],
        check=False,
        timeout=240,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": f"{SOURCE}:{SOURCE.parent}", "HOLDFAST_PROBE": probe},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


KILLS = [
    f"host.journal.{name}#{n}" for name in ("appending", "appended", "durable") for n in (1, 2, 5)
]


@pytest.mark.parametrize("where", KILLS)
def test_p2_killed_at(tmp_path: Path, where: str) -> None:
    """Every effect was recorded first, every intent has an outcome, and no entry is partial."""
    database, effects = tmp_path / "state.db", tmp_path / "effects"
    assert writer(database, effects, 20, f"kill@{where}") == -signal.SIGKILL
    done = [int(line) for line in effects.read_text().splitlines()] if effects.exists() else []

    async def work(desk: Desk) -> None:
        def fate(intent: dict[str, Any]) -> str:
            return record.APPLIED if intent["number"] in done else record.VOID

        before = await desk.entries()
        recorded = {e["number"] for e in before if e["phase"] == "intent"}
        assert set(done) <= recorded, "an effect without a record"
        recovered = await desk.journal.recover(fate)
        entries = await desk.entries()
        outcomes = {e["number"]: e["outcome"] for e in entries if e["phase"] == "outcome"}
        assert outcomes.keys() == recorded
        assert {n for n, o in outcomes.items() if o == record.APPLIED} == set(done)
        assert recovered.damaged == []
        found = await desk.findings()
        assert not broken(found) and "open" not in {f.code for f in found}
        assert await desk.journal.recover(fate) == ({}, [])

    at_desk(database, work)


def test_r1_acts_in_flight_are_unknown_until_their_outcome_is_recorded(database: Path) -> None:
    async def work(desk: Desk) -> None:
        first, second, third = [await desk.journal.intent(desk.draft(b"make")) for _ in range(3)]
        await desk.act()
        await desk.journal.settled()
        session = desk.scribe.session
        found = (await desk.journal.unfinished())[session]
        assert [one["seq"] for one in found] == [one.seq for one in (first, second, third)]
        said = [f"entry {one.seq} of hf:{session}@1" for one in (first, second, third)]
        desk.journal.outcome(first, record.APPLIED)
        desk.journal.outcome(second, record.UNKNOWN)
        assert await desk.journal.unknown(session, found) == said[1:]
        desk.journal.outcome(third, record.VOID)
        assert await desk.journal.unknown(session, found) == said[1:2]
        assert await desk.journal.unknown(session, []) == []

    at_desk(database, work)


def test_s8_acts_beside_a_checkpoint_have_the_number_that_their_outcome_tells(
    database: Path,
) -> None:
    async def work(desk: Desk) -> None:
        session = desk.scribe.session
        before = await desk.journal.intent(desk.draft(b"make"))
        moment = time.time_ns()
        after = await desk.journal.intent(desk.draft(b"make test"))
        for number, one in ((41, before), (42, after)):
            desk.journal.outcome(one, record.APPLIED, act=number)
        await desk.journal.settled()
        [caught] = await desk.journal.unfinished_at(session, 0, moment)
        assert (caught["seq"], caught["act"]) == (before.seq, 41)
        later = await desk.journal.acts_after(session, before.seq)
        assert [(one["seq"], one["act"]) for one in later] == [(after.seq, 42)]

    at_desk(database, work)


def test_r7_an_act_whose_entry_was_pruned_is_not_named(database: Path) -> None:
    """An outcome remains behind the entry that it names."""

    async def work(desk: Desk) -> None:
        session = desk.scribe.session
        first = await desk.journal.intent(desk.draft(b"make"))
        moment = time.time_ns()
        desk.journal.outcome(first, record.APPLIED)
        await desk.journal.settled()
        assert await desk.journal.prune(session, keep=1) == 1
        assert await desk.journal.unfinished_at(session, 0, moment) == []

    at_desk(database, work)


def test_p2_killed_while_it_recovers(tmp_path: Path) -> None:
    database, effects = tmp_path / "state.db", tmp_path / "effects"
    writer(database, effects, 20, "kill@host.journal.durable#3")
    assert writer(database, effects, 0, "kill@host.journal.recovering") == -signal.SIGKILL
    assert writer(database, effects, 5, start=1000) == 0

    async def work(desk: Desk) -> None:
        found = await desk.findings()
        assert not broken(found) and "open" not in {f.code for f in found}

    at_desk(database, work)


def test_p2_killed_again_and_again(tmp_path: Path) -> None:
    database, effects = tmp_path / "state.db", tmp_path / "effects"
    killed = [writer(database, effects, 25, f"random:{n}:0.03", 1000 * n) for n in range(8)].count(
        -signal.SIGKILL
    )
    assert killed >= 3
    assert writer(database, effects, 1, start=9000) == 0
    done = {int(line) for line in effects.read_text().splitlines()}

    async def work(desk: Desk) -> None:
        entries = [json.loads(json.loads(line)["entry"]) for line in (await desk.export())[1:-1]]
        assert {e["number"] for e in entries if e.get("outcome") == record.APPLIED} == done
        found = await desk.findings()
        assert not broken(found) and "open" not in {f.code for f in found}

    at_desk(database, work)


def test_s4_keys_that_a_crash_kept_out_of_the_record_are_added(database: Path) -> None:
    async def first(desk: Desk) -> int:
        await desk.act()
        desk.journal.keys(desk.typist, desk.scribe.ann.next())
        await desk.journal.settled()
        return desk.scribe.ann.number

    last = at_desk(database, first)

    async def second(desk: Desk) -> None:
        client = desk.scribe.ann.client
        assert (
            await desk.journal.catch_up(
                desk.scribe.session,
                1,
                lambda entry: last + 5 if entry["client"] == client else entry["number"],
            )
            == 5
        )
        entry = (await desk.entries())[-1]
        assert (entry["actor"], entry["attestation"], entry["first"], entry["number"]) == (
            "ann",
            "host",
            last + 1,
            last + 5,
        )
        assert await desk.journal.catch_up(desk.scribe.session, 1, lambda entry: last + 5) == 0
        assert not broken(await desk.findings())

    at_desk(database, second)
