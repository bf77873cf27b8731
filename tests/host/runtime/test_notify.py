"""One listener that raises keeps none of the others from being told."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.burying import bury
from holdfast.host.commands import Commands
from holdfast.host.engine import Engine
from holdfast.host.events import Events
from holdfast.host.lineage import Kin
from holdfast.host.session import Session
from holdfast.host.store import Record
from holdfast.host.telling import tell
from holdfast.wire.ring import FLAG_EOF

NONCE = "n" * 16


def broken(*_: Any) -> None:
    raise ZeroDivisionError("one that is broken")


def logged() -> list[Any]:
    """What the loop would have written into the log."""
    found = list[Any]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: found.append(context.get("exception"))
    )
    return found


class Beside:
    def __init__(self, raises: bool = False) -> None:
        self.told = list[str]()
        self._raises = raises

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if self._raises:
            broken()

    def open(self) -> None:
        self._tell("open")

    def begin(self, session: Any) -> None:
        self._tell("begin")

    def catch_up(self) -> None:
        self._tell("catch_up")

    def end(self, session: Any) -> None:
        self._tell("end")

    def close(self) -> None:
        self._tell("close")


def session(directory: Path) -> Any:
    loop = asyncio.get_running_loop()
    commands = Commands(
        {"shell": "bash", "nonce": NONCE, "by": "ann"}, str(directory), {}, root=os.getpid()
    )
    return SimpleNamespace(
        id="s",
        loop=loop,
        keeper_pid=os.getpid(),
        commands=commands,
        directory=str(directory),
        memory=str(directory),
        ended=loop.create_future(),
        spawn=loop.create_task,
        ring=SimpleNamespace(accepted=0),
    )


def test_who_stops_listening_while_it_is_told_hides_nothing_from_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told, listeners = list[int](), list[Any]()

    def once(number: int) -> None:
        told.append(number)
        listeners.remove(once)

    listeners += [once, broken, told.append]
    tell(listeners, 7)
    tell(listeners, 8)
    assert told == [7, 7, 8]
    assert [
        one
        for one in caplog.records
        if one.exc_info is not None and one.exc_info[0] is ZeroDivisionError
    ]


def test_a_process_that_exits_is_told_to_all_who_follow_processes(tmp_path: Path) -> None:
    async def main() -> None:
        errors, told, kin, one = logged(), list[tuple[str, int]](), Kin(), session(tmp_path)
        kin.on_change += [broken, lambda session, what, pid, *_: told.append((what, pid))]
        kin.begin(one)
        try:
            kin._forked(os.getpid(), 1 << 22)
            kin._exited(1 << 22, 0)
        finally:
            kin.end(one)
            one.commands.close()
        assert told == [("started", 1 << 22), ("exited", 1 << 22)] and len(errors) == 2

    asyncio.run(main())


def test_a_session_begins_and_ends_for_all_whose_business_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        errors, kin, one = logged(), Kin(), session(tmp_path)
        first, second = Beside(raises=True), Beside()
        kin.beside += [first, second]
        kin.open()
        kin.begin(one)
        one.commands.before_marks()
        kin.end(one)
        assert not kin._owner
        kin.close()
        one.commands.close()
        assert first.told == second.told == ["open", "begin", "catch_up", "end", "close"]
        assert [type(error) for error in errors] == [ZeroDivisionError] * 5

    asyncio.run(main())


def test_a_mark_is_taken_and_told_whoever_else_fails_on_it(tmp_path: Path) -> None:
    async def main() -> None:
        errors, told = logged(), list[Any]()
        commands = Commands(
            {"shell": "bash", "nonce": NONCE, "by": "ann"}, str(tmp_path), {}, root=os.getpid()
        )
        commands.before_marks = broken
        commands.watchers += [broken, told.append]
        commands.feed(0, memoryview(f"\x1b]7717;{NONCE};1;P;0\a".encode()))
        commands.close()
        assert commands.shell.at_prompt and len(told) == 1 and len(errors) == 2

    asyncio.run(main())


def test_a_session_that_has_ended_is_buried_whoever_fails_on_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its keeper waits to be let go."""

    async def main() -> None:
        errors, last, buried = logged(), Beside(), asyncio.get_running_loop().create_future()

        async def bury(engine: Any, session: Any) -> None:
            buried.set_result(session)

        monkeypatch.setattr("holdfast.host.engine.bury", bury)
        worst = Beside(raises=True)
        engine: Any = SimpleNamespace(
            sessions={},
            ended={},
            _burying=set(),
            desk=SimpleNamespace(session_changed=broken),
            kin=worst,
            tally=worst,
            aftermath=worst,
            shapes=worst,
            execgate=last,
        )
        engine._leave, engine._buried = (
            lambda one: Engine._leave(engine, one),
            lambda task: Engine._buried(engine, task),
        )
        one: Any = SimpleNamespace(id="s", record="its record")
        Engine._over(engine, one)
        assert (
            await buried is one
            and engine.ended == {"s": "its record"}
            and last.told == ["end"]
            and len(errors) >= 4
        )

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_is_over_when_its_program_is_whatever_fails_while_it_is_looked_at_for_the_last_time() -> (
    None
):
    """Who waits for the end, and its keeper, would wait for ever."""

    async def main() -> None:
        errors, loop = logged(), asyncio.get_running_loop()
        record: Any = SimpleNamespace(
            ended=None, exit_code=None, reason="", survivors=0, state="live"
        )
        closed = list[str]()
        one: Any = SimpleNamespace(
            id="s",
            loop=loop,
            record=record,
            view=SimpleNamespace(look=broken),
            viewers=[SimpleNamespace(pump=broken)],
            streams=[broken],
            ring=SimpleNamespace(start=0, head=7),
            keeper_pid=os.getpid(),
            change=broken,
            lane=SimpleNamespace(close=lambda: closed.append("lane")),
            ended=loop.create_future(),
            ends=set(),
            pace=SimpleNamespace(returned=asyncio.Event()),
            link=SimpleNamespace(unmute=broken, welcome=SimpleNamespace(root_pid=1)),
        )
        one.pace.returned.set()
        one._close = lambda *args: Session._close(one, *args)
        await Session._finish(one, 3 << 8)
        assert (
            one.ended.done()
            and (record.exit_code, record.reason, record.output_end, record.state)
            == (3, "exited", 7, "ended")
            and closed == ["lane"]
            and errors
        )

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_keeper_is_let_go_whatever_fails_with_those_who_watched(tmp_path: Path) -> None:
    async def main() -> None:
        errors, done, told = logged(), list[str](), list[str]()

        class Kept:
            async def write(self, *_: Any, **__: Any) -> None:
                done.append("written")

        async def dispose() -> None:
            broken()

        async def in_thread(*_: Any) -> None:
            done.append("group")

        record: Any = Record("s", "work", "ended", 1, 0.0, [], "", "")
        watching = [
            SimpleNamespace(conn=SimpleNamespace(event=broken)),
            SimpleNamespace(conn=SimpleNamespace(event=lambda name, **_: told.append(name))),
        ]
        one: Any = SimpleNamespace(
            id="s",
            record=record,
            viewers=watching,
            behind=broken,
            remove_viewer=broken,
            streams=[],
            link=SimpleNamespace(send=lambda packet: done.append("released")),
            dispose=dispose,
            directory=str(tmp_path / "s"),
        )
        engine: Any = SimpleNamespace(
            home=SimpleNamespace(run=str(tmp_path)),
            store=Kept(),
            ended={},
            halter=SimpleNamespace(in_thread=in_thread, groups=SimpleNamespace(remove=None)),
            forget_old=lambda: done.append("old ones"),
        )
        await bury(engine, one)
        assert (
            done == ["written", "released", "group", "old ones"]
            and told == ["ended"]
            and len(errors) == 5
        )

    asyncio.run(asyncio.wait_for(main(), 60))


def test_output_reaches_all_who_watch_whoever_of_them_fails() -> None:
    async def main() -> None:
        errors, told = logged(), list[str]()
        one: Any = SimpleNamespace(
            link=SimpleNamespace(closed=False),
            lane=SimpleNamespace(settle=lambda: None, awaited=True),
            ring=SimpleNamespace(flags=FLAG_EOF, head=7),
            scanned=7,
            viewers=[
                SimpleNamespace(pump=broken),
                SimpleNamespace(pump=lambda: told.append("viewer")),
            ],
            view=SimpleNamespace(fed=7),
            streams=[broken, lambda: told.append("stream")],
            pace=SimpleNamespace(look=lambda: told.append("pace")),
            commands=SimpleNamespace(watchers=[]),
            _eof=asyncio.get_running_loop().create_future(),
        )
        Session._bell(one)
        assert told == ["viewer", "stream", "pace"] and one._eof.done() and len(errors) == 2

    asyncio.run(main())


def test_an_event_reaches_all_who_follow_and_whoever_notes_it_goes_on() -> None:
    async def main() -> None:
        errors, told, posted = logged(), list[str](), list[Any]()
        store: Any = SimpleNamespace(post=posted.append)
        events = Events(store)
        events.follow(broken)
        events.follow(lambda: told.append("told"))
        events.note("s", "session.exited", {})
        assert told == ["told"] and len(posted) == 1 and len(errors) == 1

    asyncio.run(main())
