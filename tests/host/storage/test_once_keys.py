"""A9: idempotency keys that go with a session to other machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.record import record
from holdfast.host.storage import once_keys, record_table
from holdfast.host.storage.once_keys import OnceKeys, Row
from holdfast.host.storage.record_table import KeyedAct
from holdfast.host.storage.store import Store

SESSION = "0123456789ab"
ACT = ("command", b"echo x >> file")
LONG = f'{{"digest":"{64 * "0"}","secret":"{200 * "0"}","client":null,"number":null}}'

SOUND = f'{{"digest":"{64 * "0"}","secret":"{64 * "0"}","client":"a","number":1}}'
ENDLESS = SOUND.replace("1", "Infinity")


class Machine:
    def __init__(self, path: Path, number: int) -> None:
        self.store = Store(str(path / f"{number}.db"))
        self.store.start()
        self.keys = OnceKeys(self.store, bytes([number]) * 32)

    async def used(self, actor: str, once: str, outcome: str | None, reply: bytes | None) -> None:
        def job(db: apsw.Connection) -> None:
            same = self.keys.digest(*ACT)
            record_table.put_once(db, SESSION, actor, once, same, 7, outcome, reply)

        await self.store.run(job)

    async def travelling(self, after: int = 0, time: int = 9) -> tuple[Row, ...]:
        return await self.keys.travelling(SESSION, after, time)

    async def recorded(self, count: int) -> None:
        """Append entries to the record of the session."""

        def job(db: apsw.Connection) -> None:
            for _ in range(count):
                draft = record.host_fact(SESSION, 1, "exit", "ann", "host")
                record_table.append(db, draft, record_table.tip(db, SESSION), 1)

        await self.store.run(job)

    async def find(self, actor: str, once: str, act: tuple[str, bytes] = ACT) -> KeyedAct | None:
        return await self.keys.find(SESSION, actor, once, partial(self.keys.digest, *act))


def on_machines(path: Path, work: Callable[..., Coroutine[Any, Any, None]], count: int) -> None:
    async def go() -> None:
        machines = [Machine(path, number) for number in range(1, count + 1)]
        try:
            await work(*machines)
        finally:
            for one in machines:
                one.store.close()

    asyncio.run(go())


def test_a9_a_key_is_known_at_the_second_and_third_machine(tmp_path: Path) -> None:
    async def work(*machines: Machine) -> None:
        first = machines[0]
        await first.used("ann", "kk", record.APPLIED, b'{"exit_code": 0}')
        for before, now in zip(machines, machines[1:], strict=False):
            await now.keys.arrive(SESSION, await before.travelling())
            for operator in ("ann", "bob"):  # the same person may have another name there
                found = await now.find(operator, "kk")
                assert found is not None and found.reply == b'{"exit_code": 0}'
                assert (found.same, found.seq) == (now.keys.digest(*ACT), record_table.BROUGHT)
            other = ("command", b"rm file")
            found = await now.find("ann", "kk", other)
            assert found is not None and found.same != now.keys.digest(*other)
            assert await now.find("bob", "kk", other) is None
        assert await machines[-1].find("ann", "other") is None

    on_machines(tmp_path, work, 3)


def test_a9_a_key_that_comes_home_has_the_answer_that_was_found_away(tmp_path: Path) -> None:
    async def work(here: Machine, there: Machine) -> None:
        await here.used("ann", "kk", None, None)
        await there.keys.arrive(SESSION, await here.travelling())
        found = await there.find("bob", "kk")
        assert found is not None and found.outcome is None
        await there.keys.complete(SESSION, found.actor, "kk", record.APPLIED, b"{}")
        await here.keys.arrive(SESSION, await there.travelling())
        home = await here.find("ann", "kk")
        assert home is not None and (home.seq, home.outcome, home.reply) == (7, "applied", b"{}")

    on_machines(tmp_path, work, 2)


def test_a9_the_keys_that_travel_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without its answer still refuses a retry."""
    monkeypatch.setattr(once_keys, "KEYS_MAX", 3)
    monkeypatch.setattr(once_keys, "REPLIES_BYTES", 5)

    async def work(here: Machine, there: Machine) -> None:
        for number in range(5):
            await here.used("ann", f"k{number}", record.APPLIED, b"{ 0 }")
        rows = await here.travelling()
        assert len(rows) == 3 and [row[4] for row in rows].count(None) == 2
        await there.keys.arrive(SESSION, rows)
        for row in rows:
            found = await there.find("ann", row[1])
            assert found is not None and found.outcome == record.APPLIED

    on_machines(tmp_path, work, 2)


@pytest.mark.parametrize(
    "row",
    [
        (),
        (1,),
        ("ann", "kk", "no json", None, None),
        ("ann", "kk", '{"digest": "00"}', None, None),
        ("ann", "kk", '{"digest":"0","secret":"00","client":null,"number":1}', None, None),
        ("ann", "kk", '{"digest":"00","secret":"00","client":7,"number":1}', None, None),
        ("ann", "kk", LONG, None, None),
        ("ann", None, "{}", None, None),
        ("ann", "kk", "[" * 100_000, None, None),
        ("ann", "kk", ENDLESS, None, None),
        ("ann", "kk", SOUND, None, "\ud800"),
        ("ann", "kk", SOUND, "\ud800", None),
        ("\ud800", "kk", SOUND, None, None),
        "ann",
        7,
        None,
    ],
)
def test_a9_a_damaged_key_of_another_machine_is_left_out(tmp_path: Path, row: Any) -> None:
    async def work(here: Machine, there: Machine) -> None:
        await here.used("ann", "sound", record.APPLIED, None)
        rows: tuple[Row, ...] = await here.travelling()
        await there.keys.arrive(SESSION, [row, *rows])
        assert await there.find("ann", "kk") is None
        assert await there.find("ann", "sound") is not None

    on_machines(tmp_path, work, 2)


def test_a9_a_key_that_was_brought_stays_as_long_as_the_entries_since(tmp_path: Path) -> None:
    """Entries that are older than the arrival go without it."""

    async def work(here: Machine, there: Machine) -> None:
        await here.used("ann", "kk", record.APPLIED, b"{}")
        await there.recorded(2)
        await there.keys.arrive(SESSION, await here.travelling())
        await there.recorded(2)
        for through, known in ((2, True), (3, False)):
            await there.store.run(lambda db, end=through: record_table.prune(db, SESSION, end))  # type: ignore[misc]
            assert (await there.find("ann", "kk") is not None) == known

    on_machines(tmp_path, work, 2)


@pytest.mark.parametrize("outcome", [record.APPLIED, record.VOID])
def test_a9_a_halt_during_a_run_keeps_its_own_answer(tmp_path: Path, outcome: str) -> None:
    """Its key is stored after its effect, while the intent of the run is the newest entry."""

    async def work(here: Machine) -> None:
        same = here.keys.digest(*ACT)
        fact = record.host_fact(SESSION, 1, "command", "ann", "host", keyed=("run", same))
        draft = replace(fact, phase="intent")

        def began(db: apsw.Connection) -> record.Written:
            return record_table.append(db, draft, record_table.tip(db, SESSION), 1)

        run = await here.store.run(began)
        await here.keys.keep(SESSION, "bob", "halt", same, record.APPLIED, b'{"halted": 1}')
        ended = replace(record.outcome_of(run.fields, outcome, {}), reply=b'{"exit_code": 0}')
        await here.store.run(
            lambda db: record_table.append(db, ended, record_table.tip(db, SESSION), 2)
        )
        halt = await here.find("bob", "halt")
        assert halt is not None
        assert (halt.outcome, halt.reply) == (record.APPLIED, b'{"halted": 1}')
        first = await here.find("ann", "run")
        assert (first is None) == (outcome == record.VOID)
        assert first is None or first.reply == b'{"exit_code": 0}'

    on_machines(tmp_path, work, 1)


def test_a9_no_more_keys_arrive_than_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once_keys, "KEYS_MAX", 2)

    async def work(here: Machine) -> None:
        await here.keys.arrive(SESSION, [("ann", f"{n}", SOUND, None, None) for n in range(5)])
        assert len((await here.keys.of(SESSION))[1]) == 2

    on_machines(tmp_path, work, 1)


def test_r7_an_act_that_a_checkpoint_does_not_contain_has_no_answer_at_its_copy(
    tmp_path: Path,
) -> None:
    """`over` is in the memory as a whole, `caught` goes on there, and `later` is not in it."""

    async def work(here: Machine, there: Machine) -> None:
        entries = dict[str, record.Written]()

        async def note(draft: record.Draft, time: int) -> record.Written:
            def append(db: apsw.Connection) -> record.Written:
                return record_table.append(db, draft, record_table.tip(db, SESSION), time)

            made: record.Written = await here.store.run(append)
            return made

        for time, once, phase in (
            (1, "over", "intent"),
            (2, "over", "outcome"),
            (3, "caught", "intent"),
            (5, "caught", "outcome"),
            (6, "later", "intent"),
            (7, "later", "outcome"),
        ):
            if phase == "intent":
                keyed = (once, here.keys.digest(*ACT))
                fact = record.host_fact(SESSION, 1, "command", "ann", "host", keyed=keyed)
                entries[once] = await note(replace(fact, phase="intent"), time)
            else:
                ended = record.outcome_of(entries[once].fields, record.APPLIED, {})
                await note(replace(ended, reply=b"{}"), time)
        await there.keys.arrive(SESSION, await here.travelling(2, 4))
        for once, reply in (("over", b"{}"), ("caught", None), ("later", None)):
            found = await there.find("ann", once)
            assert found is not None and found.reply == reply
            assert (found.outcome is None) == (reply is None)
            found = await here.find("ann", once)
            assert found is not None and found.reply == b"{}"

    on_machines(tmp_path, work, 2)
